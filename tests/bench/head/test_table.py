"""The table of `wts bench head`: ratios, goals and slopes."""

from __future__ import annotations

from wts.bench import clock
from wts.bench.head.cases import Point
from wts.bench.head.table import Measured, table


def test_the_table_shows_ratios_goals_and_slopes() -> None:
    def row(path: str, steps: int, us: float) -> Measured:
        return Measured(
            point=Point(vocab=151_936, batch=1, steps=steps, temperature=0.0),
            rank=256,
            path=path,
            cache="cold",
            timing=clock.Timing(name=path, samples_us=(us,)),
            agreement=None,
            resident_share=1.0,
            plan="feed",
        )

    rows = [
        row("wts", 7, 27.0),
        row("wts", 16, 45.0),
        row("probe", 7, 20.0),
        row("probe", 16, 33.5),
    ]
    rows += [row("sglang", 7, 216.0), row("sglang", 16, 486.0)]
    text = table(rows, gpu="h200")
    ours = [line.split() for line in text.splitlines() if " wts " in line]
    assert ours[0][-4:] == ["8.00", "x", "8", "x"]
    assert ours[1][-4:] == ["10.80", "x", "11.5", "x"]
    assert ours[2][-4:] == ["2.000", "13.00", "1.33", "x"]
    assert "11.5 x" not in table(rows, gpu="h100")

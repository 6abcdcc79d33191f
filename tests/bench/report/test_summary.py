"""The tables of documents: which rows they have, and how they name heads."""

from __future__ import annotations

from typing import Any

import pytest

from bench.records import head_record
from wts.bench import record
from wts.bench.report.summary import render, render_short
from wts.errors import InputError


def test_the_table_of_other_heads_names_them_and_their_probes() -> None:
    def line(kind: str, path: str, us: float, temperature: float = 0.0) -> record.Record:
        return head_record(
            head=kind, path=path, p50_us=us, p05_us=us, p95_us=us, T=temperature, run_id="one"
        )

    paths = {"wts": 50.0, "sglang": 600.0, "step_torch": 700.0}
    markov = [line("markov", path, us) for path, us in paths.items()]
    (row,) = [text for text in render(markov, source="x").splitlines() if "600.0" in text]
    assert row == "| 151,936 | 1 | 0 | 16 | 50.0 | 600.0 | 700.0 | 12.0 x |"
    gated = [line("gated", path, us + 10) for path, us in {**paths, "probe": 45.0}.items()]
    sampled = [line("domino", path, paths[path], 1.0) for path in ("wts", "step_torch")]
    unpaired = [line("rnn", "wts", 1.0), line("rnn", "step_torch", 1.0)]
    text = render([*sampled, *gated, *unpaired, *markov], source="x")
    rows = [row for row in text.splitlines() if "151,936" in row]
    assert rows == [
        "| markov | 151,936 | 1 | 0 | 16 | 50.0 | 600.0 | 700.0 | 12.0 x |  |",
        "| gated | 151,936 | 1 | 0 | 16 | 60.0 | 610.0 | 710.0 | 10.2 x | 55.0 |",
        "| domino | 151,936 | 1 | 1 | 16 | 50.0 |  | 700.0 |  |  |",
    ]
    widths = {row.count("|") for row in text.splitlines() if row.startswith("|")}
    assert len(widths) == 1
    assert "Domino without the product" in text


def test_the_short_table_has_temperatures_side_by_side() -> None:
    def lines(kind: str, batch: int, us: float, steps: int = 7, temperature: float = 0.0) -> Any:
        paths = {"wts": us, "sglang": 4 * us, "step_torch": 5 * us}
        if kind == "domino" and temperature:
            del paths["sglang"]
        return [
            head_record(
                head=kind, path=path, p50_us=t, p05_us=t, p95_us=t, B=batch, T=temperature, K=steps
            )
            for path, t in paths.items()
        ]

    markov = [*lines("markov", 2, 20.0), *lines("markov", 2, 30.0, temperature=1.0)]
    markov += [*lines("markov", 1, 10.0), *lines("markov", 1, 99.0, steps=16)]
    unpaired = lines("markov", 4, 50.0)[:1]
    rows = render_short([*markov, *unpaired], source="x").splitlines()
    assert rows[0].count("T = ") == 2
    assert rows[2:4] == [
        "| 151,936 | 1 | 10.0 | 40.0 | 4.0 x |  |  |  |",
        "| 151,936 | 2 | 20.0 | 80.0 | 4.0 x | 30.0 | 120.0 | 4.0 x |",
    ]
    assert rows[4] == ""
    assert rows[5].startswith("K = 7 steps. Medians")
    domino = lines("domino", 1, 15.0, temperature=1.0)
    rows = render_short([*markov, *domino], source="x").splitlines()
    assert rows[4] == "| domino | 151,936 | 1 |  |  |  | 15.0 |  |  |"
    assert len({row.count("|") for row in rows if row.startswith("|")}) == 1
    with pytest.raises(InputError, match="name one of 7, 16"):
        render_short(markov, source="x", steps=5)

"""What a server gains, and whether int8 changes what it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wts.bench.record import Record
from wts.bench.report.points import Results, number
from wts.bench.report.style import COLOURS, title_figure
from wts.bench.serving import table as serving_table
from wts.figure import new_figure

__all__ = ["gains"]


def gains(results: Results) -> Any | None:
    """Rounds gained over SGLang's own head, and differences of accepted lengths.

    Returns:
        The figure; None without records of either.
    """
    serving = results.records["serving"]
    acceptance = _newest(results.records["acceptance"])
    if not serving and not acceptance:
        return None
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    source = []
    if serving:
        runs = _newest_runs(serving)
        _draw_gains(left, runs)
        source.append(f"rounds: {_served(runs)}")
    else:
        _leave_out(left, "no record yet (wts bench serving)")
    if acceptance:
        _draw_acceptance(right, acceptance)
        source.append(f"lengths: commits {', '.join(_commits(acceptance))}")
    else:
        _leave_out(right, "no record of accepted lengths yet")
    return title_figure(figure, "In a server: rounds gained, tokens accepted", "; ".join(source))


def _newest(records: Sequence[Record]) -> list[Record]:
    """The last comparison of each head, block and temperature, over all domains."""
    found: dict[tuple[str, float, float], Record] = {}
    for record in records:
        if record["domain"] == "all" and record.get("states", "own") == "own":
            found[str(record["head"]), number(record, "K"), number(record, "T")] = record
    return [found[key] for key in sorted(found, reverse=True)]


def _newest_runs(records: Sequence[Record]) -> list[Sequence[Record]]:
    """The last run of each target and drafter."""
    found = {(run[0]["model"], run[0]["draft"]): run for run in serving_table.runs(records)}
    return list(found.values())


def _served(runs: Sequence[Sequence[Record]]) -> str:
    """What was served, as far as it fits below a figure."""
    models = sorted({f"{run[0]['model']} ({run[0]['accept']} acceptance)" for run in runs})
    commits = _commits([record for run in runs for record in run])
    return f"{', '.join(models)}, commits {', '.join(commits)}"


def _commits(records: Sequence[Record]) -> list[str]:
    return sorted({str(record["commit"])[:7] for record in records})


def _leave_out(panel: Any, text: str) -> None:
    panel.text(0.5, 0.5, text, ha="center")
    panel.set_axis_off()


def _draw_gains(panel: Any, runs: Sequence[Sequence[Record]]) -> None:
    requests: set[int] = set()
    for place, run in enumerate(runs):
        rows = serving_table.rows(run)
        requests |= {row.concurrency for row in rows}
        name = f"{run[0]['head']}, blocks of {run[0]['block']}"
        for temperature in sorted({row.temperature for row in rows}):
            for path, line in (("wts", "-"), ("null_head", "--")):
                found = {
                    row.concurrency: 100 * row.gain
                    for row in rows
                    if row.path == path and row.temperature == temperature and row.gain is not None
                }
                if found:
                    label = f"{name}: {serving_table.TITLES[path]}, T = {temperature:g}"
                    panel.plot(
                        list(found),
                        list(found.values()),
                        f"o{line}",
                        color=f"C{place}",
                        label=label,
                    )
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks := sorted(requests), map(str, ticks))
    panel.set_xlabel("concurrent requests")
    panel.set_ylabel("more rounds a second, %")
    panel.legend(fontsize=7)


def _draw_acceptance(panel: Any, records: Sequence[Record]) -> None:
    labels = []
    for place, record in enumerate(records):
        middle = number(record, "difference")
        low, high = number(record, "ci_low"), number(record, "ci_high")
        panel.errorbar(
            middle,
            place,
            xerr=[[max(0.0, middle - low)], [max(0.0, high - middle)]],
            fmt="o",
            capsize=3,
            color=COLOURS["wts"],
        )
        labels.append(f"{record['head']}, K = {record['K']}, T = {number(record, 'T'):g}")
    panel.axvline(0, color="grey", linewidth=0.8)
    panel.set_yticks(range(len(labels)), labels, fontsize=7)
    panel.set_xlabel("accepted length: int8 less bf16, tokens a round")

"""What fits on a chip, what a step-wise step costs, and where tiles lie best."""

from __future__ import annotations

from typing import Any

from wts.bench.report.points import STEPWISE, Case, Results, fits, latest, number, times
from wts.bench.report.style import COLOURS, TITLES, source_line, title_figure
from wts.bench.serving import table as serving_table
from wts.figure import new_figure
from wts.hardware.gpu import GPUS

__all__ = ["footprint", "placement"]

_RANK = 256
_VOCABS = (32_000, 128_256, 151_936, 248_320)
_MIB = 1 << 20
_MEMORIES = (
    ("registers", "#1f77b4"),
    ("shared memory", "#aec7e8"),
    ("tensor memory", "#98df8a"),
)


def footprint(results: Results) -> Any | None:
    """Projections against on-chip memories; a step-wise step; the head's share of a round.

    Returns:
        The figure; None without step-wise times of Markov heads.
    """
    cold = latest(
        results.records["head"],
        lambda r: r["head"] == "markov" and r["cache"] == "cold" and r["r"] == _RANK,
    )
    cases = {
        case: {path: fit for path, fit in fits(paths).items() if path in STEPWISE}
        for case, paths in times(cold).items()
        if case.batch == 1 and case.temperature == 0
    }
    cases = {case: found for case, found in cases.items() if found}
    if not cases:
        return None
    figure = new_figure(13, 4.6)
    capacity, step, share = figure.subplots(1, 3, width_ratios=(2.2, 1.2, 1))
    _draw_capacity(capacity)
    _draw_steps(step, cases)
    _draw_share(share, results)
    return title_figure(
        figure,
        "What fits on chip, and what a step costs that reads it anew",
        source_line(cold),
    )


def _draw_capacity(panel: Any) -> None:
    names = list(GPUS)
    for row, name in enumerate(names):
        spec = GPUS[name]
        left = 0.0
        sizes = (
            spec.num_sms * spec.register_bytes_per_sm,
            spec.num_sms * spec.shared_bytes_per_block,
            spec.num_sms * spec.tensor_bytes_per_sm,
        )
        for (memory, colour), size in zip(_MEMORIES, sizes, strict=True):
            label = memory if row == 0 else None
            panel.barh(row - 0.2, size / _MIB, 0.36, left=left, color=colour, label=label)
            left = left + size / _MIB
        label = "L2" if row == 0 else None
        panel.barh(row + 0.2, spec.l2_bytes / _MIB, 0.3, color="lightgrey", label=label)
    for vocab in _VOCABS:
        for bytes_each, line in ((1, "-"), (2, ":")):
            place = vocab * _RANK * bytes_each / _MIB
            panel.axvline(place, color="black", linestyle=line, linewidth=0.9)
            text = f" {round(vocab / 1000)}k {'int8' if bytes_each == 1 else 'bf16'}"
            panel.text(place, -0.62, text, rotation=90, va="bottom", ha="right", fontsize=6)
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(-0.7, len(names) - 0.4)
    panel.set_xlabel(f"MiB; lines: a projection of rank {_RANK}")
    panel.set_title("on-chip memories of a GPU, as their makers give them", fontsize=9)
    panel.legend(fontsize=7, loc="center right")


def _draw_steps(panel: Any, cases: dict[Case, Any]) -> None:
    paths = [path for path in STEPWISE if any(path in found for found in cases.values())]
    width = 0.8 / len(paths)
    for number_of, path in enumerate(paths):
        places = [place for place, found in enumerate(cases.values()) if path in found]
        heights = [found[path].step_us for found in cases.values() if path in found]
        offset = (number_of - (len(paths) - 1) / 2) * width
        bars = panel.bar(
            [place + offset for place in places],
            heights,
            width,
            color=COLOURS[path],
            label=TITLES[path],
        )
        panel.bar_label(bars, fmt="%.1f", fontsize=7)
    panel.set_xticks(range(len(cases)), [f"V = {case.vocab:,}" for case in cases], fontsize=8)
    panel.set_ylabel("us a step")
    panel.set_title("one step of step-wise paths, B = 1, T = 0", fontsize=9)
    panel.legend(fontsize=7, loc="lower center")


def _draw_share(panel: Any, results: Results) -> None:
    panel.set_title("the head's share of a serving round", fontsize=9)
    records = results.records["serving"]
    if not records:
        panel.text(0.5, 0.5, "no record yet\n(wts bench serving --null-head)", ha="center")
        panel.set_axis_off()
        return
    rows = serving_table.rows(serving_table.runs(records)[-1])
    rounds = {(row.path, row.temperature, row.concurrency): row.round_us for row in rows}
    for temperature in sorted({row.temperature for row in rows}):
        shares = {
            concurrency: 100 * (1 - us / rounds["sglang", temperature, concurrency])
            for (path, of, concurrency), us in rounds.items()
            if path == "null_head"
            and of == temperature
            and ("sglang", temperature, concurrency) in rounds
        }
        panel.plot(list(shares), list(shares.values()), "o-", label=f"T = {temperature:g}")
    panel.set_xscale("log", base=2)
    panel.set_xlabel("concurrent requests")
    panel.set_ylabel("% of the time of a round")
    panel.legend(fontsize=7)


def placement(results: Results) -> Any | None:
    """Time of a step over the tiles that a warp keeps in registers; spills marked.

    Returns:
        The figure; None without records of a placement sweep.
    """
    found = latest(results.records["placement"], lambda r: r["cache"] == "cold")
    if not found:
        return None
    figure = new_figure(7.5, 4.4)
    panel = figure.subplots()
    groups: dict[tuple[int, float], dict[int, dict[int, float]]] = {}
    spilled: set[tuple[tuple[int, float], int]] = set()
    for record in found:
        key = (int(number(record, "B")), number(record, "T"))
        fragments = int(number(record, "register_fragments"))
        by_steps = groups.setdefault(key, {}).setdefault(fragments, {})
        by_steps[int(number(record, "K"))] = number(record, "p50_us")
        if number(record, "spill_bytes") > 0:
            spilled.add((key, fragments))
    slabs = number(found[0], "r") / 32
    for key, by_fragments in sorted(groups.items()):
        lines = {
            fragments: fit.step_us
            for fragments, by_steps in sorted(by_fragments.items())
            if (fit := fits({"wts": by_steps}).get("wts")) is not None
        }
        (line,) = panel.plot(
            [fragments / slabs for fragments in lines],
            list(lines.values()),
            "o-",
            label=f"B = {key[0]}, T = {key[1]:g}",
        )
        marked = [fragments for fragments in lines if (key, fragments) in spilled]
        panel.plot(
            [fragments / slabs for fragments in marked],
            [lines[fragments] for fragments in marked],
            "x",
            color="black",
            markersize=9,
            zorder=line.get_zorder() + 1,
        )
    if spilled:
        panel.plot([], [], "x", color="black", label="the compiler spills registers")
    panel.set_xlabel("tiles of a warp in registers; the others are in shared memory")
    panel.set_ylabel("us a step, least squares over K")
    panel.legend(fontsize=8)
    return title_figure(figure, "Where the weights of a block lie best", source_line(found))

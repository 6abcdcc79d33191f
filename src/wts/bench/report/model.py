"""The cost model beside the measurements, every point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wts.bench.record import Record
from wts.bench.report.points import Case, Results, fits, latest, times
from wts.bench.report.predicted import Predicted, mean_error, predictions
from wts.bench.report.style import source_line, title_figure
from wts.figure import new_figure
from wts.hardware.gpu import gpu_spec
from wts.kernels.resident.cost import predict

__all__ = ["model"]

_PARTS = (
    ("products", "product_us", "#1f77b4"),
    ("what L2 is waited for", "stream_us", "#17becf"),
    ("judging", "judge_us", "#ff7f0e"),
    ("exchange", "exchange_us", "#d62728"),
)


def model(results: Results) -> Any | None:
    """Predicted against measured: all complete calls, and the parts of a step of each case.

    Returns:
        The figure; None without walks of Markov heads.
    """
    cold = latest(
        results.records["head"],
        lambda r: r["head"] == "markov" and r["cache"] == "cold" and r["path"] == "wts",
    )
    points = predictions(cold)
    if not points:
        return None
    figure = new_figure(13, 5.2)
    calls, steps = figure.subplots(1, 2, width_ratios=(1, 1.9))
    _draw_calls(calls, points)
    _draw_steps(steps, points, cold)
    title = "Predicted against measured (constants are fitted to one run of these points)"
    return title_figure(figure, title, source_line(cold))


def _draw_calls(panel: Any, points: Sequence[Predicted]) -> None:
    """Complete calls, predicted over measured."""
    for vocab in sorted({point.vocab for point in points}):
        for temperature, marker in ((0.0, "o"), (1.0, "^")):
            found = [p for p in points if (p.vocab, p.temperature) == (vocab, temperature)]
            if found:
                panel.plot(
                    [p.measured_us for p in found], [p.predicted_us() for p in found], marker,
                    label=f"V = {vocab:,}, T = {temperature:g}", markersize=4,
                )  # fmt: skip
    ends = [min(p.measured_us for p in points) * 0.8, max(p.measured_us for p in points) * 1.25]
    panel.plot(ends, ends, color="black", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("measured, us")
    panel.set_ylabel("predicted, us")
    worst = max(abs(p.error()) for p in points)
    panel.set_title(
        f"{len(points)} complete calls: mean error {mean_error(points):.1%}, largest {worst:.1%}",
        fontsize=9,
    )
    panel.legend(fontsize=7)


def _draw_steps(panel: Any, points: Sequence[Predicted], cold: Sequence[Record]) -> None:
    """The parts of a step of each case, and the measured step beside them."""
    plans = {
        Case(head="markov", vocab=p.vocab, batch=p.batch, temperature=p.temperature): p
        for p in points
    }
    measured = {case: fits(paths).get("wts") for case, paths in times(cold).items()}
    shown = sorted(plans, key=lambda case: (case.vocab, case.temperature, case.batch))
    costs = [predict(plans[case].plan, gpu_spec(plans[case].gpu)) for case in shown]
    left = [0.0] * len(shown)
    for name, field, colour in _PARTS:
        sizes = [getattr(cost, field) for cost in costs]
        shares = [size / cost.step_us for size, cost in zip(sizes, costs, strict=True)]
        panel.bar(range(len(shown)), shares, bottom=left, color=colour, label=name, width=0.7)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    for place, (case, cost) in enumerate(zip(shown, costs, strict=True)):
        fit = measured[case]
        if fit is not None:
            label = "measured step" if place == 0 else None
            height = fit.step_us / cost.step_us
            panel.plot(place, height, "_", color="black", markersize=14, mew=2.5, label=label)
        inside = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 7, "color": "white"}
        panel.text(place, 0.02, f"{cost.step_us:.1f} us", **inside)
    names = [f"{round(case.vocab / 1000)}k T={case.temperature:g} B={case.batch}" for case in shown]
    panel.set_xticks(range(len(shown)), names, rotation=70, ha="right", fontsize=7)
    panel.set_ylabel("of the predicted step")
    panel.set_ylim(0, 1.45)
    panel.set_title(
        "parts of a predicted step (its time inside), and the measured step", fontsize=9
    )
    panel.legend(fontsize=7, loc="upper left", ncols=5)

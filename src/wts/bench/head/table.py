"""What `wts bench head` found, as a table and as records: a row per path, length and cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wts.bench import record
from wts.bench.clock import Cache, Timing, fit_steps
from wts.bench.head.cases import GOALS, OURS, Point
from wts.bench.record import Environment
from wts.dtypes import WeightType

__all__ = ["Measured", "ratio_path", "record_of", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One row of the table, and what its record says besides the times.

    `excluded_us` is what was subtracted from the times, None where nothing is excluded. `rescored`,
    of an exact walk: the share of steps that exact logits decided, and rows of one of these.
    """

    point: Point
    rank: int
    path: str
    cache: Cache
    timing: Timing
    agreement: float | None
    resident_share: float
    plan: str
    weights: WeightType = "int8"
    hidden_size: int | None = None
    state_size: int | None = None
    excluded_us: float | None = None
    rescored: tuple[float, float] | None = None


def ratio_path(rows: Sequence[Measured]) -> str:
    """What the ratios of the table are taken to."""
    return "sglang" if any(row.path == "sglang" for row in rows) else "step_torch"


def table(rows: Sequence[Measured], *, gpu: str) -> str:
    """The results as text: one line per point, then one per fitted line over K.

    Goals are printed beside ratios only where they were set: int8 weights, L2 cold, r = 256, a
    ratio to SGLang on an H200. Beside the slope of a walk is its ratio to that of its probe.
    """
    lines = [*_point_lines(rows, gpu=gpu), "", *_slope_lines(rows)]
    for more in (_rescored_lines(rows), _excluded_lines(rows)):
        lines += ["", *more] if more else []
    return "\n".join(lines)


def _point_lines(rows: Sequence[Measured], *, gpu: str) -> list[str]:
    """Times of complete calls, their ratios and goals."""
    against = ratio_path(rows)
    base = {
        (row.point, row.rank, row.cache): row.timing.p50_us for row in rows if row.path == against
    }
    lines = [
        f"{'head':<6} {'V':>7} {'r':>3} {'B':>3} {'K':>3} {'T':>4} {'cache':<9} {'path':<13} "
        f"{'p50 us':>8} {'p05':>8} {'p95':>8} {f'{against} / path':>18} {'goal':>6} {'agree':>6}"
    ]
    for row in rows:
        point, timing = row.point, row.timing
        reference = base.get((point, row.rank, row.cache))
        ratio = (
            "" if reference is None or timing.p50_us <= 0 else f"{reference / timing.p50_us:.2f} x"
        )
        goal = GOALS.get(point)
        ours = row.path == "wts" and row.weights == "int8"
        shown = ours and row.cache == "cold" and row.rank == 256 and gpu == "h200"
        goal_text = f"{goal:g} x" if goal is not None and shown and against == "sglang" else ""
        agree = "" if row.agreement is None else f"{row.agreement:.0%}"
        lines.append(
            f"{point.head:<6} {point.vocab:>7} {row.rank:>3} {point.batch:>3} {point.steps:>3} "
            f"{point.temperature:>4g} {row.cache:<9} {row.path:<13} {timing.p50_us:>8.1f} "
            f"{timing.p05_us:>8.1f} {timing.p95_us:>8.1f} {ratio:>18} {goal_text:>6} {agree:>6}"
        )
    return lines


def _slope_lines(rows: Sequence[Measured]) -> list[str]:
    """Lines fitted over K: what a step costs, and what a walk does before its first."""
    groups: dict[tuple[str, int, int, int, float, str, str], dict[int, float]] = {}
    for row in rows:
        point = row.point
        key = (point.head, point.vocab, row.rank, point.batch, point.temperature, row.cache)
        groups.setdefault((*key, row.path), {})[point.steps] = row.timing.p50_us
    fits = {key: fit for key, times in groups.items() if (fit := fit_steps(times)) is not None}
    lines = [
        f"{'head':<6} {'V':>7} {'r':>3} {'B':>3} {'T':>4} {'cache':<9} {'path':<13} "
        f"{'us a step':>10} {'entry us':>9} {'of probe':>9}"
    ]
    for group, fit in fits.items():
        head, vocab, rank, batch, temperature, cache, path = group
        probe = fits.get((*group[:-1], "probe"))
        share = ""
        if probe is not None and probe.step_us > 0 and path == "wts":
            share = f"{fit.step_us / probe.step_us:.2f} x"
        lines.append(
            f"{head:<6} {vocab:>7} {rank:>3} {batch:>3} {temperature:>4g} {cache:<9} {path:<13} "
            f"{fit.step_us:>10.3f} {fit.entry_us:>9.2f} {share:>9}".rstrip()
        )
    return lines


def _rescored_lines(rows: Sequence[Measured]) -> list[str]:
    """How much of exact walks was left to exact logits."""
    decided = {row.point: row.rescored for row in rows if row.rescored is not None}
    return [
        f"{point.head}, V={point.vocab} B={point.batch} K={point.steps}: exact logits decided "
        f"{part:.1%} of the exact walk's steps, of {count:.1f} rows each"
        for point, (part, count) in decided.items()
    ]


def _excluded_lines(rows: Sequence[Measured]) -> list[str]:
    """What was timed alone and subtracted."""
    excluded = {
        (row.point, row.cache): row.excluded_us
        for row in rows
        if row.excluded_us is not None and row.excluded_us > 0
    }
    return [
        f"domino, V={point.vocab} B={point.batch} K={point.steps}, L2 {cache}: the product of "
        f"hidden states and lm_head, {us:.1f} us alone, is subtracted from sglang"
        for (point, cache), us in excluded.items()
    ]


def record_of(row: Measured, *, run_id: str, environment: Environment) -> dict[str, object]:
    """The record of a row."""
    sizes = {"H": row.hidden_size, "G": row.state_size, "excluded_us": row.excluded_us}
    if row.rescored is not None:
        sizes |= dict(zip(("rescored_share", "rescored_rows"), row.rescored, strict=True))
    return record.build(
        environment,
        bench="head",
        run_id=run_id,
        path=row.path,
        head=row.point.head,
        weights=row.weights if row.path in OURS else "bf16",
        V=row.point.vocab,
        r=row.rank,
        B=row.point.batch,
        K=row.point.steps,
        T=row.point.temperature,
        cache=row.cache,
        p50_us=round(row.timing.p50_us, 3),
        p05_us=round(row.timing.p05_us, 3),
        p95_us=round(row.timing.p95_us, 3),
        n=row.timing.num_samples,
        inputs="random",
        excludes="" if row.excluded_us is None else "lm_head",
        resident_share=row.resident_share,
        plan=row.plan,
        first_token_agreement=row.agreement,
        **{name: value for name, value in sizes.items() if value is not None},
    )

"""Predictions beside measurements: for every recorded walk the plan, and what it should cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wts.bench.record import Record, quantised_runs
from wts.hardware.gpu import gpu_spec
from wts.heads.kinds import Shape
from wts.kernels.planner import plan_residency
from wts.kernels.resident.cost import Constants, predict
from wts.kernels.resident.plan import ResidentPlan

__all__ = ["Predicted", "mean_error", "predictions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One recorded walk and its plan.

    Args:
        plan: as the planner makes it now, for the longest walk of the case.
        gpu: name of the GPU.
        vocab, batch, temperature, steps: V, B, T and K of the record.
        measured_us: median of complete calls.
    """

    plan: ResidentPlan
    gpu: str
    vocab: int
    batch: int
    temperature: float
    steps: int
    measured_us: float

    def predicted_us(self, constants: Constants | None = None) -> float:
        """What the cost model says about it."""
        return predict(self.plan, gpu_spec(self.gpu), constants).walk_us(self.steps)

    def error(self, constants: Constants | None = None) -> float:
        """Predicted over measured, less one."""
        return self.predicted_us(constants) / self.measured_us - 1


def predictions(records: Sequence[Record]) -> list[Predicted]:
    """Walks of Markov heads in int8, L2 cold, of each GPU's latest run that has any.

    Args:
        records: of bench "head", of GPUs that are known by name.
    """
    walks = [
        r
        for r in quantised_runs(records)
        if (r["bench"], r["path"], r["head"], r["cache"]) == ("head", "wts", "markov", "cold")
    ]
    latest = {r["gpu"]: r["run_id"] for r in sorted(walks, key=lambda r: str(r["time"]))}
    walks = [r for r in walks if r["run_id"] == latest[r["gpu"]]]  # kernels change
    longest: dict[tuple[object, ...], int] = {}
    for r in walks:
        longest[_case(r)] = max(longest.get(_case(r), 0), int(str(r["K"])))
    found = []
    for r in walks:
        temperature = float(str(r["T"]))
        gpu = str(r["gpu"])
        plan = plan_residency(
            Shape(vocab=int(str(r["V"])), rank=int(str(r["r"]))),
            gpu_spec(gpu),
            batch=int(str(r["B"])),
            steps=longest[_case(r)],
            sampled=temperature > 0,
        )
        found.append(
            Predicted(
                plan=plan,
                gpu=gpu,
                vocab=int(str(r["V"])),
                batch=int(str(r["B"])),
                temperature=temperature,
                steps=int(str(r["K"])),
                measured_us=float(str(r["p50_us"])),
            )
        )
    return found


def _case(r: Record) -> tuple[object, ...]:
    return tuple(r[name] for name in ("gpu", "run_id", "V", "r", "B", "T"))


def mean_error(points: Sequence[Predicted], constants: Constants | None = None) -> float:
    """Mean of the errors' sizes, 0.04 for 4 %."""
    return sum(abs(point.error(constants)) for point in points) / len(points)

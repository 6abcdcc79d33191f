"""Our own walks of a case: planned, compared with the emulator, and called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from wts.bench.baselines.inputs import WalkInputs
from wts.bench.compare import Twin, Walk, check_judged, check_walk
from wts.bench.head.cases import HeadCase
from wts.bench.head.material import Material
from wts.bench.inputs import constant_latent_head
from wts.dtypes import WeightType
from wts.heads.base import Head, with_weights
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.variants import streaming_plan
from wts.numerics.gumbel import Noise
from wts.walk.walker import Walker

__all__ = ["Ours", "Walks", "inputs_of", "rescored", "walker_call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A walk of our own: of the head, or of its probe."""

    walker: Walker
    head: Head

    @property
    def walk(self) -> Walk:
        """It as a call."""
        return self.walker

    @property
    def plan(self) -> ResidentPlan:
        """Its plan, which may be another than was asked for: see `Walker`."""
        return self.walker.plan


class Walks:
    """Makes walks of cases and compares their tokens; keeps emulators for other cases."""

    def __init__(self, material: Material, *, weights: WeightType, whole: bool) -> None:
        """Nothing is made yet.

        Args:
            material: what walks are made of.
            weights: what they keep of the projection.
            whole: compare all steps of all rows.
        """
        self._material = material
        self.weights = weights
        self._whole = whole
        self._emulated: Head | None = None
        self._twins: dict[tuple[str, bool], tuple[Twin, int, int]] = {}

    def make(self, case: HeadCase, path: str, say: Callable[[str], None]) -> Ours:
        """A walk on the device whose tokens were compared with the emulator's.

        Raises:
            WalkFault: they are others.
        """
        head = self._material.head(case)
        if path == "probe":
            head = constant_latent_head(head)
        plan = self.plan(case, head, exact=path == "wts_exact")
        if path == "wts_streaming":
            plan = streaming_plan(plan)
        # The plan of a Walker may be another: the compiler may want one with fewer registers.
        made = Ours(walker=Walker(head, plan, backend="device"), head=head)
        num_tokens = self.check(case, path, made, whole=self._whole)
        made.walker.check()
        equal = "equal the emulator's" if self.weights == "int8" else "are the only ones allowed"
        say(f"{num_tokens} tokens of {path} {equal}")
        return made

    def plan(self, case: HeadCase, head: Head, *, exact: bool = False) -> ResidentPlan:
        """The plan of a case on this machine."""
        return plan_residency(
            head,
            "LOCAL",
            batch=case.batch,
            steps=case.max_steps,
            sampled=case.sampled,
            weights=self.weights,
            exact=exact,
        )

    def check(self, case: HeadCase, path: str, ours: Ours, *, whole: bool) -> int:
        """Compare a walk with the emulator, or with what any order of sums allows.

        Returns:
            How many tokens were compared.

        Raises:
            WalkFault: some are others.
        """
        drawn = self._material.draw(case, case.max_steps, seed=1)
        if path == "probe":
            drawn = replace(drawn, hidden=None)
        term = ours.walker.hidden_term
        if self.weights == "int8":
            twin = self._twin_of(case, path, ours)
            return check_walk(ours.walk, twin, drawn, whole=whole, hidden_term=term)
        return check_judged(ours.walk, ours.walker.twin(), drawn, whole=whole, hidden_term=term)

    def _twin_of(self, case: HeadCase, path: str, ours: Ours) -> Twin:
        """The emulator of this head that was built last, if its plan is large enough.

        Tokens do not depend on the plan, so one of a larger batch serves; that saves packing the
        weights again on the CPU while the GPU waits. Latents that are rows it packs itself; input
        rows of other heads, which take the CPU minutes, are the device's.
        """
        if self._emulated is not self._material.head(case):
            self._twins.clear()
            self._emulated = self._material.head(case)
        path = "wts" if path == "wts_streaming" else path  # the same head, so the same tokens
        kept = self._twins.get((path, case.sampled))
        if kept is not None and kept[1] >= case.batch and kept[2] >= case.max_steps:
            return kept[0]
        walker = ours.walker
        if ours.head.latents_are_rows:
            on_cpu = with_weights(ours.head, lambda weight: weight.cpu())
            walker = Walker(on_cpu, ours.plan, backend="emulator")
        twin = walker.twin()
        self._twins[path, case.sampled] = (twin, case.batch, case.max_steps)
        return twin


def inputs_of(path: str, inputs: WalkInputs, head: Head) -> WalkInputs:
    """The inputs of a walk of our own, of this head: the probe reads no hidden states."""
    return inputs if path != "probe" else replace(inputs, head=head, hidden=None, lm_head=None)


def rescored(exact: Ours, inputs: WalkInputs) -> tuple[float, float]:
    """Of one walk: the share of its steps that exact logits decided, and rows of one of these."""
    before = exact.walker.report()
    walker_call(inputs, exact.walk)()
    after = exact.walker.report()
    batch, steps, _ = inputs.base_logits.shape
    decided = after.rescored_steps - before.rescored_steps
    rows = after.rescored_rows - before.rescored_rows
    return decided / (batch * steps), rows / max(1, decided)


def walker_call(inputs: WalkInputs, walk: Walk) -> Callable[[], torch.Tensor]:
    """Our walk of these inputs: sampled walks export their step logits, greedy ones keep none."""
    read = {} if inputs.hidden is None else {"hidden": inputs.hidden}
    if inputs.temperatures is None:
        return lambda: walk(inputs.base_logits, inputs.anchor, **read)
    assert inputs.noise_offset is not None
    noise = Noise(key=inputs.noise_key, offset=inputs.noise_offset)
    return lambda: walk(
        inputs.base_logits,
        inputs.anchor,
        **read,
        temperatures=inputs.temperatures,
        noise=noise,
        logits_out=inputs.logits_out,
    )

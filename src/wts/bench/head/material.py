"""What cases are measured on: weights and inputs, drawn once and used by several."""

from __future__ import annotations

import torch

from wts.bench.baselines.inputs import WalkInputs
from wts.bench.head.cases import HeadCase
from wts.bench.inputs import NOISE_KEY, Drawn, draw, draw_head, draw_lm_head
from wts.heads.base import Head

__all__ = ["Material"]


class Material:
    """Draws heads and inputs of cases; keeps the last head."""

    def __init__(self, *, device: str, seed: int) -> None:
        """Nothing is drawn yet.

        Args:
            device: where tensors go.
            seed: of weights and inputs.
        """
        self._device = device
        self._seed = seed
        self._key: tuple[object, ...] | None = None
        self._head: Head | None = None
        self._lm_head: torch.Tensor | None = None

    def head(self, case: HeadCase) -> Head:
        """The head of a case: the one before, if it is the same."""
        key = (case.head, case.hidden_size, case.state_size, case.vocab, case.rank)
        if self._head is None or self._key != key:
            self._head = self._lm_head = None  # the old ones' memory, before there are new ones
            self._head = draw_head(case, device=self._device, seed=self._seed)
            if case.head == "domino":
                self._lm_head = draw_lm_head(case, device=self._device, seed=self._seed + 1)
            self._key = key
        return self._head

    def draw(self, case: HeadCase, steps: int, *, seed: int) -> Drawn:
        """Inputs of a walk of so many steps of the head that was drawn last.

        Args:
            case: of that head.
            steps: K.
            seed: other inputs for another one.
        """
        return draw(
            vocab=case.vocab,
            batch=case.batch,
            steps=steps,
            temperature=case.temperature,
            device=self._device,
            seed=self._seed + seed,
            hidden_size=case.hidden_size if case.reads_hidden else None,
            lm_head=self._lm_head,
        )

    def inputs(self, case: HeadCase, steps: int, *, seed: int = 2) -> WalkInputs:
        """The same with all that any path needs beside them."""
        head = self.head(case)
        drawn = self.draw(case, steps, seed=seed)
        return WalkInputs(
            head=head,
            base_logits=drawn.base_logits,
            anchor=drawn.anchor,
            hidden=drawn.hidden,
            lm_head=self._lm_head,
            temperatures=drawn.temperatures,
            noise_key=NOISE_KEY,
            noise_offset=torch.zeros(1, dtype=torch.int64, device=self._device),
            logits_out=torch.zeros_like(drawn.base_logits),
        )

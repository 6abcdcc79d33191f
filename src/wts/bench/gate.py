"""The correctness gate: nothing is timed before its tokens were equal to those of another path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

__all__ = [
    "NOISE_KEY",
    "Drawn",
    "Walk",
    "WalkFault",
    "agreement",
    "check_walk",
    "compare",
    "draw",
    "draw_weights",
    "gate_steps",
]

NOISE_KEY = 0x1B0A_93F7_5C2E_8D41
"""Key of the sampled noise of every benchmark walk."""

# Walks of up to this many tokens are checked whole; the emulator takes part of a second a step.
_WHOLE_WALK_TOKENS = 64
# Rows of a larger greedy batch whose walk is followed to its end.
_FOLLOWED_ROWS = 3
_NOISE_OFFSET = 3


class WalkFault(Exception):
    """Two paths that must give the same tokens or logits gave others."""


class Walk(Protocol):
    """A `Walker`, as far as a benchmark uses it."""

    def __call__(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        temperatures: torch.Tensor | None = None,
        noise: Any = None,
        logits_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the tokens, int64 [B, K]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Random inputs of one walk."""

    base_logits: torch.Tensor
    anchor: torch.Tensor
    temperatures: torch.Tensor | None

    def on(self, device: str | torch.device) -> Drawn:
        """The same inputs on another device."""
        return Drawn(
            base_logits=self.base_logits.to(device),
            anchor=self.anchor.to(device),
            temperatures=None if self.temperatures is None else self.temperatures.to(device),
        )

    def rows(self, rows: Sequence[int]) -> Drawn:
        """Some of the rows, in this order."""
        chosen = list(rows)
        return Drawn(
            base_logits=self.base_logits[chosen],
            anchor=self.anchor[chosen],
            temperatures=None if self.temperatures is None else self.temperatures[chosen],
        )


def draw_weights(
    *, vocab: int, rank: int, device: str | torch.device, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw E and W, bf16 [vocab, rank] each, so that a bias has a deviation of about 1.5.

    That is comparable with base logits of deviation 2: neither decides the tokens alone, and top
    logits often share a bf16 value, which puts the rule for ties to the test.
    """
    generator = torch.Generator(device).manual_seed(seed)
    table = torch.randn(vocab, rank, generator=generator, device=device)
    projection = torch.randn(vocab, rank, generator=generator, device=device)
    return table.bfloat16(), projection.mul_(1.5 * rank**-0.5).bfloat16()


def draw(
    *,
    vocab: int,
    batch: int,
    steps: int,
    temperature: float,
    device: str | torch.device,
    seed: int,
) -> Drawn:
    """Draw base logits, bf16 [batch, steps, vocab] of deviation 2, and anchors."""
    generator = torch.Generator(device).manual_seed(seed)
    base_logits = torch.empty(batch, steps, vocab, dtype=torch.bfloat16, device=device)
    return Drawn(
        base_logits=base_logits.normal_(0.0, 2.0, generator=generator),
        anchor=torch.randint(0, vocab, (batch,), generator=generator, device=device),
        temperatures=torch.full((batch,), temperature, device=device) if temperature > 0 else None,
    )


def gate_steps(*, batch: int, steps: int, whole: bool) -> int:
    """How many steps of a walk are compared over all of its rows.

    Args:
        batch: rows.
        steps: of the longest walk.
        whole: all of them, whatever the emulator's time.
    """
    if whole or batch * steps <= _WHOLE_WALK_TOKENS:
        return steps
    return min(steps, max(2, _WHOLE_WALK_TOKENS // batch))


def compare(what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Check two tensors for equal bits.

    Raises:
        WalkFault: names the first place that differs, and how many do.
    """
    found, wanted = found.cpu(), wanted.cpu()
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise WalkFault(
            f"{what}: {found.dtype}{list(found.shape)} against {wanted.dtype}{list(wanted.shape)}"
        )
    # Integers of the same width: NaN is equal to itself there and -0 is not +0.
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
    differing = (found.contiguous().view(bits) != wanted.contiguous().view(bits)).nonzero()
    if len(differing):
        place = tuple(differing[0].tolist())
        raise WalkFault(
            f"{what}: {len(differing)} of {found.numel()} differ, first at {list(place)}: "
            f"{found[place].item()} against {wanted[place].item()}"
        )


def _walked(
    walk: Walk, drawn: Drawn, make_noise: Callable[[int, torch.Tensor], object]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Tokens and, of a sampled walk, step logits; copies, since a walk may own what it returns."""
    if drawn.temperatures is None:
        return walk(drawn.base_logits, drawn.anchor).cpu(), None
    offset = torch.full((1,), _NOISE_OFFSET, dtype=torch.int64, device=drawn.anchor.device)
    logits = torch.zeros_like(drawn.base_logits)
    tokens = walk(
        drawn.base_logits,
        drawn.anchor,
        temperatures=drawn.temperatures,
        noise=make_noise(NOISE_KEY, offset),
        logits_out=logits,
    )
    return tokens.cpu(), logits.cpu()


def check_walk(
    walk: Walk,
    emulator: Walk,
    drawn: Drawn,
    *,
    whole: bool,
    make_noise: Callable[[int, torch.Tensor], object],
) -> int:
    """Compare a walk on the device with the emulator, bit for bit, on inputs of its full length.

    All rows are followed for as many steps as `gate_steps` says. Where that is not to the end, the
    first, the middle and the last row of a greedy walk of the whole batch are (a sampled row
    cannot be taken out of its batch: its number is part of the noise).

    Args:
        walk: on the device of `drawn`.
        emulator: on the CPU.
        drawn: fresh inputs of the longest walk.
        whole: follow all rows to the end.
        make_noise: key, offset -> the noise argument of a sampled walk.

    Returns:
        How many tokens were compared.

    Raises:
        WalkFault: the tokens, or the step logits of sampled rows, are not the same.
    """
    batch, steps = drawn.base_logits.shape[:2]
    checked = gate_steps(batch=batch, steps=steps, whole=whole)
    short = Drawn(
        base_logits=drawn.base_logits[:, :checked].contiguous(),
        anchor=drawn.anchor,
        temperatures=drawn.temperatures,
    )
    tokens, logits = _walked(walk, short, make_noise)
    wanted_tokens, wanted_logits = _walked(emulator, short.on("cpu"), make_noise)
    compare(f"tokens [{batch} rows, {checked} steps]", tokens, wanted_tokens)
    if logits is not None and wanted_logits is not None:
        compare(f"step logits [{batch} rows, {checked} steps]", logits, wanted_logits)
    num_compared = batch * checked
    if checked < steps and drawn.temperatures is None:
        rows = sorted({0, batch // 2, batch - 1})[:_FOLLOWED_ROWS]
        tokens, _ = _walked(walk, drawn, make_noise)
        wanted_tokens, _ = _walked(emulator, drawn.rows(rows).on("cpu"), make_noise)
        compare(f"tokens [rows {rows} of {batch}, {steps} steps]", tokens[rows], wanted_tokens)
        num_compared += len(rows) * steps
    return num_compared


def agreement(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The share of tokens that are the same."""
    return float((ours.cpu() == theirs.cpu()).double().mean())

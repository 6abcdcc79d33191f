"""Tokens are compared before anything is timed: with those of the emulator, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from wts.bench.inputs import NOISE_KEY, Drawn
from wts.numerics.gumbel import Noise
from wts.walk.emulator import Emulator
from wts.walk.teacher_forced import teacher_forced

__all__ = [
    "HiddenTerm",
    "Twin",
    "Walk",
    "WalkFault",
    "agreement",
    "check_judged",
    "check_walk",
    "compare",
    "compared_steps",
    "no_hidden_term",
]

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
        hidden: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Any = None,
        logits_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the tokens, int64 [B, K]."""


class Twin(Protocol):
    """An `Emulator`, as far as a benchmark uses it."""

    def __call__(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        hidden_term: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Any = None,
        logits_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the tokens, int64 [B, K]."""


HiddenTerm = Callable[[], torch.Tensor | None]
"""`Walker.hidden_term`: what hidden states added to the last walk, on the CPU; None without any."""


def no_hidden_term() -> None:
    """Of walks that read no hidden states."""


def compared_steps(*, batch: int, steps: int, whole: bool) -> int:
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


def check_walk(
    walk: Walk, twin: Twin, drawn: Drawn, *, whole: bool, hidden_term: HiddenTerm = no_hidden_term
) -> int:
    """Compare a walk on the device with the emulator, bit for bit, on inputs of its full length.

    All rows are followed for as many steps as `compared_steps` says. Where that is not to the end,
    the first, the middle and the last row of a greedy walk of the whole batch are (a sampled row
    cannot be taken out of its batch: its number is part of the noise).

    Args:
        walk: on the device of `drawn`.
        twin: on the CPU.
        drawn: fresh inputs of the longest walk.
        whole: follow all rows to the end.
        hidden_term: gives what hidden states added to the last walk, for the emulator.

    Returns:
        How many tokens were compared.

    Raises:
        WalkFault: the tokens, or the step logits of sampled rows, are not the same.
    """
    batch, steps = drawn.base_logits.shape[:2]
    checked = compared_steps(batch=batch, steps=steps, whole=whole)
    short = drawn.first(checked)
    tokens, logits = _walked(walk, short, _read(short))
    wanted_tokens, wanted_logits = _walked(twin, short.on("cpu"), _added(hidden_term))
    compare(f"tokens [{batch} rows, {checked} steps]", tokens, wanted_tokens)
    if logits is not None and wanted_logits is not None:
        compare(f"step logits [{batch} rows, {checked} steps]", logits, wanted_logits)
    num_compared = batch * checked
    if checked < steps and drawn.temperatures is None:
        rows = sorted({0, batch // 2, batch - 1})[:_FOLLOWED_ROWS]
        tokens, _ = _walked(walk, drawn, _read(drawn))
        added = _added(hidden_term, rows)
        wanted_tokens, _ = _walked(twin, drawn.rows(rows).on("cpu"), added)
        compare(f"tokens [rows {rows} of {batch}, {steps} steps]", tokens[rows], wanted_tokens)
        num_compared += len(rows) * steps
    return num_compared


def check_judged(
    walk: Walk,
    twin: Emulator,
    drawn: Drawn,
    *,
    whole: bool,
    hidden_term: HiddenTerm = no_hidden_term,
) -> int:
    """Check a walk with bf16 weights, whose sums have an order of their own, token by token.

    Args:
        walk: on the device of `drawn`.
        twin: of what the walk reads, on the CPU.
        drawn, whole, hidden_term: as those of `check_walk`.

    Returns:
        How many tokens could be one only, and were.

    Raises:
        WalkFault: another token, or a step logit outside its interval; or fewer than half of the
            tokens are decided, so that little was compared.
    """
    batch, steps = drawn.base_logits.shape[:2]
    short = drawn.first(compared_steps(batch=batch, steps=steps, whole=whole))
    tokens, logits = _walked(walk, short, _read(short))
    given = short.on("cpu")
    judged = teacher_forced(
        twin,
        given.base_logits,
        given.anchor,
        tokens,
        hidden_term=hidden_term(),
        temperatures=given.temperatures,
        noise_key=NOISE_KEY,
        noise_offset=_NOISE_OFFSET,
        logits=logits,
    )
    places = judged.wrong.nonzero().tolist()
    if places:
        row, step = places[0]
        raise WalkFault(
            f"tokens {list(tokens.shape)}: {len(places)} differ where sums in any order give one, "
            f"first at {places[0]}: {tokens[row, step]} against {judged.wanted[row, step]}"
        )
    if judged.strayed:
        raise WalkFault(f"step logits: {judged.strayed} are outside of what sums may give")
    decided = int(judged.decided.sum())
    if 2 * decided < tokens.numel():
        raise WalkFault(f"tokens: {decided} of {tokens.numel()} are decided, too few to compare")
    return decided


def _walked(
    walk: Callable[..., torch.Tensor], drawn: Drawn, read: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Tokens and, of a sampled walk, step logits; copies, since a walk may own what it returns."""
    if drawn.temperatures is None:
        return walk(drawn.base_logits, drawn.anchor, **read).cpu(), None
    offset = torch.full((1,), _NOISE_OFFSET, dtype=torch.int64, device=drawn.anchor.device)
    logits = torch.zeros_like(drawn.base_logits)
    tokens = walk(
        drawn.base_logits,
        drawn.anchor,
        **read,
        temperatures=drawn.temperatures,
        noise=Noise(key=NOISE_KEY, offset=offset),
        logits_out=logits,
    )
    return tokens.cpu(), logits.cpu()


def _read(drawn: Drawn) -> dict[str, torch.Tensor]:
    """Hidden states as an argument of a walk, where there are any."""
    return {} if drawn.hidden is None else {"hidden": drawn.hidden}


def _added(hidden_term: HiddenTerm, rows: Sequence[int] | None = None) -> dict[str, torch.Tensor]:
    """What they added to (some rows of) the last walk, as an argument of the emulator."""
    term = hidden_term()
    if term is None:
        return {}
    return {"hidden_term": term if rows is None else term[list(rows)]}


def agreement(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The share of rows whose last token is the same, among those whose earlier ones are.

    Args:
        ours, theirs: int64 [rows, steps].
    """
    same = (ours.cpu() == theirs.cpu()).double()
    comparable = same[:, :-1].prod(1)
    return float((same[:, -1] * comparable).sum() / comparable.sum().clamp(min=1))

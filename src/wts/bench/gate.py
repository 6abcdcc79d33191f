"""The correctness gate: nothing is timed before its tokens were equal to those of another path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from wts.bench.head.cases import HeadCase
    from wts.heads.base import Head
    from wts.heads.markov import MarkovHead
    from wts.walk.emulator import Emulator

__all__ = [
    "NOISE_KEY",
    "Drawn",
    "Twin",
    "Walk",
    "WalkFault",
    "agreement",
    "check_followed",
    "check_walk",
    "compare",
    "draw",
    "draw_head",
    "draw_lm_head",
    "draw_weights",
    "gate_steps",
    "probe_of",
]

NOISE_KEY = 0x1B0A_93F7_5C2E_8D41
"""Key of the sampled noise of every benchmark walk."""

# Walks of up to this many tokens are checked whole; the emulator takes part of a second a step.
_WHOLE_WALK_TOKENS = 64
# Rows of a larger greedy batch whose walk is followed to its end.
_FOLLOWED_ROWS = 3
_NOISE_OFFSET = 3
_BIAS_DEVIATION = 1.5
_BASE_DEVIATION = 2.0
_MEASURED_LATENTS = 1024


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
    """A Walker's twin on the CPU, as far as a benchmark uses it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Random inputs of one walk; hidden states for a head that reads them."""

    base_logits: torch.Tensor
    anchor: torch.Tensor
    temperatures: torch.Tensor | None
    hidden: torch.Tensor | None = None

    def on(self, device: str | torch.device) -> Drawn:
        """The same inputs on another device."""
        return Drawn(
            base_logits=self.base_logits.to(device),
            anchor=self.anchor.to(device),
            temperatures=None if self.temperatures is None else self.temperatures.to(device),
            hidden=None if self.hidden is None else self.hidden.to(device),
        )

    def rows(self, rows: Sequence[int]) -> Drawn:
        """Some of the rows, in this order."""
        chosen = list(rows)
        return Drawn(
            base_logits=self.base_logits[chosen],
            anchor=self.anchor[chosen],
            temperatures=None if self.temperatures is None else self.temperatures[chosen],
            hidden=None if self.hidden is None else self.hidden[chosen],
        )

    def first(self, steps: int) -> Drawn:
        """The inputs of the first steps."""
        return replace(
            self,
            base_logits=self.base_logits[:, :steps].contiguous(),
            hidden=None if self.hidden is None else self.hidden[:, :steps].contiguous(),
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
    return table.bfloat16(), projection.mul_(_BIAS_DEVIATION * rank**-0.5).bfloat16()


def draw_head(case: HeadCase, *, device: str | torch.device, seed: int) -> Head:
    """Draw the head of a case, so that a bias has a deviation of about 1.5, as `draw_weights`.

    The deviation of latents is measured, at random tokens and hidden states after one step.
    """
    from wts.heads.domino import DominoHead
    from wts.heads.gated import GatedHead
    from wts.heads.markov import MarkovHead
    from wts.heads.rnn import RnnHead

    vocab, rank, width, size = case.vocab, case.rank, case.hidden_size, case.state_size
    if case.head == "markov":
        table, projection = draw_weights(vocab=vocab, rank=rank, device=device, seed=seed)
        return MarkovHead(table=table, projection=projection)
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, deviation: float = 1.0) -> torch.Tensor:
        empty = torch.empty(*shape, dtype=torch.bfloat16, device=device)
        return empty.normal_(0.0, deviation, generator=generator)

    def matrix(rows: int, *blocks: tuple[int, float]) -> torch.Tensor:
        """Blocks of columns; each gives a product with elements of deviation 1 a deviation."""
        parts = [normal(rows, columns, deviation=d * columns**-0.5) for columns, d in blocks]
        return torch.cat(parts, 1)

    projection = normal(vocab, rank)
    head: GatedHead | RnnHead | DominoHead
    if case.head == "gated":
        head = GatedHead(
            table=normal(vocab, rank),
            projection=projection,
            gate_weight=matrix(rank, (width, 1.0), (rank, 1.0)),
            gate_bias=normal(rank, deviation=0.2),
        )
    elif case.head == "rnn":
        head = RnnHead(
            table=normal(vocab, rank),
            projection=projection,
            joint_weight=matrix(3 * rank, (rank, 0.7), (rank, 1.5), (width, 0.5)),
            joint_bias=normal(3 * rank, deviation=0.2),
        )
    else:
        head = DominoHead(
            table=normal(vocab, width),
            projection=projection,
            gru_input_weight=matrix(3 * size, (width, 1.5)),
            gru_state_weight=matrix(3 * size, (size, 0.7)),
            projector_weight=matrix(rank, (width, 1.0), (size, 4.0)),
            shift_label=False,
        )
    tokens = torch.randint(
        0, vocab, (_MEASURED_LATENTS,), generator=generator, device=projection.device
    )
    hidden = normal(_MEASURED_LATENTS, width)
    state, _ = head.latent(head.initial_state(_MEASURED_LATENTS), tokens, hidden)
    _, latent = head.latent(state, tokens.flip(0), hidden)
    assert latent is not None
    projection *= _BIAS_DEVIATION / float(latent.float().square().sum(1).mean().sqrt())
    return head


def draw_lm_head(case: HeadCase, *, device: str | torch.device, seed: int) -> torch.Tensor:
    """Draw an lm_head, bf16 [V, H], that gives base logits a deviation of 2."""
    generator = torch.Generator(device).manual_seed(seed)
    empty = torch.empty(case.vocab, case.hidden_size, dtype=torch.bfloat16, device=device)
    return empty.normal_(0.0, _BASE_DEVIATION * case.hidden_size**-0.5, generator=generator)


def probe_of(head: Head) -> MarkovHead:
    """A Markov head of the same projection and as many table rows, whose latent never changes.

    Its walk is the same projection, selection and exchange, under the plan of a Markov head.
    """
    from wts.heads.markov import MarkovHead

    row = torch.ones(1, head.rank, dtype=head.projection.dtype, device=head.projection.device)
    return MarkovHead(
        table=row.expand(head.table_rows, -1).contiguous(),
        projection=head.projection,
        draft_to_target=head.draft_to_target,
        logical_vocab=head.logical_vocab,
    )


def draw(
    *,
    vocab: int,
    batch: int,
    steps: int,
    temperature: float,
    device: str | torch.device,
    seed: int,
    hidden_size: int | None = None,
    lm_head: torch.Tensor | None = None,
) -> Drawn:
    """Draw base logits, bf16 [batch, steps, vocab] of deviation 2, and anchors.

    Args:
        vocab, batch, steps: V, B, K.
        temperature: of all rows.
        device: where they go.
        seed: of the generator.
        hidden_size: H, to draw hidden states of deviation 1 too.
        lm_head: bf16 [V, H], to make the base logits of hidden states, not to draw them.
    """
    from wts.bench.baselines.inputs import lm_head_product

    generator = torch.Generator(device).manual_seed(seed)
    base_logits = torch.empty(batch, steps, vocab, dtype=torch.bfloat16, device=device)
    if lm_head is None:
        base_logits.normal_(0.0, _BASE_DEVIATION, generator=generator)
    anchor = torch.randint(0, vocab, (batch,), generator=generator, device=device)
    hidden = None
    if hidden_size is not None:
        hidden = torch.empty(batch, steps, hidden_size, dtype=torch.bfloat16, device=device)
        hidden.normal_(generator=generator)
    if lm_head is not None:
        assert hidden is not None
        base_logits.copy_(lm_head_product(hidden, lm_head).transpose(0, 1))
    return Drawn(
        base_logits=base_logits,
        anchor=anchor,
        temperatures=torch.full((batch,), temperature, device=device) if temperature > 0 else None,
        hidden=hidden,
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
    walk: Walk | Twin,
    drawn: Drawn,
    read: dict[str, torch.Tensor],
    make_noise: Callable[[int, torch.Tensor], object],
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
        noise=make_noise(NOISE_KEY, offset),
        logits_out=logits,
    )
    return tokens.cpu(), logits.cpu()


def _hidden(drawn: Drawn) -> dict[str, torch.Tensor]:
    """Hidden states as an argument, where there are any."""
    return {} if drawn.hidden is None else {"hidden": drawn.hidden}


def _term(
    term_of: Callable[[], torch.Tensor | None], rows: Sequence[int] | None = None
) -> dict[str, torch.Tensor]:
    """What hidden states added to (some rows of) the last walk as an argument, where there are."""
    term = term_of()
    if term is None:
        return {}
    return {"hidden_term": term if rows is None else term[list(rows)]}


def check_walk(
    walk: Walk,
    emulator: Twin,
    drawn: Drawn,
    *,
    whole: bool,
    make_noise: Callable[[int, torch.Tensor], object],
    term_of: Callable[[], torch.Tensor | None] = lambda: None,
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
        term_of: gives what hidden states added to the last walk, fp32 [B, K, P] on the CPU, for
            the emulator; None where no hidden states are read.

    Returns:
        How many tokens were compared.

    Raises:
        WalkFault: the tokens, or the step logits of sampled rows, are not the same.
    """
    batch, steps = drawn.base_logits.shape[:2]
    checked = gate_steps(batch=batch, steps=steps, whole=whole)
    short = drawn.first(checked)
    tokens, logits = _walked(walk, short, _hidden(short), make_noise)
    wanted_tokens, wanted_logits = _walked(emulator, short.on("cpu"), _term(term_of), make_noise)
    compare(f"tokens [{batch} rows, {checked} steps]", tokens, wanted_tokens)
    if logits is not None and wanted_logits is not None:
        compare(f"step logits [{batch} rows, {checked} steps]", logits, wanted_logits)
    num_compared = batch * checked
    if checked < steps and drawn.temperatures is None:
        rows = sorted({0, batch // 2, batch - 1})[:_FOLLOWED_ROWS]
        tokens, _ = _walked(walk, drawn, _hidden(drawn), make_noise)
        some = drawn.rows(rows).on("cpu")
        wanted_tokens, _ = _walked(emulator, some, _term(term_of, rows), make_noise)
        compare(f"tokens [rows {rows} of {batch}, {steps} steps]", tokens[rows], wanted_tokens)
        num_compared += len(rows) * steps
    return num_compared


def check_followed(
    walk: Walk,
    emulator: Emulator,
    drawn: Drawn,
    *,
    whole: bool,
    make_noise: Callable[[int, torch.Tensor], object],
    term_of: Callable[[], torch.Tensor | None] = lambda: None,
) -> int:
    """Check a walk with bf16 weights, whose sums have an order of their own, token by token.

    Args:
        walk: on the device of `drawn`.
        emulator: of what the walk reads, on the CPU.
        drawn, whole, make_noise, term_of: as those of `check_walk`.

    Returns:
        How many tokens could be one only, and were.

    Raises:
        WalkFault: another token, or a step logit outside its interval; or fewer than half of the
            tokens are decided, so that little was compared.
    """
    from wts.walk.teacher_forced import teacher_forced

    batch, steps = drawn.base_logits.shape[:2]
    short = drawn.first(gate_steps(batch=batch, steps=steps, whole=whole))
    tokens, logits = _walked(walk, short, _hidden(short), make_noise)
    given = short.on("cpu")
    judged = teacher_forced(
        emulator,
        given.base_logits,
        given.anchor,
        tokens,
        hidden_term=term_of(),
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


def agreement(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The share of rows whose last token is the same, among those whose earlier ones are.

    Args:
        ours, theirs: int64 [rows, steps].
    """
    same = (ours.cpu() == theirs.cpu()).double()
    comparable = same[:, :-1].prod(1)
    return float((same[:, -1] * comparable).sum() / comparable.sum().clamp(min=1))

"""Random heads and inputs of benchmark walks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from wts.bench.baselines.inputs import lm_head_product
from wts.bench.head.cases import HeadCase
from wts.heads.base import Head
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead

__all__ = [
    "NOISE_KEY",
    "Drawn",
    "constant_latent_head",
    "draw",
    "draw_head",
    "draw_lm_head",
    "draw_weights",
]

NOISE_KEY = 0x1B0A_93F7_5C2E_8D41
"""Key of the sampled noise of every benchmark walk."""

_BIAS_DEVIATION = 1.5
_BASE_DEVIATION = 2.0
_MEASURED_LATENTS = 1024


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
    if case.head == "markov":
        table, projection = draw_weights(vocab=case.vocab, rank=case.rank, device=device, seed=seed)
        return MarkovHead(table=table, projection=projection)
    generator = torch.Generator(device).manual_seed(seed)
    normal = _Normal(generator=generator, device=device)
    projection = normal(case.vocab, case.rank)
    head = _HEADS[case.head](case, normal, projection)
    tokens = torch.randint(
        0, case.vocab, (_MEASURED_LATENTS,), generator=generator, device=projection.device
    )
    hidden = normal(_MEASURED_LATENTS, case.hidden_size)
    state, _ = head.latent(head.initial_state(_MEASURED_LATENTS), tokens, hidden)
    _, latent = head.latent(state, tokens.flip(0), hidden)
    assert latent is not None
    projection *= _BIAS_DEVIATION / float(latent.float().square().sum(1).mean().sqrt())
    return head


@dataclass(frozen=True, slots=True, kw_only=True)
class _Normal:
    """Draws bf16 weights."""

    generator: torch.Generator
    device: str | torch.device

    def __call__(self, *shape: int, deviation: float = 1.0) -> torch.Tensor:
        empty = torch.empty(*shape, dtype=torch.bfloat16, device=self.device)
        return empty.normal_(0.0, deviation, generator=self.generator)

    def matrix(self, rows: int, *blocks: tuple[int, float]) -> torch.Tensor:
        """Blocks of columns; each gives a product with elements of deviation 1 a deviation."""
        parts = [self(rows, columns, deviation=d * columns**-0.5) for columns, d in blocks]
        return torch.cat(parts, 1)


def _gated(case: HeadCase, normal: _Normal, projection: torch.Tensor) -> GatedHead:
    rank = case.rank
    return GatedHead(
        table=normal(case.vocab, rank),
        projection=projection,
        gate_weight=normal.matrix(rank, (case.hidden_size, 1.0), (rank, 1.0)),
        gate_bias=normal(rank, deviation=0.2),
    )


def _rnn(case: HeadCase, normal: _Normal, projection: torch.Tensor) -> RnnHead:
    rank = case.rank
    return RnnHead(
        table=normal(case.vocab, rank),
        projection=projection,
        joint_weight=normal.matrix(3 * rank, (rank, 0.7), (rank, 1.5), (case.hidden_size, 0.5)),
        joint_bias=normal(3 * rank, deviation=0.2),
    )


def _domino(case: HeadCase, normal: _Normal, projection: torch.Tensor) -> DominoHead:
    width, size = case.hidden_size, case.state_size
    return DominoHead(
        table=normal(case.vocab, width),
        projection=projection,
        gru_input_weight=normal.matrix(3 * size, (width, 1.5)),
        gru_state_weight=normal.matrix(3 * size, (size, 0.7)),
        projector_weight=normal.matrix(case.rank, (width, 1.0), (size, 4.0)),
        shift_label=False,
    )


_HEADS: Mapping[str, Callable[[HeadCase, _Normal, torch.Tensor], Head]] = MappingProxyType(
    {"gated": _gated, "rnn": _rnn, "domino": _domino}
)
"""By kind of head, of those that read hidden states."""


def draw_lm_head(case: HeadCase, *, device: str | torch.device, seed: int) -> torch.Tensor:
    """Draw an lm_head, bf16 [V, H], that gives base logits a deviation of 2."""
    generator = torch.Generator(device).manual_seed(seed)
    empty = torch.empty(case.vocab, case.hidden_size, dtype=torch.bfloat16, device=device)
    return empty.normal_(0.0, _BASE_DEVIATION * case.hidden_size**-0.5, generator=generator)


def constant_latent_head(head: Head) -> MarkovHead:
    """A Markov head of the same projection and as many table rows, whose latent never changes.

    Its walk is the same projection, selection and exchange, under the plan of a Markov head.
    """
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

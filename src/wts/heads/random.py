"""Random heads for demonstrations, benchmarks and tests: well spread, the same on every device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import torch

from wts.errors import HeadError
from wts.heads.base import Head, SomeHead, TableWeights, with_weights
from wts.heads.checks import check_rank

__all__ = ["FAVOUR", "Draw", "check_sizes", "draw_successors", "first_latent"]

# Mean bias of the favoured successor in a random head; that of the others has deviation 1.
FAVOUR = 10.0
_LATENTS_AT_ONCE = 4096


def check_sizes(vocab: int, table_rows: int, num_draft: int) -> None:
    """Refuse sizes of a random head that do not fit each other."""
    for argument, value, least, most in (
        ("vocab", vocab, 1, None),
        ("table_rows", table_rows, vocab, None),
        ("draft_vocab", num_draft, 1, vocab),
    ):
        if value < least or (most is not None and value > most):
            raise HeadError.mismatch(
                argument,
                wanted=f"at least {least}" if most is None else f"{least}..{most}",
                found=value,
                fix="correct the size",
            )


def draw_successors(
    generator: torch.Generator, vocab: int, num_draft: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw which target ids the draft ids are, in order, and the predecessor that favours each."""
    target = torch.randperm(vocab, generator=generator)[:num_draft].sort().values
    return target, target[torch.randperm(num_draft, generator=generator)]


def first_latent(head: Head, token: torch.Tensor) -> torch.Tensor:
    """The latents [n, r] of a first step after tokens [n], at a hidden state of zeros."""
    hidden = head.table.new_zeros(len(token), head.hidden_size or 0)
    _, latent = head.latent(head.initial_state(len(token)), token, hidden)
    assert latent is not None
    return latent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draw:
    """A random head in the making.

    Args:
        generator: of its numbers.
        table_rows: rows of the table.
        mapped: whether the draft vocabulary is a reduced one.
        target: target id of each draft id.
        predecessor: the token that favours each draft id.
    """

    generator: torch.Generator
    table_rows: int
    mapped: bool
    target: torch.Tensor
    predecessor: torch.Tensor

    @classmethod
    def start(
        cls, vocab: int, rank: int, table_rows: int | None, draft_vocab: int | None, seed: int
    ) -> Self:
        """Check the sizes and draw the successors."""
        table_rows = vocab if table_rows is None else table_rows
        num_draft = vocab if draft_vocab is None else draft_vocab
        check_rank("rank", rank)
        check_sizes(vocab, table_rows, num_draft)
        generator = torch.Generator().manual_seed(seed)
        target, predecessor = draw_successors(generator, vocab, num_draft)
        return cls(
            generator=generator,
            table_rows=table_rows,
            mapped=draft_vocab is not None,
            target=target,
            predecessor=predecessor,
        )

    def shared(self, *, columns: int, rank: int) -> TableWeights:
        """A table of deviation 1, and a projection of zeros until `favour`."""
        return {
            "table": self._normal(self.table_rows, columns).bfloat16(),
            "projection": torch.zeros(len(self.target), rank, dtype=torch.bfloat16),
            "draft_to_target": self.target if self.mapped else None,
            "logical_vocab": None,
        }

    def matrix(self, num_rows: int, *blocks: tuple[int, float]) -> torch.Tensor:
        """Blocks of columns side by side, bf16, each with its share in the deviation of a product.

        Args:
            num_rows: rows.
            blocks: columns, and the deviation of their product with elements of deviation 1.
        """
        parts = [
            self._normal(num_rows, columns) * (deviation / math.sqrt(max(columns, 1)))
            for columns, deviation in blocks
        ]
        return torch.cat(parts, 1).bfloat16()

    def vector(self, size: int) -> torch.Tensor:
        """A small bias, bf16."""
        return (self._normal(size) * 0.2).bfloat16()

    def favour(
        self,
        head: SomeHead,
        latent_of: Callable[[torch.Tensor], torch.Tensor],
        device: str | torch.device,
        *,
        bias: float = FAVOUR,
    ) -> SomeHead:
        """Give the head its projection: a bias for the successor of each token.

        Args:
            head: the head.
            latent_of: latents, bf16 [n, r], of tokens int64 [n].
            device: where its weights go.
            bias: of the successor, where the latent is that of the token alone.
        """
        latents = torch.cat(
            [latent_of(tokens) for tokens in torch.split(self.predecessor, _LATENTS_AT_ONCE)]
        ).float()
        own = latents - latents.mean(0)  # what they share favours every token alike
        squares = own.square().sum(1, keepdim=True).clamp_min(1e-6)
        projection = self._normal(*latents.shape) / latents.square().sum(1).mean().sqrt()
        projection += own * (bias / squares)
        made: SomeHead = replace(cast("Any", head), projection=projection.bfloat16())
        return with_weights(made, lambda weight: weight.to(device))

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

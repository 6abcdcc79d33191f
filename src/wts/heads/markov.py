"""The vanilla Markov head: a latent is the table row of the token before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch

from wts.dtypes import WeightType
from wts.heads.base import (
    Claim,
    DeviceSteps,
    HeadState,
    VocabularyWeights,
    as_bytes,
    describe_head,
    detach,
)
from wts.heads.checks import check_dtype, check_matrix, check_rank, check_vocabulary
from wts.heads.config import DrafterConfig
from wts.heads.draft_ids import D2tReading
from wts.heads.dspark import W1, W2, claims_dspark, open_dspark
from wts.heads.latent_rows import pack_latents
from wts.heads.random import FAVOUR, check_sizes, draw_successors
from wts.numerics.quantise import quantise_latents
from wts.numerics.torch_dtypes import DTYPES

__all__ = ["MarkovHead"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MarkovHead(VocabularyWeights):
    """The vanilla Markov head: the latent is the table row of the previous token.

    Weights are only read. A tensor that requires grad is detached (it shares its memory).

    Args:
        table: E, bf16 | fp16 | fp32 [V_table, r], `markov_w1` in checkpoints.
        projection: W, bf16 | fp16 | fp32 [V_rows, r], `markov_w2` in checkpoints.
        draft_to_target: int64 [V_rows], the target id (never an offset) of each draft id; None
            where the two vocabularies are one. Entries at and past `logical_vocab` are not read.
        logical_vocab: rows of `projection` at and past it are padding and never win; all rows can
            win by default.

    Raises:
        HeadError: names the argument, what was wanted, what came and what to do.
    """

    kind: ClassVar[str] = "markov"

    def __post_init__(self) -> None:
        check_matrix("table", self.table)
        check_matrix("projection", self.projection)
        check_rank("table", self.table.shape[1])
        check_vocabulary(self, rank=self.table.shape[1], rank_of="table")
        detach(self, ("table", "projection"))

    def __repr__(self) -> str:
        return describe_head(self)

    @property
    def hidden_size(self) -> None:
        """A Markov head reads no hidden states."""

    def initial_state(self, batch: int) -> None:
        """Return the state before the first step: a Markov head carries none."""

    def latent(
        self, state: HeadState, prev_token: torch.Tensor, hidden: torch.Tensor | None = None
    ) -> tuple[HeadState, torch.Tensor]:
        """Look up the table rows of the previous tokens.

        Args:
            state: carried over unchanged.
            prev_token: int64 [B]; a token outside the table is clamped into it.
            hidden: not used by this head.

        Returns:
            The state and the latents, [B, r] in the dtype of the table.
        """
        return state, self.rows_of(prev_token)

    def packed_rows(self, rows: torch.Tensor, weights: WeightType) -> torch.Tensor:
        """Pack table rows [n, r]: the latents themselves, quantised where weights are.

        Returns:
            uint8 [n, 2 r + 32], or [n, 2 r] with bf16 weights.
        """
        return as_bytes(rows) if weights == "bf16" else pack_latents(*quantise_latents(rows))

    def device_steps(self, device: torch.device) -> DeviceSteps:
        """Nothing is left to do: the row of a token is its latent."""
        return DeviceSteps()

    @classmethod
    def claims(cls, config: DrafterConfig) -> Claim:
        """Say whether this is a DSpark drafter's head of type "vanilla"."""
        return claims_dspark(config, "vanilla")

    @classmethod
    def from_checkpoint(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        d2t_reading: D2tReading = "auto",
    ) -> Self:
        """Read the head of a DeepSpec/SGLang style drafter folder.

        Wanted are config.json (`markov_rank`, `markov_head_type`, `vocab_size`, where reduced also
        `draft_vocab_size`) and safetensors, one file or shards with an index, that hold
        `markov_head.markov_w1.weight` and `markov_head.markov_w2.weight`, each perhaps behind
        `model.`. A reduced draft vocabulary needs a `d2t` tensor, read as `draft_map` says.
        Nothing else of the checkpoint is loaded.

        Args:
            folder: the drafter folder.
            device: where the weights go.
            d2t_reading: how `d2t` is meant, where the numbers alone leave it open.

        Returns:
            The head, in the dtypes of the checkpoint.

        Raises:
            CheckpointError: names the file, the tensor, what was wanted and what was found.
        """
        checkpoint, rank = open_dspark(folder, "vanilla")
        table = checkpoint.tensors.weight(
            W1, shape=(checkpoint.config.vocab_size, rank), dtypes=DTYPES, padded=True
        )[: checkpoint.config.vocab_size]
        shared = checkpoint.projection(W2, rank, device=device, d2t_reading=d2t_reading)
        return cls(table=table.to(device), **shared)

    @classmethod
    def random(
        cls,
        *,
        vocab: int,
        rank: int,
        table_rows: int | None = None,
        seed: int,
        dtype: torch.dtype = torch.bfloat16,
        device: str | torch.device = "cpu",
        draft_vocab: int | None = None,
    ) -> Self:
        """Draw a head for demonstrations, benchmarks and tests.

        Every token that can be drafted has one favoured successor with a bias of about 10; all
        other biases are noise of deviation 1, whose largest of 150,000 is about 4.5. So step logits
        are seldom near-tied (with plain noise most steps are, and equal tokens say little).
        The same arguments give the same weights on every device.

        Args:
            vocab: target vocabulary.
            rank: of the latent.
            table_rows: rows of the table, `vocab` by default, never fewer.
            seed: of the generator.
            dtype: of both matrices.
            device: where the weights go.
            draft_vocab: rows of the projection where the draft vocabulary is a reduced one; a
                random increasing map is drawn for it.

        Returns:
            The head.

        Raises:
            HeadError: sizes that do not fit each other.
        """
        table_rows = vocab if table_rows is None else table_rows
        num_draft = vocab if draft_vocab is None else draft_vocab
        check_rank("rank", rank)
        check_dtype("dtype", dtype)
        check_sizes(vocab, table_rows, num_draft)
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(table_rows, rank, generator=generator)
        projection = torch.randn(num_draft, rank, generator=generator) / math.sqrt(rank)
        target, predecessor = draw_successors(generator, vocab, num_draft)
        projection += table[predecessor] * (FAVOUR / rank)
        return cls(
            table=table.to(dtype).to(device),
            projection=projection.to(dtype).to(device),
            draft_to_target=None if draft_vocab is None else target.to(device),
        )

"""The gated head of DSpark: the formula, and what is left of it on the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
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
    copied,
    describe_head,
    detach,
    needed_hidden,
    product,
)
from wts.heads.checks import check_devices, check_joint, check_shape
from wts.heads.config import DrafterConfig
from wts.heads.draft_ids import D2tReading
from wts.heads.dspark import check_dspark, claims_dspark, open_dspark, read_dspark
from wts.heads.random import Draw, first_latent
from wts.numerics.activations import rounded, sigmoid
from wts.numerics.lane_sums import fine_product

__all__ = ["GatedHead", "GatedSteps"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatedHead(VocabularyWeights):
    """The gated head of DSpark: the table row, each element times a gate.

    latent = R(R(sigmoid(R(G [hidden; e] + g))) e), e the table row. No state is carried. Weights
    are only read; a tensor that requires grad is detached (it shares its memory).

    Args:
        table: E, bf16 [V_table, r], `markov_w1` in checkpoints.
        projection: W, bf16 [V_rows, r], `markov_w2`.
        gate_weight: G, bf16 [r, H + r], `gate_proj.weight`: columns of the hidden state first.
        gate_bias: g, bf16 [r], `gate_proj.bias`.
        draft_to_target: int64 [V_rows], as for a Markov head.
        logical_vocab: as for a Markov head.

    Raises:
        HeadError: names the argument, what was wanted, what came and what to do.

    Source:
        SGLang 0.5.23, sglang/srt/models/dspark.py.
    """

    kind: ClassVar[str] = "gated"

    gate_weight: torch.Tensor
    gate_bias: torch.Tensor

    def __post_init__(self) -> None:
        rank = check_dspark(self)
        check_joint("gate_weight", self.gate_weight, num_rows=rank, least=rank + 1)
        check_shape("gate_bias", self.gate_bias, (rank,))
        check_devices(self, ("gate_weight", "gate_bias"))
        detach(self, ("table", "projection", "gate_weight", "gate_bias"))

    def __repr__(self) -> str:
        return describe_head(self, hidden_size=self.hidden_size)

    @property
    def hidden_size(self) -> int:
        """H, the elements of a hidden state."""
        return self.gate_weight.shape[1] - self.rank

    @property
    def hidden_weight(self) -> torch.Tensor:
        """The columns of G that meet the hidden state, bf16 [r, H]."""
        return self.gate_weight[:, : self.hidden_size]

    @property
    def hidden_bias(self) -> torch.Tensor:
        """What is added to their product, bf16 [r]."""
        return self.gate_bias

    @property
    def input_weight(self) -> torch.Tensor:
        """The columns of G that meet the table row, bf16 [r, r]."""
        return self.gate_weight[:, self.hidden_size :]

    def initial_state(self, batch: int) -> None:
        """Return the state before the first step: a gated head carries none."""

    def latent(
        self, state: HeadState, prev_token: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor]:
        """Compute the gated table rows.

        Args:
            state: carried over unchanged.
            prev_token: int64 [B]; a token outside the table is clamped into it.
            hidden: bf16 [B, H].

        Returns:
            The state and the latents, bf16 [B, r].

        Raises:
            InputError: no hidden states.
        """
        row = self.rows_of(prev_token)
        joined = torch.cat([needed_hidden(hidden, self.hidden_size), row], 1)
        gate = rounded(product(self.gate_weight, joined) + self.gate_bias.float()).sigmoid()
        return state, (rounded(gate) * row.float()).to(torch.bfloat16)

    def packed_rows(self, rows: torch.Tensor, weights: WeightType) -> torch.Tensor:
        """Pack table rows, bf16 [n, r]: G_e e, fp32 [r], then e, bf16 [r].

        Returns:
            uint8 [n, 6 r].
        """
        product = fine_product(self.input_weight.to(rows.device), rows)
        return torch.cat([as_bytes(product), as_bytes(rows)], 1)

    def device_steps(self, device: torch.device) -> GatedSteps:
        """Copy the weights that steps need on the device."""
        return GatedSteps(
            hidden_weight=copied(self.hidden_weight, device),
            hidden_bias=copied(self.hidden_bias, device),
        )

    @classmethod
    def claims(cls, config: DrafterConfig) -> Claim:
        """Say whether this is a DSpark drafter's head of type "gated"."""
        return claims_dspark(config, "gated")

    @classmethod
    def from_checkpoint(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        d2t_reading: D2tReading = "auto",
    ) -> Self:
        """Read the head of a DSpark drafter folder whose `markov_head_type` is "gated".

        Wanted are what `MarkovHead.from_checkpoint` wants, `hidden_size` in config.json, and
        `markov_head.gate_proj.weight` and `.bias`; all weights in bf16.

        Args:
            folder: the drafter folder.
            device: where the weights go.
            d2t_reading: how `d2t` is meant, where the numbers alone leave it open.

        Returns:
            The head.

        Raises:
            CheckpointError: names the file, the tensor, what was wanted and what was found.
        """
        checkpoint, rank = open_dspark(folder, "gated")
        shared = read_dspark(checkpoint, rank, device, d2t_reading)
        columns = checkpoint.hidden_size + rank
        read = checkpoint.reader(device)
        return cls(
            **shared,
            gate_weight=read("markov_head.gate_proj.weight", (rank, columns)),
            gate_bias=read("markov_head.gate_proj.bias", (rank,)),
        )

    @classmethod
    def random(
        cls,
        *,
        vocab: int,
        rank: int,
        hidden_size: int,
        table_rows: int | None = None,
        seed: int,
        device: str | torch.device = "cpu",
        draft_vocab: int | None = None,
    ) -> Self:
        """Draw a head for demonstrations, benchmarks and tests, as `MarkovHead.random` does.

        Args:
            vocab: target vocabulary.
            rank: of the latent.
            hidden_size: H.
            table_rows: rows of the table, `vocab` by default, never fewer.
            seed: of the generator.
            device: where the weights go.
            draft_vocab: rows of the projection where the draft vocabulary is a reduced one.

        Returns:
            The head, well spread over hidden states of deviation 1.

        Raises:
            HeadError: sizes that do not fit each other.
        """
        draw = Draw.start(vocab, rank, table_rows, draft_vocab, seed)
        head = cls(
            **draw.shared(columns=rank, rank=rank),
            gate_weight=draw.matrix(rank, (hidden_size, 1.0), (rank, 1.0)),
            gate_bias=draw.vector(rank),
        )
        return draw.favour(head, partial(first_latent, head), device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatedSteps(DeviceSteps):
    """A gated head between its token and its latent.

    Args:
        hidden_weight: bf16 [r, H].
        hidden_bias: bf16 [r].
    """

    hidden_weight: torch.Tensor
    hidden_bias: torch.Tensor

    def latent(
        self, state: HeadState, rows: torch.Tensor, term: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor]:
        """R(R(sigmoid(R(term + G_e e))) e).

        Args:
            state: carried over unchanged.
            rows: uint8 [B, 6 r], packed rows of the tokens.
            term: fp32 [B, r], the hidden term of the step.

        Returns:
            The state and the latents, bf16 [B, r].
        """
        assert term is not None
        rank = term.shape[1]
        product = rows[:, : 4 * rank].contiguous().view(torch.float32)
        row = rows[:, 4 * rank :].contiguous().view(torch.bfloat16).float()
        gate = rounded(sigmoid(rounded(term + product)))
        return state, (gate * row).to(torch.bfloat16)

"""The RNN head of DSpark: the formula, and what is left of it on the device."""

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
from wts.numerics.activations import rounded, sigmoid, tanh
from wts.numerics.lane_sums import fine_product, lane_product

__all__ = ["RnnHead", "RnnSteps"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RnnHead(VocabularyWeights):
    """The RNN head of DSpark: a state of r elements, updated by each token and its hidden state.

    j = R(J [state; e; hidden] + b), e the table row, cut into gate, candidate and output; with
    s = R(sigmoid(gate)) and c = R(tanh(candidate)) the new state is R(R(s state) + R(R(1 - s) c)),
    and latent = R(tanh(output)). The state starts at 0. Weights are only read; a tensor that
    requires grad is detached (it shares its memory).

    Args:
        table: E, bf16 [V_table, r], `markov_w1` in checkpoints.
        projection: W, bf16 [V_rows, r], `markov_w2`.
        joint_weight: J, bf16 [3 r, 2 r + H], `joint_proj.weight`: rows of the gate, the candidate
            and the output; columns of the state, the table row and the hidden state.
        joint_bias: b, bf16 [3 r], `joint_proj.bias`.
        draft_to_target: int64 [V_rows], as for a Markov head.
        logical_vocab: as for a Markov head.

    Raises:
        HeadError: names the argument, what was wanted, what came and what to do.

    Source:
        SGLang 0.5.23, sglang/srt/models/dspark.py.
    """

    kind: ClassVar[str] = "rnn"

    joint_weight: torch.Tensor
    joint_bias: torch.Tensor

    def __post_init__(self) -> None:
        rank = check_dspark(self)
        check_joint("joint_weight", self.joint_weight, num_rows=3 * rank, least=2 * rank + 1)
        check_shape("joint_bias", self.joint_bias, (3 * rank,))
        check_devices(self, ("joint_weight", "joint_bias"))
        detach(self, ("table", "projection", "joint_weight", "joint_bias"))

    def __repr__(self) -> str:
        return describe_head(self, hidden_size=self.hidden_size)

    @property
    def state_size(self) -> int:
        """Elements of the state: those of a latent."""
        return self.rank

    @property
    def hidden_size(self) -> int:
        """H, the elements of a hidden state."""
        return self.joint_weight.shape[1] - 2 * self.rank

    @property
    def hidden_weight(self) -> torch.Tensor:
        """The columns of J that meet the hidden state, bf16 [3 r, H]."""
        return self.joint_weight[:, 2 * self.rank :]

    @property
    def hidden_bias(self) -> torch.Tensor:
        """What is added to their product, bf16 [3 r]."""
        return self.joint_bias

    @property
    def input_weight(self) -> torch.Tensor:
        """The columns of J that meet the table row, bf16 [3 r, r]."""
        return self.joint_weight[:, self.rank : 2 * self.rank]

    @property
    def state_weight(self) -> torch.Tensor:
        """The columns of J that meet the state, bf16 [3 r, r]."""
        return self.joint_weight[:, : self.rank]

    def initial_state(self, batch: int) -> torch.Tensor:
        """Return the state before the first step: bf16 zeros [B, r]."""
        return self.joint_bias.new_zeros(batch, self.rank)

    def latent(
        self, state: HeadState, prev_token: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the state.

        Args:
            state: bf16 [B, r].
            prev_token: int64 [B]; a token outside the table is clamped into it.
            hidden: bf16 [B, H].

        Returns:
            The new state and the latents, both bf16 [B, r].

        Raises:
            InputError: no hidden states.
        """
        assert isinstance(state, torch.Tensor)
        joined = torch.cat(
            [state, self.rows_of(prev_token), needed_hidden(hidden, self.hidden_size)], 1
        )
        joint = rounded(product(self.joint_weight, joined) + self.joint_bias.float())
        gate, candidate, output = joint.chunk(3, 1)
        gate, candidate = rounded(gate.sigmoid()), rounded(candidate.tanh())
        kept, taken = rounded(gate * state.float()), rounded(rounded(1.0 - gate) * candidate)
        return (kept + taken).to(torch.bfloat16), output.tanh().to(torch.bfloat16)

    def packed_rows(self, rows: torch.Tensor, weights: WeightType) -> torch.Tensor:
        """Pack table rows, bf16 [n, r]: J_e e, fp32 [3 r].

        Returns:
            uint8 [n, 12 r].
        """
        return as_bytes(fine_product(self.input_weight.to(rows.device), rows))

    def device_steps(self, device: torch.device) -> RnnSteps:
        """Copy the weights that steps need on the device."""
        return RnnSteps(
            hidden_weight=copied(self.hidden_weight, device),
            hidden_bias=copied(self.hidden_bias, device),
            state_weight=copied(self.state_weight, device),
        )

    @classmethod
    def claims(cls, config: DrafterConfig) -> Claim:
        """Say whether this is a DSpark drafter's head of type "rnn"."""
        return claims_dspark(config, "rnn")

    @classmethod
    def from_checkpoint(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        d2t_reading: D2tReading = "auto",
    ) -> Self:
        """Read the head of a DSpark drafter folder whose `markov_head_type` is "rnn".

        Wanted are what `MarkovHead.from_checkpoint` wants, `hidden_size` in config.json, and
        `markov_head.joint_proj.weight` and `.bias`; all weights in bf16.

        Args:
            folder: the drafter folder.
            device: where the weights go.
            d2t_reading: how `d2t` is meant, where the numbers alone leave it open.

        Returns:
            The head.

        Raises:
            CheckpointError: names the file, the tensor, what was wanted and what was found.
        """
        checkpoint, rank = open_dspark(folder, "rnn")
        shared = read_dspark(checkpoint, rank, device, d2t_reading)
        columns = 2 * rank + checkpoint.hidden_size
        read = checkpoint.reader(device)
        return cls(
            **shared,
            joint_weight=read("markov_head.joint_proj.weight", (3 * rank, columns)),
            joint_bias=read("markov_head.joint_proj.bias", (3 * rank,)),
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
            joint_weight=draw.matrix(3 * rank, (rank, 0.7), (rank, 1.5), (hidden_size, 0.5)),
            joint_bias=draw.vector(3 * rank),
        )
        return draw.favour(head, partial(first_latent, head), device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RnnSteps(DeviceSteps):
    """An RNN head between its token and its latent.

    Args:
        hidden_weight: bf16 [3 r, H].
        hidden_bias: bf16 [3 r].
        state_weight: bf16 [3 r, r].
    """

    hidden_weight: torch.Tensor
    hidden_bias: torch.Tensor
    state_weight: torch.Tensor

    def initial_state(self, batch: int) -> HeadState:
        """Return the state before the first step: bf16 zeros [B, r]."""
        return self.state_weight.new_zeros(batch, self.state_weight.shape[1])

    def latent(
        self, state: HeadState, rows: torch.Tensor, term: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor]:
        """j = R((term + J_s state) + J_e e), and the formula of the head from there.

        The first sum needs no token: it can be made while the step before is selecting one.

        Args:
            state: bf16 [B, r].
            rows: uint8 [B, 12 r], packed rows of the tokens.
            term: fp32 [B, 3 r], the hidden term of the step.

        Returns:
            The new state and the latents, both bf16 [B, r].
        """
        assert isinstance(state, torch.Tensor)
        assert term is not None
        early = term + lane_product(self.state_weight, state)
        joint = rounded(early + rows.contiguous().view(torch.float32))
        gate, candidate, output = joint.chunk(3, 1)
        gate, candidate = rounded(sigmoid(gate)), rounded(tanh(candidate))
        kept, taken = rounded(gate * state.float()), rounded(rounded(1.0 - gate) * candidate)
        return (kept + taken).to(torch.bfloat16), tanh(output).to(torch.bfloat16)

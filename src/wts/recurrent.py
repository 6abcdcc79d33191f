"""Heads that read hidden states: the gated and the RNN head of DSpark.

Each is frozen weights and one function, `latent`: the formula in torch, with the roundings of the
contract and no quantisation. What the device computes instead is in `wts.cells`. R() is one
rounding to bf16; what is not inside of one is fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import torch

from wts.activations import rounded
from wts.checkpoint import Checkpoint
from wts.draft_ids import D2tReading
from wts.draws import Draw
from wts.errors import InputError
from wts.heads import HeadState
from wts.numbers import HeadKind
from wts.weights import (
    BF16_ONLY,
    W1,
    W2,
    TableWeights,
    VocabularyParts,
    check_devices,
    check_joint,
    check_matrix,
    check_rank,
    check_shape,
    check_vocabulary,
    describe_head,
    detach,
    hidden_size_of,
    open_dspark,
    read_projection,
    reader,
)

__all__ = ["GatedHead", "RnnHead", "needed_hidden", "product"]


def product(weight: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """weight . vector, fp32 [B, n]: sums in fp32, in any order, rounded no further."""
    return vector.float() @ weight.float().T


def needed_hidden(hidden: torch.Tensor | None, size: int) -> torch.Tensor:
    """The hidden states, or an error where there are none."""
    if hidden is None:
        raise InputError.mismatch(
            "hidden",
            wanted=f"the drafter's hidden states, bfloat16 [.., {size}]",
            found="None",
            fix="pass them: this head reads one in each step",
        )
    return hidden


def _first_latent(head: GatedHead | RnnHead, token: torch.Tensor) -> torch.Tensor:
    """The latents [n, r] of a first step after tokens [n], at a hidden state of zeros."""
    hidden = head.table.new_zeros(1).expand(len(token), head.hidden_size)
    return head.latent(head.initial_state(len(token)), token, hidden)[1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatedHead(VocabularyParts):
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

    kind: ClassVar[HeadKind] = "gated"

    gate_weight: torch.Tensor
    gate_bias: torch.Tensor

    def __post_init__(self) -> None:
        rank = _check_dspark(self)
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
        shared = _read_dspark(checkpoint, rank, device, d2t_reading)
        columns = hidden_size_of(checkpoint) + rank
        read = reader(checkpoint, device)
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
        return draw.favour(head, partial(_first_latent, head), device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RnnHead(VocabularyParts):
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

    kind: ClassVar[HeadKind] = "rnn"

    joint_weight: torch.Tensor
    joint_bias: torch.Tensor

    def __post_init__(self) -> None:
        rank = _check_dspark(self)
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
        shared = _read_dspark(checkpoint, rank, device, d2t_reading)
        columns = 2 * rank + hidden_size_of(checkpoint)
        read = reader(checkpoint, device)
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
        return draw.favour(head, partial(_first_latent, head), device)


def _check_dspark(head: GatedHead | RnnHead) -> int:
    """What these heads share with a Markov head; gives the rank."""
    for name in ("table", "projection"):
        check_matrix(name, getattr(head, name), BF16_ONLY)
    rank = head.table.shape[1]
    check_rank("table", rank)
    check_vocabulary(head, rank=rank, rank_of="table")
    return rank


def _read_dspark(
    checkpoint: Checkpoint, rank: int, device: str | torch.device, reading: D2tReading
) -> TableWeights:
    vocab_size = checkpoint.config.vocab_size
    table = checkpoint.tensors.weight(W1, shape=(vocab_size, rank), dtypes=BF16_ONLY, padded=True)
    shared = read_projection(
        checkpoint, W2, rank, device=device, d2t_reading=reading, dtypes=BF16_ONLY
    )
    return {"table": table[:vocab_size].to(device), **shared}

"""The Domino head: a GRU over the tokens so far, and a projector of its state and a hidden state.

`latent` of the head is the formula; its steps have it as the device computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch

from wts.dtypes import WeightType
from wts.errors import CheckpointError, HeadError, describe
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
from wts.heads.checkpoint import Checkpoint, target_embedding
from wts.heads.checks import check_devices, check_matrix, check_rank, check_shape, check_vocabulary
from wts.heads.config import DrafterConfig, check_config_rank
from wts.heads.draft_ids import D2tReading
from wts.heads.random import FAVOUR, Draw
from wts.numerics.activations import rounded, sigmoid, silu, tanh
from wts.numerics.lane_sums import LANES, fine_product, lane_product
from wts.numerics.torch_dtypes import BF16_ONLY

__all__ = ["DominoHead", "DominoSteps"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DominoHead(VocabularyWeights):
    """The Domino head: a GRU over the embeddings of the tokens so far, and a projector.

    h = GRU(e, h), e the target's embedding of the previous token: with i = R(W_ih e) and
    g = R(W_hh h), each cut into r, z and n, and no bias, r = sigmoid(i_r + g_r),
    z = sigmoid(i_z + g_z), n = tanh(i_n + r g_n) and the new h = R(n + z (h - n)).
    latent = R(SiLU(R(P [hidden; h]))). The first step takes in the anchor and has no latent: its
    token is the plain winner of the base logits. h starts at 0. Weights are only read; a tensor
    that requires grad is detached (it shares its memory).

    Args:
        table: E, bf16 [V_table, H], the embedding of the target model.
        projection: W, bf16 [V_rows, r], `embed_proj.2.weight` in checkpoints.
        gru_input_weight: W_ih, bf16 [3 G, H], `prefix_gru.weight_ih_l0`.
        gru_state_weight: W_hh, bf16 [3 G, G], `prefix_gru.weight_hh_l0`; G is a multiple of 32.
        projector_weight: P, bf16 [r, H + G], `embed_proj.0.weight`: first the columns of the
            hidden state.
        shift_label: whether step k reads hidden position k of a drafted block, or else k + 1.
        draft_to_target: int64 [V_rows], as for a Markov head.
        logical_vocab: as for a Markov head.

    Raises:
        HeadError: names the argument, what was wanted, what came and what to do.

    Source:
        SGLang 0.5.23, sglang/srt/speculative/domino_utils.py and sglang/srt/models/dflash.py.
    """

    kind: ClassVar[str] = "domino"

    gru_input_weight: torch.Tensor
    gru_state_weight: torch.Tensor
    projector_weight: torch.Tensor
    shift_label: bool

    def __post_init__(self) -> None:
        for name in ("table", "projection"):
            check_matrix(name, getattr(self, name), BF16_ONLY)
        width = self.table.shape[1]
        check_matrix("gru_state_weight", self.gru_state_weight, BF16_ONLY)
        size = self.gru_state_weight.shape[1]
        if size < 1 or size % LANES:
            raise HeadError.mismatch(
                "gru_state_weight",
                wanted=f"[3 G, G], G a multiple of {LANES}",
                found=describe(self.gru_state_weight),
                fix="heads of other GRU sizes are not supported",
            )
        check_shape("gru_state_weight", self.gru_state_weight, (3 * size, size))
        check_shape("gru_input_weight", self.gru_input_weight, (3 * size, width))
        check_matrix("projector_weight", self.projector_weight, BF16_ONLY)
        rank = self.projector_weight.shape[0]
        check_rank("projector_weight", rank)
        check_shape("projector_weight", self.projector_weight, (rank, width + size))
        if not isinstance(self.shift_label, bool):
            raise HeadError.mismatch(
                "shift_label",
                wanted="True or False",
                found=repr(self.shift_label),
                fix="take it from the drafter's config.json",
            )
        check_vocabulary(self, rank=rank, rank_of="projector_weight")
        weights = ("gru_input_weight", "gru_state_weight", "projector_weight")
        check_devices(self, weights)
        detach(self, ("table", "projection", *weights))

    def __repr__(self) -> str:
        return describe_head(
            self,
            hidden_size=self.hidden_size,
            state_size=self.state_size,
            shift_label=self.shift_label,
        )

    @property
    def hidden_size(self) -> int:
        """H, the elements of a hidden state and of an embedding."""
        return self.table.shape[1]

    @property
    def state_size(self) -> int:
        """G, the elements of h."""
        return self.gru_state_weight.shape[1]

    @property
    def hidden_weight(self) -> torch.Tensor:
        """The columns of P that meet the hidden state, bf16 [r, H]."""
        return self.projector_weight[:, : self.hidden_size]

    @property
    def hidden_bias(self) -> None:
        """A projector has no bias."""

    @property
    def input_weight(self) -> torch.Tensor:
        """W_ih, which meets the table row, bf16 [3 G, H]."""
        return self.gru_input_weight

    @property
    def state_weight(self) -> torch.Tensor:
        """W_hh, which meets the state, bf16 [3 G, G]."""
        return self.gru_state_weight

    def initial_state(self, batch: int) -> None:
        """Return the state before the first step: None, which tells that there is no token yet."""

    def latent(
        self, state: HeadState, prev_token: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Take in a token, then project.

        Args:
            state: bf16 [B, G]; None at the first step, whose token is the anchor.
            prev_token: int64 [B]; a token outside the table is clamped into it.
            hidden: bf16 [B, H].

        Returns:
            The new state, bf16 [B, G], and the latents, bf16 [B, r]; None at the first step.

        Raises:
            InputError: no hidden states.
        """
        hidden = needed_hidden(hidden, self.hidden_size)
        first = state is None
        if first:
            state = self.table.new_zeros(len(prev_token), self.state_size)
        assert isinstance(state, torch.Tensor)
        inputs = rounded(product(self.gru_input_weight, self.rows_of(prev_token))).chunk(3, 1)
        states = rounded(product(self.gru_state_weight, state)).chunk(3, 1)
        reset, update = (inputs[0] + states[0]).sigmoid(), (inputs[1] + states[1]).sigmoid()
        new = (inputs[2] + reset * states[2]).tanh()
        state = (new + update * (state.float() - new)).to(torch.bfloat16)
        if first:
            return state, None
        joined = torch.cat([hidden, state], 1)
        projected = rounded(product(self.projector_weight, joined))
        return state, torch.nn.functional.silu(projected).to(torch.bfloat16)

    def packed_rows(self, rows: torch.Tensor, weights: WeightType) -> torch.Tensor:
        """Pack table rows, bf16 [n, H]: R(W_ih e), bf16 [3 G].

        Returns:
            uint8 [n, 6 G].
        """
        product = fine_product(self.input_weight.to(rows.device), rows)
        return as_bytes(product.to(torch.bfloat16))

    def device_steps(self, device: torch.device) -> DominoSteps:
        """Copy the weights that steps need on the device."""
        return DominoSteps(
            hidden_weight=copied(self.hidden_weight, device),
            state_weight=copied(self.state_weight, device),
            projector_weight=copied(self.projector_weight[:, self.hidden_size :], device),
        )

    def drafting_hidden(self, block_hidden: torch.Tensor) -> torch.Tensor:
        """Choose the hidden positions of a drafted block that a walk reads.

        Base logits have to be of the same positions.

        Args:
            block_hidden: [B, K + 1, H], the drafter's output for a block of K + 1 tokens.

        Returns:
            [B, K, H], a view: the first K positions where labels are shifted, else the last K.
        """
        return block_hidden[:, :-1] if self.shift_label else block_hidden[:, 1:]

    @classmethod
    def claims(cls, config: DrafterConfig) -> Claim:
        """Say whether this is a Domino drafter."""
        return Claim.NOT_MINE if config.domino is None else Claim.MINE

    @classmethod
    def from_checkpoint(
        cls,
        folder: str | Path,
        *,
        target: str | Path,
        device: str | torch.device = "cpu",
        d2t_reading: D2tReading = "auto",
    ) -> Self:
        """Read the head of a Domino drafter folder, and the embedding of its target model.

        Wanted are config.json with `vocab_size`, `hidden_size` and, in `dflash_config` or beside
        it, `projector_type` "domino", `emb_dim`, `gru_hidden_dim`, `shift_label` and
        `pure_draft_prefix_len` 1; and safetensors with `prefix_gru.weight_ih_l0`,
        `prefix_gru.weight_hh_l0`, `embed_proj.0.weight` and `embed_proj.2.weight`, each perhaps
        behind `model.`; in the target's folder `embed_tokens.weight`. All weights in bf16.

        Args:
            folder: the drafter folder.
            target: the folder of the model that it drafts for.
            device: where the weights go.
            d2t_reading: how `d2t` is meant, where the numbers alone leave it open.

        Returns:
            The head.

        Raises:
            CheckpointError: names the file, the tensor, what was wanted and what was found.
        """
        checkpoint = Checkpoint.open(folder)
        fields, rank = checkpoint.config.domino, checkpoint.config.rank
        if fields is None:
            raise CheckpointError.mismatch(
                f"{checkpoint.config_path}: dflash_config.projector_type",
                wanted="'domino'",
                found="something else",
                fix="read a DSpark drafter with MarkovHead, GatedHead or RnnHead",
            )
        size, width = fields.gru_hidden_dim, checkpoint.hidden_size
        check_config_rank(f"{checkpoint.config_path}: dflash_config.emb_dim", rank)
        read = checkpoint.reader(device)
        shared = checkpoint.projection(
            "embed_proj.2.weight", rank, device=device, d2t_reading=d2t_reading, dtypes=BF16_ONLY
        )
        rows = checkpoint.config.vocab_size
        return cls(
            **shared,
            gru_input_weight=read("prefix_gru.weight_ih_l0", (3 * size, width)),
            gru_state_weight=read("prefix_gru.weight_hh_l0", (3 * size, size)),
            projector_weight=read("embed_proj.0.weight", (rank, width + size)),
            table=target_embedding(target, num_rows=rows, num_columns=width).to(device),
            shift_label=fields.shift_label,
        )

    @classmethod
    def random(
        cls,
        *,
        vocab: int,
        rank: int,
        hidden_size: int,
        state_size: int,
        shift_label: bool = False,
        table_rows: int | None = None,
        seed: int,
        device: str | torch.device = "cpu",
        draft_vocab: int | None = None,
    ) -> Self:
        """Draw a head for demonstrations, benchmarks and tests, as `MarkovHead.random` does.

        Its logits are less spread than those of other heads: earlier tokens have their say.

        Args:
            vocab: target vocabulary.
            rank: of the latent.
            hidden_size: H.
            state_size: G.
            shift_label: as in the head.
            table_rows: rows of the table, `vocab` by default, never fewer.
            seed: of the generator.
            device: where the weights go.
            draft_vocab: rows of the projection where the draft vocabulary is a reduced one.

        Returns:
            The head, for hidden states of deviation 1.

        Raises:
            HeadError: sizes that do not fit each other.
        """
        draw = Draw.start(vocab, rank, table_rows, draft_vocab, seed)
        head = cls(
            **draw.shared(columns=hidden_size, rank=rank),
            gru_input_weight=draw.matrix(3 * state_size, (hidden_size, 1.5)),
            gru_state_weight=draw.matrix(3 * state_size, (state_size, 0.7)),
            projector_weight=draw.matrix(rank, (hidden_size, 0.3), (state_size, 4.0)),
            shift_label=shift_label,
        )
        zero = head.table.new_zeros(1)

        def latent_of(token: torch.Tensor) -> torch.Tensor:
            """The latent after one token alone, at a hidden state of zeros."""
            batch = len(token)
            state = zero.expand(batch, state_size)
            latent = head.latent(state, token, zero.expand(batch, hidden_size))[1]
            assert latent is not None
            return latent

        # Half of h is of earlier tokens, which favours others.
        return draw.favour(head, latent_of, device, bias=2 * FAVOUR)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DominoSteps(DeviceSteps):
    """A Domino head between its token and its latent.

    Args:
        hidden_weight: bf16 [r, H].
        state_weight: W_hh, bf16 [3 G, G].
        projector_weight: P_h, the columns of P that meet h, bf16 [r, G].
    """

    hidden_weight: torch.Tensor
    state_weight: torch.Tensor
    projector_weight: torch.Tensor

    def latent(
        self, state: HeadState, rows: torch.Tensor, term: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor | None]:
        """Take in a token, then R(SiLU(R(term + P_h h))).

        R(W_hh h) needs no token: it can be made while the step before is selecting one. Each
        operation in the order of its parentheses: r = sigmoid(i_r + g_r), z = sigmoid(i_z + g_z),
        n = tanh(i_n + (r g_n)), h = R(n + (z (h - n))).

        Args:
            state: bf16 [B, G]; None at the first step: there is no token yet.
            rows: uint8 [B, 6 G], packed rows of the tokens.
            term: fp32 [B, r], the hidden term of the step.

        Returns:
            The new state, bf16 [B, G], and the latents, bf16 [B, r]; None at the first step.
        """
        first = state is None
        if first:
            state = self.state_weight.new_zeros(len(rows), self.state_weight.shape[1])
        assert isinstance(state, torch.Tensor)
        inputs = rows.contiguous().view(torch.bfloat16).float().chunk(3, 1)
        states = rounded(lane_product(self.state_weight, state)).chunk(3, 1)
        reset, update = sigmoid(inputs[0] + states[0]), sigmoid(inputs[1] + states[1])
        new = tanh(inputs[2] + reset * states[2])
        state = (new + update * (state.float() - new)).to(torch.bfloat16)
        if first:
            return state, None
        assert term is not None
        projected = rounded(term + lane_product(self.projector_weight, state))
        return state, silu(projected).to(torch.bfloat16)

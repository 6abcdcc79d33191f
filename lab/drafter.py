"""A parallel block drafter on hidden states of the target, and the serial heads on top of it.

The backbone reads, at each block, the target's hidden states of the tokens before the anchor, and
one query per position: the anchor's embedding, then that of the mask token. Queries see the context
and one another. Names are those of the checkpoints that SGLang loads as Qwen3DSparkModel and
DFlashDraftModel. In training the tokens before a step are those of the text.

Source:
    SGLang 0.5.23, sglang/srt/models/dflash.py and dspark.py.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from lab.config import DrafterShape, TargetShape
from lab.target import AttentionWeights, Cache, Mlp, Norm, Rotary, split_heads

__all__ = ["Drafter"]


class BlockAttention(AttentionWeights):
    """Attention of the queries of blocks to the context before each, and to their own block."""

    def context(
        self, features: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of context features [B, S, hidden]: [B, kv_heads, S, head_dim]."""
        key = self.k_norm(split_heads(self.k_proj(features), self.kv_heads))
        return Rotary.turn(key, angles), split_heads(self.v_proj(features), self.kv_heads)

    def forward(
        self,
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        context: tuple[torch.Tensor, torch.Tensor],
        anchors: torch.Tensor,
    ) -> torch.Tensor:
        """Attend.

        Args:
            x: [B, N, Q, hidden], normalised input of the queries of N blocks.
            angles: of their positions.
            context: keys and values of all positions, [B, kv_heads, S, head_dim].
            anchors: int64 [B, N]: a block sees the context before this position.
        """
        _, blocks, queries, _ = x.shape
        group = self.heads // self.kv_heads
        query = Rotary.turn(self.q_norm(split_heads(self.q_proj(x), self.heads)), angles)
        key = Rotary.turn(self.k_norm(split_heads(self.k_proj(x), self.kv_heads)), angles)
        value = split_heads(self.v_proj(x), self.kv_heads)
        key, value = key.repeat_interleave(group, 2), value.repeat_interleave(group, 2)
        far_key = context[0].repeat_interleave(group, 1).to(query.dtype)
        far_value = context[1].repeat_interleave(group, 1).to(query.dtype)
        # All blocks' queries side by side meet the context in one product per head.
        rows = query.transpose(1, 2).flatten(2, 3)
        far = rows @ far_key.transpose(-1, -2)
        far = far.view(*far.shape[:2], blocks, queries, far.shape[-1])
        near = (query @ key.transpose(-1, -2)).transpose(1, 2)
        unseen = torch.arange(far.shape[-1], device=x.device) >= anchors[..., None]
        far = far.masked_fill(unseen[:, None, :, None, :], -math.inf)
        scores = torch.cat([far, near.to(far.dtype)], -1) / math.sqrt(query.shape[-1])
        shares = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        far_shares, near_shares = shares[..., :-queries], shares[..., -queries:]
        mixed = far_shares.flatten(2, 3) @ far_value
        mixed = mixed.view(*mixed.shape[:2], blocks, queries, mixed.shape[-1])
        mixed = mixed + (near_shares.transpose(1, 2) @ value).transpose(1, 2)
        projected: torch.Tensor = self.o_proj(mixed.permute(0, 2, 3, 1, 4).flatten(3))
        return projected


class BlockLayer(nn.Module):
    """One layer of the backbone."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden)
        self.self_attn = BlockAttention(shape)
        self.post_attention_layernorm = Norm(shape.hidden)
        self.mlp = Mlp(shape.hidden, shape.intermediate)


class MarkovWeights(nn.Module):
    """The weights of the heads of DSpark."""

    def __init__(self, vocab: int, hidden: int, shape: DrafterShape) -> None:
        super().__init__()
        rank = shape.rank
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, vocab, bias=False)
        if shape.kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        if shape.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)


class Drafter(nn.Module):
    """The drafter; embedding and output projection are those of its target.

    Args:
        target: sizes of the target.
        shape: its own sizes.
    """

    def __init__(self, target: TargetShape, shape: DrafterShape) -> None:
        super().__init__()
        self.target_shape, self.shape = target, shape
        self.layers = nn.ModuleList(BlockLayer(target) for _ in range(shape.layers))
        self.norm = Norm(target.hidden)
        self.fc = nn.Linear(len(shape.target_layers) * target.hidden, target.hidden, bias=False)
        self.hidden_norm = Norm(target.hidden)
        self.rotary = Rotary(target.head_dim, target.rope_theta)
        if shape.kind == "domino":
            self.prefix_gru = nn.GRU(target.hidden, shape.state, bias=False, batch_first=True)
            self.embed_proj = nn.Sequential(
                nn.Linear(target.hidden + shape.state, shape.rank, bias=False),
                nn.SiLU(),
                nn.Linear(shape.rank, target.vocab, bias=False),
            )
        else:
            self.markov_head = MarkovWeights(target.vocab, target.hidden, shape)

    @property
    def projection(self) -> torch.Tensor:
        """W, [vocab, r]."""
        last = self.embed_proj[2] if self.shape.kind == "domino" else self.markov_head.markov_w2
        assert isinstance(last.weight, torch.Tensor)
        return last.weight

    def initialise(self, seed: int) -> None:
        """Draw all weights; the projection is zero, so that training starts from base logits."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            with torch.no_grad():
                if weight is self.projection or name.endswith("bias"):
                    weight.zero_()
                elif weight.ndim > 1:
                    deviation = 1.0 if "markov_w1" in name else 0.6 / math.sqrt(weight.shape[1])
                    if name.endswith(("o_proj.weight", "down_proj.weight")):
                        deviation /= math.sqrt(2 * self.shape.layers)
                    weight.copy_(torch.randn(weight.shape, generator=generator) * deviation)

    # ---- the backbone ----------------------------------------------------------------------------

    def features(self, target_hidden: torch.Tensor) -> torch.Tensor:
        """Context features [B, S, hidden] of the target's hidden states [B, S, hidden layers]."""
        normed: torch.Tensor = self.hidden_norm(self.fc(target_hidden))
        return normed

    def context(
        self, target_hidden: torch.Tensor, positions: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer for target hidden states at positions [B, S]."""
        features, angles = self.features(target_hidden), self.rotary.angles(positions)
        return [layer.self_attn.context(features, angles) for layer in self.layers]  # type: ignore[union-attr, operator]

    def draft_hidden(
        self,
        anchor_embedding: torch.Tensor,
        mask_embedding: torch.Tensor,
        anchors: torch.Tensor,
        context: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Run the backbone over blocks.

        Args:
            anchor_embedding: [B, N, hidden], of the token at each anchor.
            mask_embedding: [hidden].
            anchors: int64 [B, N], positions.
            context: keys and values of each layer.

        Returns:
            [B, N, K, hidden], at the positions that a walk reads.
        """
        queries = self.shape.queries
        masks = mask_embedding.expand(*anchors.shape, queries - 1, -1)
        x = torch.cat([anchor_embedding[:, :, None], masks], 2)
        positions = anchors[..., None] + torch.arange(queries, device=anchors.device)
        angles = self.rotary.angles(positions)
        for layer, (key, value) in zip(self.layers, context, strict=True):
            assert isinstance(layer, BlockLayer)
            x = x + layer.self_attn(layer.input_layernorm(x), angles, (key, value), anchors)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        first = self.shape.first
        normed: torch.Tensor = self.norm(x[:, :, first : first + self.shape.steps])
        return normed

    # ---- the heads, over tokens that are known ---------------------------------------------------

    def latents(
        self, hidden: torch.Tensor, prev: torch.Tensor, prev_embedding: torch.Tensor
    ) -> torch.Tensor:
        """Latents of all steps of blocks whose tokens are known.

        Args:
            hidden: [M, K, hidden].
            prev: int64 [M, K], the token before each step.
            prev_embedding: [M, K, hidden], their embeddings of the target; read by Domino.

        Returns:
            [M, K, r]; zero at Domino's first step.
        """
        if self.shape.kind == "domino":
            states, _ = self.prefix_gru(prev_embedding.to(self.projection.dtype))
            projected = self.embed_proj[0](torch.cat([hidden, states.to(hidden.dtype)], -1))
            latent = functional.silu(projected)
            return torch.cat([torch.zeros_like(latent[:, :1]), latent[:, 1:]], 1)
        head = self.markov_head
        row = head.markov_w1(prev)
        if self.shape.kind == "gated":
            gate = head.gate_proj(torch.cat([hidden, row.to(hidden.dtype)], -1)).sigmoid()
            gated: torch.Tensor = gate * row
            return gated
        if self.shape.kind == "rnn":
            return self._rnn_latents(hidden, row.to(hidden.dtype))
        plain: torch.Tensor = row
        return plain

    def _rnn_latents(self, hidden: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        joint, rank = self.markov_head.joint_proj, self.shape.rank
        assert isinstance(joint, nn.Linear)
        state = row.new_zeros(len(row), rank)
        # Columns of the state come first; what needs no state is one product for all steps.
        known = functional.linear(torch.cat([row, hidden], -1), joint.weight[:, rank:], joint.bias)
        latents = []
        for step in range(hidden.shape[1]):
            joined = known[:, step] + functional.linear(state, joint.weight[:, :rank])
            gate, candidate, output = joined.chunk(3, -1)
            gate = gate.sigmoid()
            state = (gate * state + (1 - gate) * candidate.tanh()).to(row.dtype)
            latents.append(output.tanh())
        return torch.stack(latents, 1)

    def new_cache(self, batch: int, length: int) -> Cache:
        """A cache of the context of requests of up to `length` tokens."""
        weight, shape = self.fc.weight, self.target_shape
        return Cache.empty(
            layers=self.shape.layers,
            batch=batch,
            kv_heads=shape.kv_heads,
            length=length,
            head_dim=shape.head_dim,
            dtype=weight.dtype,
            device=weight.device,
        )

"""A Qwen3 model in plain torch, with the names and the formulas of Qwen3ForCausalLM.

One class trains it (whole sequences) and serves it (a cache of keys and values, each request at its
own position). Weights may be fp32 with products under autocast, or bf16 throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import nn
from torch.nn import functional

from lab.config import TargetShape

__all__ = ["Cache", "Mlp", "Norm", "Rotary", "Target", "split_heads"]

_EPSILON = 1e-6


class Norm(nn.Module):
    """Root-mean-square normalisation, in fp32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension; gives the dtype of x."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPSILON)
        return (scaled * self.weight.float()).to(x.dtype)


class Rotary:
    """Rotary angles of positions, the two halves of a head turned against each other."""

    def __init__(self, head_dim: int, theta: float) -> None:
        self.frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of positions [..., T]: fp32 [..., 1, T, head_dim], for all heads."""
        self.frequencies = self.frequencies.to(positions.device)
        angle = positions[..., None].double() * self.frequencies
        both = torch.cat([angle, angle], -1)[..., None, :, :]
        return both.cos().float(), both.sin().float()

    @staticmethod
    def turn(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Turn x, [..., heads, T, head_dim]."""
        cos, sin = angles
        low, high = x.float().chunk(2, -1)
        return (x * cos + torch.cat([-high, low], -1) * sin).to(x.dtype)


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[..., T, heads d] to [..., heads, T, d]."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)


class Mlp(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """SiLU(gate) up, projected down."""
        down: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


@dataclass(slots=True, kw_only=True)
class Cache:
    """Keys and values of each layer, [B, kv_heads, L, head_dim]; rows are those of positions.

    What lies behind the position that is being computed is stale and never read.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @classmethod
    def empty(
        cls,
        *,
        layers: int,
        batch: int,
        kv_heads: int,
        length: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Self:
        """A cache with room for `length` positions."""
        shape = (batch, kv_heads, length, head_dim)

        def room() -> list[torch.Tensor]:
            return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]

        return cls(keys=room(), values=room())

    def write(
        self, layer: int, positions: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Put keys and values [B, kv_heads, T, head_dim] at positions [B, T]."""
        index = positions[:, None, :, None].expand_as(key)
        self.keys[layer].scatter_(2, index, key.to(self.keys[layer].dtype))
        self.values[layer].scatter_(2, index, value.to(self.values[layer].dtype))


class AttentionWeights(nn.Module):
    """The projections of an attention layer, and the norms of its queries and keys."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden, bias=False)
        self.q_norm = Norm(shape.head_dim)
        self.k_norm = Norm(shape.head_dim)


class Attention(AttentionWeights):
    """Causal attention with normalised queries and keys."""

    def forward(
        self,
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        positions: torch.Tensor,
        cache: Cache | None,
        layer: int,
    ) -> torch.Tensor:
        """Attend to earlier tokens, [B, T, hidden]: of the sequence, or of the cache."""
        query = Rotary.turn(self.q_norm(split_heads(self.q_proj(x), self.heads)), angles)
        key = Rotary.turn(self.k_norm(split_heads(self.k_proj(x), self.kv_heads)), angles)
        value = split_heads(self.v_proj(x), self.kv_heads)
        mask = None
        if cache is not None:
            cache.write(layer, positions, key, value)
            key, value = cache.keys[layer], cache.values[layer]
            known = torch.arange(key.shape[2], device=x.device)
            mask = known <= positions[:, None, :, None]
        group = self.heads // self.kv_heads
        mixed = functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(group, 1).to(query.dtype),
            value.repeat_interleave(group, 1).to(query.dtype),
            attn_mask=mask,
            is_causal=cache is None,
        )
        projected: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return projected


class Layer(nn.Module):
    """One layer of the target."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden)
        self.mlp = Mlp(shape.hidden, shape.intermediate)


class Target(nn.Module):
    """The model; its output projection is its embedding.

    Args:
        shape: its sizes.
    """

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        self.rotary = Rotary(shape.head_dim, shape.rope_theta)

    def initialise(self, seed: int) -> None:
        """Draw all weights; what adds to the residual stream is smaller the deeper the model."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.ndim < 2:
                continue
            deviation = 0.02
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                deviation /= (2 * self.shape.layers) ** 0.5
            drawn = torch.randn(weight.shape, generator=generator) * deviation
            with torch.no_grad():
                weight.copy_(drawn)

    def forward(
        self,
        ids: torch.Tensor,
        *,
        read: tuple[int, ...] = (),
        positions: torch.Tensor | None = None,
        cache: Cache | None = None,
        dtype: torch.dtype | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the model.

        Args:
            ids: int64 [B, T].
            read: layers whose outputs are wanted.
            positions: int64 [B, T]; 0.. T-1 by default.
            cache: of earlier positions, which also takes these in; None for whole sequences.
            dtype: of the residual stream; that of the embedding by default.

        Returns:
            The normalised output [B, T, hidden], and the outputs of the layers of `read`
            [B, T, hidden len(read)], side by side; None where none are wanted.
        """
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        angles = self.rotary.angles(positions)
        x = self.embed_tokens(ids)
        x = x if dtype is None else x.to(dtype)
        outputs = []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            mixed = layer.self_attn(layer.input_layernorm(x), angles, positions, cache, number)
            x = x + mixed
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if number in read:
                outputs.append(x)
        return self.norm(x), torch.cat(outputs, -1) if outputs else None

    def new_cache(self, batch: int, length: int) -> Cache:
        """A cache for requests of up to `length` tokens."""
        weight = self.embed_tokens.weight
        return Cache.empty(
            layers=self.shape.layers,
            batch=batch,
            kv_heads=self.shape.kv_heads,
            length=length,
            head_dim=self.shape.head_dim,
            dtype=weight.dtype,
            device=weight.device,
        )

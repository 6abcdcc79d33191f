"""What a head may be: names of its kinds and number types, and ranks, where there is no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

__all__ = [
    "HEAD_KINDS",
    "NUMBER_BYTES",
    "NUMBER_TYPES",
    "RANKS",
    "WEIGHT_BYTES",
    "WEIGHT_TYPES",
    "HeadKind",
    "NumberType",
    "WeightType",
]

RANKS = (64, 128, 256, 512)
"""Ranks of the latent that are supported."""

NumberType: TypeAlias = Literal["bf16", "fp16", "fp32"]
"""Names of dtypes in plans, kernels and records; `wts.heads.DTYPE_OF` gives the dtype."""

NUMBER_BYTES: Mapping[NumberType, int] = MappingProxyType({"bf16": 2, "fp16": 2, "fp32": 4})
"""Bytes of one number of each type."""

NUMBER_TYPES = tuple(NUMBER_BYTES)
"""All number types; the kernel knows them by their places here."""

WeightType: TypeAlias = Literal["int8", "bf16"]
"""What rows of the projection are kept as: quantised, or the head's own numbers."""

WEIGHT_BYTES: Mapping[WeightType, int] = MappingProxyType({"int8": 1, "bf16": 2})
"""Bytes of one weight of each type."""

WEIGHT_TYPES = tuple(WEIGHT_BYTES)
"""All types of weights."""

HeadKind: TypeAlias = Literal["markov", "gated", "rnn", "domino"]
HEAD_KINDS: tuple[HeadKind, ...] = ("markov", "gated", "rnn", "domino")
"""What gives a walk its latents, in the order in which the kernel counts them."""

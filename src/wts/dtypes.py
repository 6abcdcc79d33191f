"""Number and weight types: their names and their bytes; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

__all__ = [
    "NUMBER_BYTES",
    "NUMBER_TYPES",
    "WEIGHT_BYTES",
    "WEIGHT_TYPES",
    "NumberType",
    "WeightType",
]

NumberType: TypeAlias = Literal["bf16", "fp16", "fp32"]
"""Names of dtypes in plans, kernels and records; `DTYPE_OF` of numerics gives the dtype."""

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

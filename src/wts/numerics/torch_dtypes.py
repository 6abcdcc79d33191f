"""The dtypes that names of number types stand for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from wts.dtypes import NumberType

__all__ = ["BF16_ONLY", "DTYPES", "DTYPE_OF", "NUMBER_TYPE_OF"]

DTYPE_OF: Mapping[NumberType, torch.dtype] = MappingProxyType(
    {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
)
"""The dtype that a name stands for."""

NUMBER_TYPE_OF: Mapping[torch.dtype, NumberType] = MappingProxyType(
    {dtype: name for name, dtype in DTYPE_OF.items()}
)
"""The name of a dtype."""

DTYPES = tuple(NUMBER_TYPE_OF)
"""Dtypes that weights may have."""

BF16_ONLY = (torch.bfloat16,)
"""Dtypes that weights of heads may have whose roundings are to bf16."""

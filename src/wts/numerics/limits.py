"""Numbers of the contract that planner, emulator and kernel all name; no torch."""

from __future__ import annotations

__all__ = [
    "LARGEST_EXACT_PRODUCT",
    "LEAST_EXACT_PRODUCT",
    "LEAST_TEMPERATURE",
    "SLAB_BYTES",
]

SLAB_BYTES = 32  # of a row in one matrix instruction: 32 int8 weights, or 16 in bf16
LEAST_TEMPERATURE = 1e-5  # of a sampled row; the contract's clamp

# Of a row's scale and a latent's, and of their lengths: bounds hold in between (exact.py).
LEAST_EXACT_PRODUCT, LARGEST_EXACT_PRODUCT = 2.0**-120, 2.0**126

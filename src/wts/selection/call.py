"""The tensors of one walk, as a Walker has checked them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from wts.numerics.gumbel import Noise

__all__ = ["Call"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """What one walk is given.

    Args:
        base_logits: bf16 | fp16 | fp32 [B, K, V'], V' at least the head's vocabulary.
        anchor: int64 [B], the token before the first step.
        hidden: bf16 [B, K, H], of a head that reads hidden states; else None.
        temperatures: fp32 [B], under a sampled plan; else None.
        noise: where the noise of sampled rows comes from, under a sampled plan; else None.
        logits_out: [B, K, V'] in the step's type, where sampled rows leave their step logits; or
            None.
    """

    base_logits: torch.Tensor
    anchor: torch.Tensor
    hidden: torch.Tensor | None = None
    temperatures: torch.Tensor | None = None
    noise: Noise | None = None
    logits_out: torch.Tensor | None = None

    @property
    def batch(self) -> int:
        """B, its requests."""
        return self.base_logits.shape[0]

    @property
    def steps(self) -> int:
        """K, its steps."""
        return self.base_logits.shape[1]

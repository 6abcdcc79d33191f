"""How far the int8 head may be from the formula: the package's own bound, under its old name."""

from __future__ import annotations

from wts.numerics.intervals import U32, decided, logit_bound

__all__ = ["U32", "decided", "logit_bound"]

"""sigmoid, tanh and SiLU, written so that the device repeats them bit for bit.

One definition in fp32 additions, multiplications and divisions, each rounded by itself, none fused:
any two IEEE machines agree. No library's exp is asked.

exp(y) = 2^n (1 + q), n the integer nearest to y / ln 2, f = y - n ln 2 in two steps, and q the
Taylor polynomial of exp(f) - 1 up to f^7. Where |f| <= ln(2) / 2 what it leaves out is below
f^8 / 8! < 5.3e-9, a third of 2^-24 of q itself. tanh is made of q, not of 1 + q, so that it keeps
its relative precision near 0.

Divisions are kept where neither they nor their remainders leave the normal numbers: then the device
divides by a few multiplications without a branch, and several elements at once. So arguments of
sigmoid and SiLU below -80 count as -80, and tanh divides 2^64 times its numerator.

Relative errors, in units of 2^-23: exp below 1, sigmoid and SiLU below 2, tanh below 3, where the
result is a normal number. Below -80 sigmoid is 1.8e-35 and SiLU -1.4e-33, which are also their
absolute errors. All are rounded to bf16 afterwards, 2^15 times coarser.
"""

from __future__ import annotations

import torch

__all__ = ["exponential", "rounded", "sigmoid", "silu", "tanh"]

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693359375  # nine bits: a product with n is exact
_LN2_LOW = -2.12194440054690583e-4
_LARGEST = 104.0  # exp of it is infinite, of its negative 0
_TANH_IS_ONE = 32.0
_LEAST = -80.0  # of sigmoid and SiLU
_FAR_FROM_ZERO = 2.0**64

# 1/7!, 1/6!, ... 1/2!
_TAYLOR = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2)


def rounded(value: torch.Tensor) -> torch.Tensor:
    """R(): fp32 rounded once to bf16, as fp32."""
    return value.to(torch.bfloat16).float()


def _at_most(x: torch.Tensor, limit: float) -> torch.Tensor:
    """The smaller one; NaN stays NaN."""
    return torch.where(x > limit, torch.full_like(x, limit), x)


def _reduced(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, and two powers of 2 whose product is 2^n: exp(y) = 2^n (1 + q). NaN gives q = NaN.

    Args:
        y: fp32, at most 104 in size.
    """
    n = (y * _LOG2_E).round()  # ties to even
    f = (y - n * _LN2_HIGH) - n * _LN2_LOW
    p = torch.full_like(f, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        p = p * f + coefficient
    q = (p * f) * f + f
    # 2^150 is no fp32 number: two factors, each of at most 2^75.
    whole = n.nan_to_num(0.0).to(torch.int32)
    half = whole >> 1
    return q, _power_of_two(half), _power_of_two(whole - half)


def _power_of_two(n: torch.Tensor) -> torch.Tensor:
    return ((n + 127) << 23).view(torch.float32)


def exponential(y: torch.Tensor) -> torch.Tensor:
    """exp(y); infinite from 88.73 up.

    Args:
        y: fp32, any shape, any value.

    Returns:
        fp32 of the same shape.
    """
    y = -_at_most(-_at_most(y, _LARGEST), _LARGEST)
    q, one, other = _reduced(y)
    return ((1.0 + q) * one) * other


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)).

    Args:
        x: fp32, any shape, any value.

    Returns:
        fp32 of the same shape.
    """
    below = 1.0 + exponential(_at_most(-x, -_LEAST))
    return torch.ones_like(below) / below


def silu(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + exp(-x)); NaN at -inf, as a product of x and its sigmoid is.

    Args:
        x: fp32, any shape, any value.

    Returns:
        fp32 of the same shape.
    """
    least = -_at_most(-x, -_LEAST)
    return torch.where(x.abs() < torch.inf, least / (1.0 + exponential(-least)), x + torch.inf)


def tanh(x: torch.Tensor) -> torch.Tensor:
    """m / (m + 2) with m = exp(2 |x|) - 1 = 2^n q + (2^n - 1), and the sign of x.

    Args:
        x: fp32, any shape, any value.

    Returns:
        fp32 of the same shape.
    """
    size = x.abs()
    q, one, other = _reduced(_at_most(size + size, _TANH_IS_ONE))
    power = one * other  # at most 2^46: exact, and so is what follows up to 2^24
    m = power * q + (power - 1.0)
    quotient = (m * _FAR_FROM_ZERO) / (m + 2.0)
    return torch.copysign(quotient * (1.0 / _FAR_FROM_ZERO), x)

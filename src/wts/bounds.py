"""How far the int8 head may be from the formula, derived from the roundings that it makes."""

from __future__ import annotations

import torch

from wts.heads import Head

__all__ = ["U32", "decided", "logit_bound"]

U32 = 2.0**-24
# Significand: half a unit in the last place of 1, and half the distance of the smallest numbers.
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: U32}
TINY = {torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25, torch.float32: 2.0**-150}
FLOOR = 1e-30


def logit_bound(head: Head, base: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """The largest |int8 step logit - reference step logit|, fp64 [B, V].

    Symbols: row w of W, latent u, r elements; s_w = max|w| / 127 and s_u = max|u| / 32639 (each
    at least 1e-30) rounded to fp32; levels q and U; R() a rounding to the step's number type, with
    relative error u_x and, near 0, absolute error t_x. U32 = 2^-24 is that of fp32.

    1. Levels. q rounds fl(w / s_w), so w - s_w q = -w d + s_w (half a step), |d| <= U32. With
       |w| <= 127 s_w the distance is at most h_w = s_w (1/2 + 2^-16). For latents, |u| <= 32639
       s_u, so h_u = s_u (1/2 + 2^-9). The scale itself is rounded: another factor of 1 + U32.
       No level is clamped: 127 (1 + 2^-23) still rounds to 127.
    2. Product. w.u - (s_w q).(s_u U) = sum (w - s_w q) u + sum (s_w q) (u - s_u U), at most
       h_w sum|u| + h_u (sum|w| + r h_w). Call it Q, and P = sum|w||u| + Q the largest product.
    3. Int8 roundings. a, s and y are three relative errors of U32 of a product of at most P
       (together less than 4 U32 P), and where s or y is very small 2^-150, times a dot below 2^31:
       less than 2^-118. z: U32 m, with m = |base| + 1.01 P. x: u_x (1 + U32) m + t_x.
    4. Reference roundings. The fp32 sum of r products in any order: r U32 / (1 - r U32) of
       sum|w||u|, and 2^-149 for each product that is very small. The bias is rounded: u_x m + t_x;
       the sum with base: U32 m; the step logit: 1.01 u_x m + t_x.

    Where m reaches the largest number of the step's type one side may be infinite: no bound.

    Args:
        head: a head of finite weights.
        base: [B, V], finite or -inf (whose logit is -inf on both sides: bound 0).
        latent: [B, r].
    """
    dtype = torch.promote_types(base.dtype, latent.dtype)
    u_x, t_x = ROUNDOFF[dtype], TINY[dtype]
    rank = head.rank
    weight = head.projection[: head.vocab].double()
    u = latent.double()
    h_w = (weight.abs().amax(1) / 127).clamp_min(FLOOR) * (0.5 + 2.0**-16) * (1 + U32)
    h_u = (u.abs().amax(1) / 32639).clamp_min(FLOOR) * (0.5 + 2.0**-9) * (1 + U32)
    quantisation = h_w[None, :] * u.abs().sum(1)[:, None]
    quantisation += h_u[:, None] * (weight.abs().sum(1) + rank * h_w)[None, :]
    product = u.abs() @ weight.abs().T
    largest_product = product + quantisation
    never = base == float("-inf")
    m = torch.where(never, 0.0, base.double().abs()) + 1.01 * largest_product
    bound = quantisation + 4 * U32 * largest_product + 2.0**-118
    bound += (U32 + u_x * (1 + U32)) * m + t_x
    bound += rank * U32 / (1 - rank * U32) * product + rank * 2.0**-149
    bound += (u_x + U32 + 1.01 * u_x) * m + 2 * t_x
    bound = torch.where(1.01 * m >= torch.finfo(dtype).max, float("inf"), bound)
    return torch.where(never, 0.0, bound)


def decided(logits: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Whether no logit within the bound of these can have another winner, bool [B].

    That is: the top one less its bound is above every other one plus its own.
    """
    values = logits.double()
    winner = values.argmax(1, keepdim=True)
    least = (values - bound).gather(1, winner)
    others = (values + bound).scatter(1, winner, float("-inf"))
    return (least > others).all(1)

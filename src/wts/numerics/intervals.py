"""How far a walk may be from the formula, derived from the roundings that it makes.

Int8 weights: from their quantisation. Bf16 weights: from the order of sums alone.
"""

from __future__ import annotations

import torch

from wts.numerics.step_logits import Projecting

__all__ = ["U32", "bf16_interval", "decided", "decided_between", "logit_bound"]

U32 = 2.0**-24

# Significand: half a unit in the last place of 1, and half the distance of the smallest numbers.
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: U32}
TINY = {torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25, torch.float32: 2.0**-150}
FLOOR = 1e-30


def logit_bound(head: Projecting, base: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
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


def bf16_interval(
    weight: torch.Tensor, base: torch.Tensor, latent: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest step logit of the bf16 head that sums in fp32 may give.

    Symbols: w a row of W, u the latent, r elements, S = sum w u, P = sum |w| |u|.

    1. Products of two bf16 numbers are exact in fp32, but where they are very small.
    2. The matrix instruction adds them with at least single precision, in any order, by any
       rounding (PTX ISA 9.7.14.5): one addition is wrong by at most a unit in the last place of a
       partial sum, 2^-23 P. Hardware that aligns the 16 products of an instruction and the sum so
       far to the largest of them and cuts what is below makes 17 such errors, and one more where
       the result is cut: 18 / 16 an element. So |sum - S| <= e = (9/8) r 2^-23 P (1 + r 2^-20).
    3. Very small numbers may count as 0: 2^-126 for each product and sum, and 2^-126 times the
       other factor for each element: 2^-125 r (1 + max|w| + max|u|).
    4. What follows is rounded, never decreasing: x = R(base + R(sum)). So x lies between its values
       at S - e and S + e: mostly one number, sometimes two that are neighbours.

    An fp32 sum in any order by a library, as the reference makes it, is within the same.

    Args:
        weight: bf16 [V, r], finite.
        base: [B, V], base logits.
        latent: bf16 [B, r].

    Returns:
        fp32 [B, V] twice, both numbers of the step's type; -inf and +inf where sums overflow or a
        latent is not finite.
    """
    dtype = torch.promote_types(base.dtype, weight.dtype)
    rank = weight.shape[1]
    w, u = weight.double(), latent.double()
    exact, product = u @ w.T, u.abs() @ w.abs().T
    error = 1.125 * rank * 2.0**-23 * (1 + rank * 2.0**-20) * product
    error += 2.0**-125 * rank * (1 + w.abs().amax(1)[None, :] + u.abs().amax(1)[:, None])

    def logit(total: torch.Tensor) -> torch.Tensor:
        return (base.float() + total.float().to(dtype).float()).to(dtype).float()

    least, most = logit(exact - error), logit(exact + error)
    open_ended = ~(1.01 * product < torch.finfo(dtype).max) | least.isnan() | most.isnan()
    open_ended &= base != float("-inf")
    never = torch.where(base == float("-inf"), float("-inf"), 0.0)
    least = torch.where(open_ended, float("-inf"), least.nan_to_num(nan=float("-inf")))
    most = torch.where(open_ended, float("inf"), most.nan_to_num(nan=float("-inf")))
    return least + never, most + never


def decided_between(least: torch.Tensor, most: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whose winner is the same wherever in these intervals logits or scores lie.

    A row wins for sure where its least is above the largest of every other row, or equal to it and
    the other row is behind it.

    Args:
        least, most: fp32 [B, V].

    Returns:
        bool [B], and int64 [B], the winner where it is decided.
    """
    top = least.amax(1, keepdim=True)
    winner = (least == top).to(torch.uint8).argmax(1, keepdim=True)
    rows = torch.arange(least.shape[1], device=least.device)
    others = torch.where(rows == winner, float("-inf"), most)
    ahead = torch.where(rows < winner, others, float("-inf")).amax(1, keepdim=True)
    behind = torch.where(rows > winner, others, float("-inf")).amax(1, keepdim=True)
    return ((top > ahead) & (top >= behind))[:, 0], winner[:, 0]

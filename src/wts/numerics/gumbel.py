"""Gumbel noise of sampled rows: Philox words, and logarithms the device repeats bit for bit.

The stream is SGLang's (key, counter layout, offset), so equal logits give equal tokens. ln and
log1p are written out in fp32 additions and multiplications, each rounded by itself: any two IEEE
machines agree. ln(-log1p(-u)) is within 1e-6 of its true value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wts.errors import InputError, describe

__all__ = ["Noise", "log_exponential", "philox_words"]

_MASK = 0xFFFFFFFF
_SQRT_HALF_BITS = 0x3F3504F3
_COEFFICIENTS = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """Where a sampled walk's noise comes from.

    Args:
        key: 63-bit Philox key, fixed when a graph is captured.
        offset: int64 [1], a counter on the walk's device; a walk reads it and adds one, so that
            every replay of a captured graph draws fresh noise.

    Raises:
        InputError: a key out of range, or an offset that is not int64 [1].
    """

    key: int
    offset: torch.Tensor

    def __post_init__(self) -> None:
        if (
            isinstance(self.key, bool)
            or not isinstance(self.key, int)
            or not 0 <= self.key < 1 << 63
        ):
            raise InputError.mismatch(
                "key", wanted="an integer of 63 bits", found=repr(self.key), fix="mask it"
            )
        is_tensor = isinstance(self.offset, torch.Tensor)
        if not is_tensor or self.offset.dtype != torch.int64 or self.offset.numel() != 1:
            raise InputError.mismatch(
                "offset",
                wanted="int64[1]",
                found=describe(self.offset) if is_tensor else type(self.offset).__name__,
                fix="allocate torch.zeros(1, dtype=torch.int64) on the walk's device",
            )


def _multiply(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32-bit halves of a * b; a is int64 below 2^32, b in two 16-bit halves."""
    low = a * (b & 0xFFFF)
    high = a * (b >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def philox_words(vocab: int, rows: int, step: int, key: int, offset: int) -> torch.Tensor:
    """Random words of one step: word v mod 4 of the counter (v div 4, row, step, offset).

    Args:
        vocab: tokens.
        rows: rows of the batch.
        step: step of the walk.
        key: 63-bit key.
        offset: counter; its low 32 bits are used.

    Returns:
        int64 [rows, vocab], each below 2^32.

    Source:
        Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    quads = torch.arange(-(-vocab // 4), dtype=torch.int64)[None, :].expand(rows, -1)
    c0 = quads
    c1 = torch.arange(rows, dtype=torch.int64)[:, None].expand_as(quads)
    c2 = torch.full_like(quads, step)
    c3 = torch.full_like(quads, offset & _MASK)
    k0, k1 = key & _MASK, (key >> 32) & _MASK
    for _ in range(10):
        high0, low0 = _multiply(c0, 0xD2511F53)
        high1, low1 = _multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return torch.stack([c0, c1, c2, c3], -1).reshape(rows, -1)[:, :vocab]


def _log_of_parts(f: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """ln(1 + f) + exponent ln 2, fp32, in the order the device rounds."""
    c = _COEFFICIENTS
    z = f * f
    quad = z * z
    high = (f * c[0] + c[1]) * z + (f * c[2] + c[3])
    low = (f * c[4] + c[5]) * z + (f * c[6] + c[7])
    p = (high * quad + low) * f + c[8]
    e = exponent.float()
    y = (p * f) * z
    y = y + e * -2.12194440e-4
    y = y + z * -0.5
    return (f + y) + e * 0.693359375


def _split(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """f and exponent of a positive fp32: value = (1 + f) 2^exponent, 1 + f near 1."""
    bits = value.view(torch.int32)
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    return (bits - (exponent << 23)).view(torch.float32) - 1.0, exponent


def log_exponential(words: torch.Tensor) -> torch.Tensor:
    """ln(-log1p(-u)), u = (word + 1/2) 2^-32 as fp32; the largest number where u = 1.

    Infinity would put the row among those that a grammar masked, and the lowest of them would win.

    Args:
        words: int64, below 2^32.

    Returns:
        fp32 of the same shape.
    """
    u = (words.float() + 0.5) * 2.3283064365386963e-10
    rest = 1.0 - u
    f, exponent = _split(rest)
    f = torch.where(exponent == 0, -u, f)
    exponential = -_log_of_parts(f, exponent)
    log = _log_of_parts(*_split(exponential))
    return torch.where(rest > 0, log, torch.full_like(log, torch.finfo(torch.float32).max))

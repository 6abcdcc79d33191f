"""The int8 head of the contract, written once more without plan, tiles or packing.

Dots are sums of Python-sized integers; fp32 operations are numpy's, one rounding each. What the
emulator and the device compute has to equal this bit for bit.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from wts.heads.base import Head
from wts.heads.markov import MarkovHead

Fp32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


def quantise(matrix: torch.Tensor, largest_level: int) -> tuple[Int64, Fp32]:
    """Levels and scale of each row; a row that is not finite has a NaN scale."""
    values = matrix.float().numpy()
    with np.errstate(all="ignore"):
        scale = np.abs(values).max(1) / np.float32(largest_level)
        scale = np.maximum(scale, np.float32(1e-30))  # keeps NaN
        levels = np.rint(values / scale[:, None])
    finite = np.isfinite(scale)
    scale = np.where(finite, scale, np.float32("nan")).astype(np.float32)
    levels = np.where(finite[:, None], levels, 0)
    return levels.astype(np.int64), scale


def int8_logits(head: MarkovHead, base: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """Step logits of the int8 head, [B, V] in the step's dtype.

    Args:
        head: the head.
        base: [B, V].
        previous: int64 [B], inside the table.
    """
    return int8_logits_of(head, base, head.table[previous])


def int8_logits_of(head: Head, base: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    """The same of any head and its latents [B, r]."""
    levels, row_scale = quantise(head.projection[: head.vocab], 127)
    whole, latent_scale = quantise(latent, 127 * 256 + 127)
    with np.errstate(all="ignore"):
        a = (whole @ levels.T).astype(np.float32)
        s = row_scale[None, :] * latent_scale[:, None]
        y = a * s
        z = base.float().numpy() + y
    assert z.dtype == np.float32
    return torch.from_numpy(z).to(torch.promote_types(base.dtype, head.table.dtype))


def select(logits: torch.Tensor) -> list[int]:
    """The rule in words: the lowest NaN id, else the lowest id of the largest value."""
    tokens = []
    for row in logits.float().tolist():
        best = 0
        for token, value in enumerate(row):
            if value != value:
                best = token
                break
            if value > row[best]:
                best = token
        tokens.append(best)
    return tokens


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    """Four random words, ten rounds (Salmon et al., 2011), in Python's integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % (1 << 32), (k1 + 0xBB67AE85) % (1 << 32)
    return [c0, c1, c2, c3]


def random_word(token: int, row: int, step: int, key: int, offset: int) -> int:
    """The word of one token: key and counter as the contract lays them out."""
    counter = (token // 4, row, step, offset % (1 << 32))
    return philox4x32(counter, (key % (1 << 32), key >> 32))[token % 4]


def uniform(word: int) -> float:
    """u = (word + 1/2) 2^-32, each operation rounded to fp32; 1 for the last words."""
    return float((np.float32(word) + np.float32(0.5)) * np.float32(2.0**-32))


def gumbel(word: int) -> float:
    """-ln(-log1p(-u)) in fp64; -inf where u = 1."""
    u = uniform(word)
    return -math.inf if u == 1 else -math.log(-math.log1p(-u))


def gumbels(vocab: int, rows: int, step: int, key: int, offset: int) -> torch.Tensor:
    """Noise of one step, fp64 [rows, vocab]."""
    noise = [
        [gumbel(random_word(token, row, step, key, offset)) for token in range(vocab)]
        for row in range(rows)
    ]
    return torch.tensor(noise, dtype=torch.float64)


def int8_walk(head: MarkovHead, base_logits: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
    """Tokens of the int8 head, int64 [B, K]."""
    previous = anchor.clamp(0, head.table_rows - 1)
    tokens = []
    for step in range(base_logits.shape[1]):
        logits = int8_logits(head, base_logits[:, step, : head.vocab], previous)
        chosen = torch.tensor(select(logits))
        previous = chosen if head.draft_to_target is None else head.draft_to_target[chosen]
        tokens.append(previous)
    return torch.stack(tokens, 1)

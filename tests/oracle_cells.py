"""Heads that read hidden states, written once more as the device computes them.

Sums are Python's exact ones or fractions, fp32 operations are numpy's, one rounding each; bf16 is
rounded bit by bit. What the cells of the emulator compute has to equal this bit for bit.
"""

from __future__ import annotations

import ctypes
import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

from oracle import int8_logits_of, select
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.rnn import RnnHead

Fp32 = npt.NDArray[np.float32]
RecurrentHead = GatedHead | RnnHead | DominoHead


# ---- roundings ---------------------------------------------------------------------------------


def bf16(values: Fp32) -> Fp32:
    """The nearest bf16 numbers, ties to even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    nearest = bits.astype(np.uint32).view(np.float32)
    return np.where(np.isnan(values), np.float32("nan"), nearest)


def nearest_fp32(exact: Fraction) -> float:
    """The nearest fp32 number, ties to even; infinite where it is too large."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    nearest = round(size / unit) * unit
    value = math.inf if nearest >= Fraction(2) ** 128 else float(nearest)
    return value if exact > 0 else -value


def fma(a: float, b: float, c: float) -> float:
    """a b + c of fp32 numbers, rounded once to fp32; a and b are finite."""
    if not math.isfinite(c):
        return c
    product = a * b  # exact: 48 bits
    total = product + c
    added = total - product
    if product - (total - added) == c - added == 0.0:  # exact too: the only rounding is to fp32
        return ctypes.c_float(total).value + 0.0
    return nearest_fp32(Fraction(a) * Fraction(b) + Fraction(c))


def warp_dot(row: list[float], vector: list[float]) -> np.float32:
    """A row times a vector as 32 lanes sum it."""
    each = [0.0] * 128
    for index, (weight, element) in enumerate(zip(row, vector, strict=True)):
        at = index // 8 % 32 * 4 + index % 4
        each[at] = fma(weight, element, each[at])
    fours = np.array(each, dtype=np.float32).reshape(32, 4)
    with np.errstate(all="ignore"):
        twos = fours[:, :2] + fours[:, 2:]
        sums = twos[:, 0] + twos[:, 1]
        for distance in (16, 8, 4, 2, 1):
            sums = np.array([sums[lane] + sums[lane ^ distance] for lane in range(32)])
    return np.float32(sums[0])


def warp_product(weight: torch.Tensor, vector: Fp32) -> Fp32:
    """A matrix times a vector, row by row."""
    elements = vector.tolist()
    return np.array([warp_dot(row, elements) for row in weight.float().tolist()], np.float32)


def exact_product(weight: torch.Tensor, vector: torch.Tensor) -> Fp32:
    """A matrix times a vector: exact sums, rounded to fp32."""
    elements = vector.float().tolist()
    sums = [
        math.fsum(w * x for w, x in zip(row, elements, strict=True))
        for row in weight.float().tolist()
    ]
    return np.array(sums, dtype=np.float64).astype(np.float32)


# ---- activations -------------------------------------------------------------------------------

f32 = np.float32


def _parts(y: Fp32) -> tuple[Fp32, Fp32]:
    """n and q: exp(y) = 2^n (1 + q)."""
    n = np.rint(y * f32(math.log2(math.e)))
    f = y - n * f32(0.693359375)
    f = f - n * f32(math.log(2) - 0.693359375)
    p = f32(1 / 5040) * f + f32(1 / 720)
    for factorial in (120, 24, 6, 2):
        p = p * f + f32(1 / factorial)
    return n, p * f * f + f


def exponential(y: Fp32) -> Fp32:
    with np.errstate(all="ignore"):
        n, q = _parts(np.clip(y, f32(-104), f32(104)))
        exponent = np.nan_to_num(n).astype(np.int32)
        return np.ldexp(np.ldexp(f32(1) + q, exponent // 2), exponent - exponent // 2)


def sigmoid(x: Fp32) -> Fp32:
    with np.errstate(all="ignore"):
        return f32(1) / (f32(1) + exponential(np.minimum(-x, f32(80))))


def silu(x: Fp32) -> Fp32:
    with np.errstate(all="ignore"):
        least = np.maximum(x, f32(-80))
        return np.where(np.isinf(x), x + f32(math.inf), least / (f32(1) + exponential(-least)))


def tanh(x: Fp32) -> Fp32:
    with np.errstate(all="ignore"):
        n, q = _parts(np.minimum(f32(2) * np.abs(x), f32(32)))
        power = np.ldexp(f32(1), np.nan_to_num(n).astype(np.int32))
        m = power * q + (power - f32(1))
        return np.copysign(f32(2**-64) * (f32(2**64) * m / (m + f32(2))), x)


# ---- heads -------------------------------------------------------------------------------------

State = Fp32 | None


def step(
    head: RecurrentHead, state: State, previous: int, hidden: torch.Tensor
) -> tuple[State, Fp32 | None]:
    """State and latent of one request after a token; `hidden` is [H]."""
    row = head.table[previous]
    if isinstance(head, GatedHead):
        return None, _gated(head, row, hidden)
    if isinstance(head, RnnHead):
        return _rnn(head, np.zeros(head.rank, np.float32) if state is None else state, row, hidden)
    return _domino(head, state, row, hidden)


def gate_row(inner: Fp32, row: Fp32) -> Fp32:
    """Latent of a gated head from its inner sums and table rows."""
    return bf16(bf16(sigmoid(bf16(inner))) * row)


def rnn_update(joint: Fp32, state: Fp32) -> tuple[Fp32, Fp32]:
    """State and latent of an RNN head from its inner sums [..., 3 r] and the state before."""
    gate, candidate, output = np.split(bf16(joint), 3, axis=-1)
    gate, candidate = bf16(sigmoid(gate)), bf16(tanh(candidate))
    kept, taken = bf16(gate * state), bf16(bf16(f32(1) - gate) * candidate)
    return bf16(kept + taken), bf16(tanh(output))


def gru_update(inputs: Fp32, states: Fp32, h: Fp32) -> Fp32:
    """h of a GRU from its two products [..., 3 G] and the h before."""
    input_reset, input_update, input_new = np.split(bf16(inputs), 3, axis=-1)
    state_reset, state_update, state_new = np.split(bf16(states), 3, axis=-1)
    reset, update = sigmoid(input_reset + state_reset), sigmoid(input_update + state_update)
    new = tanh(input_new + reset * state_new)
    return bf16(new + update * (h - new))


def _gated(head: GatedHead, row: torch.Tensor, hidden: torch.Tensor) -> Fp32:
    size = head.hidden_size
    part = exact_product(head.gate_weight[:, :size], hidden) + head.gate_bias.float().numpy()
    return gate_row(part + exact_product(head.gate_weight[:, size:], row), row.float().numpy())


def _rnn(head: RnnHead, state: Fp32, row: torch.Tensor, hidden: torch.Tensor) -> tuple[Fp32, Fp32]:
    r, weight = head.rank, head.joint_weight
    part = exact_product(weight[:, 2 * r :], hidden) + head.joint_bias.float().numpy()
    early = part + warp_product(weight[:, :r], state)
    return rnn_update(early + exact_product(weight[:, r : 2 * r], row), state)


def _domino(
    head: DominoHead, state: State, row: torch.Tensor, hidden: torch.Tensor
) -> tuple[Fp32, Fp32 | None]:
    before = np.zeros(head.gru_state_weight.shape[1], np.float32) if state is None else state
    inputs = exact_product(head.gru_input_weight, row)
    h = gru_update(inputs, warp_product(head.gru_state_weight, before), before)
    if state is None:
        return h, None
    size = head.table.shape[1]
    part = exact_product(head.projector_weight[:, :size], hidden)
    return h, bf16(silu(bf16(part + warp_product(head.projector_weight[:, size:], h))))


def int8_walk(
    head: RecurrentHead, base_logits: torch.Tensor, anchor: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """Tokens of the int8 head, int64 [B, K], one request after the other."""
    tokens = []
    for request in range(len(anchor)):
        previous = int(anchor[request].clamp(0, head.table_rows - 1))
        state: State = None
        tokens.append([])
        for k in range(base_logits.shape[1]):
            state, latent = step(head, state, previous, hidden[request, k])
            base = base_logits[request : request + 1, k, : head.vocab]
            if latent is not None:
                base = int8_logits_of(head, base, torch.from_numpy(latent[None]).bfloat16())
            previous = select(base)[0]
            if head.draft_to_target is not None:
                previous = int(head.draft_to_target[previous])
            tokens[-1].append(previous)
    return torch.tensor(tokens)


def formula_walk(
    head: RecurrentHead, base_logits: torch.Tensor, anchor: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """Tokens of the unquantised head over bf16 base logits, one product after the other."""
    tokens = []
    for request in range(len(anchor)):
        previous = int(anchor[request].clamp(0, head.table_rows - 1))
        state: State = None
        tokens.append([])
        for k in range(base_logits.shape[1]):
            state, latent = step(head, state, previous, hidden[request, k])
            base = base_logits[request, k, : head.vocab].float().numpy()
            if latent is not None:
                projection = head.projection[: head.vocab]
                bias = bf16(exact_product(projection, torch.from_numpy(latent)))
                base = bf16(base + bias)
            previous = select(torch.from_numpy(base)[None])[0]
            if head.draft_to_target is not None:
                previous = int(head.draft_to_target[previous])
            tokens[-1].append(previous)
    return torch.tensor(tokens)

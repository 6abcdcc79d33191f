"""Blackwell's tensor memory: what tcgen05 instructions are told, and where tiles lie.

A plan renders these numbers into the kernel's header, so that no bit field is typed in CUDA.
Section and table numbers are those of the PTX ISA manual, version 9.0. Pure integers; no torch.

One product is 128 rows of weights (A) with N operand columns (B, the latents) of 32 bytes each: 16
elements of bf16 or 32 of int8. A tile of each of a block's eight sweeping warps makes the 128 rows.
Warp w, which may read the 32 lanes 32 (w mod 4) and on, has 16 of them: the first half where w < 4,
the second half otherwise. Lanes and columns of a lane's piece are in the order of mma.sync's
fragments, so that its operand is stored as it is (.16x128b) and results come back as mma.sync would
leave them (.16x256b).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from wts.errors import PlanError

__all__ = [
    "CHUNK_BYTES",
    "COLUMNS",
    "CORE_BYTES",
    "LANES",
    "OPERAND_COLUMNS",
    "OperandType",
    "address",
    "has_product",
    "instruction_descriptor",
    "matrix_descriptor",
    "operand_words",
    "warp_lane",
]

LANES = 128
COLUMNS = 512  # of 32 bits each, in every lane
OPERAND_COLUMNS = 16  # N: the fewest that 128 rows are multiplied with
WARP_LANES = 32  # that a warp can read and write (9.7.16.8.1)
HALF_LANES = 16
CHUNK_BYTES = 16  # of one row: a core matrix is eight rows of so many
CORE_BYTES = 8 * CHUNK_BYTES
OperandType: TypeAlias = Literal["int8", "bf16"]

# Table 42, "Instruction descriptor format for .kind::tf32, .kind::f16, .kind::f8f6f4, .kind::i8".
_RESULT = {"int8": 2, "bf16": 1}  # bits 4-5: S32, F32
_OPERAND = {"int8": 1, "bf16": 1}  # bits 7-9 and 10-12: signed 8 bits; BF16


def has_product(arch: str, weights: OperandType) -> bool:
    """Whether an architecture multiplies such weights from tensor memory.

    sm_103a has no .kind::i8.
    """
    return arch == "sm_100a" or (arch == "sm_103a" and weights == "bf16")


def instruction_descriptor(
    weights: OperandType, *, rows: int = LANES, columns: int = OPERAND_COLUMNS
) -> int:
    """What tcgen05.mma is told of types and shape: 32 bits (9.7.16.4.2, table 42).

    Dense, no saturation, nothing negated, both operands K-major.

    Args:
        weights: int8 products are summed in int32 (.kind::i8), bf16 ones in fp32 (.kind::f16).
        rows: M; 64 or 128 with one block.
        columns: N; a multiple of 16 up to 256 where M is 128.

    Raises:
        PlanError: a shape that the instruction does not have (table 39).
    """
    _check("rows", rows, rows in (64, 128), "64 or 128")
    _check(
        "columns", columns, 16 <= columns <= 256 and columns % 16 == 0, "a multiple of 16 up to 256"
    )
    return (
        _RESULT[weights] << 4
        | _OPERAND[weights] << 7
        | _OPERAND[weights] << 10
        | columns >> 3 << 17
        | rows >> 4 << 24
    )


def matrix_descriptor(start: int, *, along_k: int, along_rows: int) -> int:
    """Where an operand lies in shared memory: 64 bits (9.7.16.4.1, table 40). No swizzle, K-major.

    Core matrices are eight rows of 16 bytes, one after the other.

    Args:
        start: shared-memory address of the first one.
        along_k: bytes from a core matrix to the one with the next 16 bytes of the same rows
            (leading dimension byte offset, 9.7.16.3.1.1).
        along_rows: bytes to the one with the next eight rows (stride dimension byte offset).

    Raises:
        PlanError: an address or a distance that is not a multiple of 16, or too large.
    """
    for name, value in (("start", start), ("along_k", along_k), ("along_rows", along_rows)):
        _check(name, value, 0 <= value < 1 << 18 and value % 16 == 0, "a multiple of 16 below 2^18")
    return start >> 4 | along_k >> 4 << 16 | along_rows >> 4 << 32 | 0b001 << 46


def address(lane: int, column: int) -> int:
    """A place in tensor memory, from where an allocation starts (9.7.16.1.1): lane, then column.

    Raises:
        PlanError: outside tensor memory.
    """
    _check("lane", lane, 0 <= lane < LANES, f"0 to {LANES - 1}")
    _check("column", column, 0 <= column < COLUMNS, f"0 to {COLUMNS - 1}")
    return lane << 16 | column


def warp_lane(warp: int) -> int:
    """The first of the 16 lanes that hold a sweeping warp's rows of a tile of 128.

    Raises:
        PlanError: a warp that a block does not have.
    """
    _check("warp", warp, 0 <= warp < LANES // HALF_LANES, "0 to 7")
    return WARP_LANES * (warp % 4) + HALF_LANES * (warp // 4)


def operand_words(slab: int, lane: int) -> list[tuple[int, int]]:
    """(row, column) of a lane's four words of a fragment, in a warp's 16 lanes of a tile.

    As mma.sync has them (9.7.14.5: rows g and g + 8, words t and t + 4 of eight) and as
    tcgen05.st.16x128b.x2 stores them (9.7.16.2.3.1.3).

    Args:
        slab: 32 bytes of a row; eight columns.
        lane: of the warp, 4 g + t.
    """
    group, word = lane // 4, lane % 4
    first = 8 * slab + word
    return [(group + 8 * (i % 2), first + 4 * (i // 2)) for i in range(4)]


def _check(name: str, found: int, good: bool, wanted: str) -> None:
    if not good:
        raise PlanError.mismatch(name, wanted=wanted, found=found, fix="correct the plan")

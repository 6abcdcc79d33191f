"""What is asked for when a walk is planned: a head's sizes, a batch, steps, types, a selection."""

from __future__ import annotations

from dataclasses import dataclass

from wts.dtypes import NUMBER_TYPES, WEIGHT_BYTES, NumberType, WeightType
from wts.heads.kinds import HEAD_KINDS, KINDS, HeadKind, HeadShape

__all__ = ["WalkRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkRequest:
    """A walk of one head, as the planner, the kernels and everyone else are asked for it.

    Args:
        shape: sizes of the head.
        batch: most requests walked together.
        steps: most steps of a walk.
        base_type: number type of the base logits.
        weights: what rows of the projection are kept as; latents are quantised only for int8.
        selection: how a token is chosen, a name of `wts.selection`.
        tensor_memory: whether tiles may go to tensor memory; None: where that is measured or
            expected to be faster.
    """

    shape: HeadShape
    batch: int = 1
    steps: int = 16
    base_type: NumberType = "bf16"
    weights: WeightType = "int8"
    selection: str = "greedy"
    tensor_memory: bool | None = None

    @property
    def kind(self) -> HeadKind:
        """Of the head."""
        return KINDS[self.shape.kind]

    @property
    def table_rows(self) -> int:
        """Rows of the previous-token table."""
        rows = self.shape.table_rows
        return self.shape.vocab if rows is None else rows

    @property
    def step_type(self) -> NumberType:
        """Type of step logits: torch's promotion of two number types.

        Equal ones stay, different ones meet in fp32.
        """
        return self.base_type if self.base_type == self.shape.table_type else "fp32"

    @property
    def quantised(self) -> bool:
        """Whether weights and latents are levels with scales, whose dot product is exact."""
        return self.weights == "int8"

    @property
    def row_bytes(self) -> int:
        """Bytes of the weights of one row."""
        return self.shape.rank * WEIGHT_BYTES[self.weights]

    @property
    def table_row_bytes(self) -> int:
        """Bytes of a table row, which a token fetches."""
        return self.kind.row_bytes(self.shape, self.weights)

    @property
    def sampled(self) -> bool:
        """Whether rows may have a temperature above 0."""
        return self.selection == "token_race"

    @property
    def exact(self) -> bool:
        """Whether tokens are the unquantised head's (docs/exact.md)."""
        return self.selection == "exact"

    def constants(self) -> dict[str, int | bool]:
        """What the kernel is told of the head and of the types."""
        shape = self.shape
        return {
            "HEAD": HEAD_KINDS.index(shape.kind),
            "STATE": max(1, shape.state),
            "HIDDEN": max(1, shape.hidden),
            "VOCAB": shape.vocab,
            "RANK": shape.rank,
            "TABLE_ROWS": self.table_rows,
            "TABLE_ROW_BYTES": self.table_row_bytes,
            "BASE_TYPE": NUMBER_TYPES.index(self.base_type),
            "STEP_TYPE": NUMBER_TYPES.index(self.step_type),
            "QUANTISED": self.quantised,
            "MAPPED": shape.mapped,
        }

    def switches(self) -> dict[str, bool]:
        """What the preprocessor is told of them."""
        return {"WTS_QUANTISED": self.quantised}

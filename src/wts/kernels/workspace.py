"""What a kernel has on its GPU beside the packed weights."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from wts.kernels.resident.args import STATUS
from wts.kernels.resident.plan import ResidentPlan
from wts.selection.exact_source import EXACT_SOURCE

__all__ = ["FIRST_SEQUENCE", "Workspace"]

FIRST_SEQUENCE = 2  # so that a cleared slot, whose tag is 0, is nobody's word
_CLEARED = STATUS.offsets["clamped_anchors"] // 4  # first words; the counters behind them stay
_STATUS_WORDS = -(-STATUS.size // 8) * 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workspace:
    """Memory of one kernel; walks use it one after the other.

    Args:
        slots: uint8, words that blocks publish for each other.
        state_slots: int64, numbers of a head's state that they publish.
        exact_slots: int64, what an exact walk publishes beside them.
        exact_source: int64, where an exact walk finds the unquantised weights, `struct
            ExactSource`.
        hidden_term: fp32 [batch x steps, P], what hidden states add to each step of the last walk.
        hidden_rows: bf16 [batch x steps, H], hidden states that the kernel cannot read in place.
        cleared: int32, the first words of a status without an error.
        status: int32, `STATUS`.
    """

    slots: torch.Tensor
    state_slots: torch.Tensor
    exact_slots: torch.Tensor
    exact_source: torch.Tensor
    hidden_term: torch.Tensor
    hidden_rows: torch.Tensor
    cleared: torch.Tensor
    status: torch.Tensor

    @classmethod
    def allocate(
        cls, plan: ResidentPlan, hidden_size: int | None, device: torch.device
    ) -> Workspace:
        """The workspace of a plan, as no walk has used it.

        Args:
            plan: the plan.
            hidden_size: H, of a head that reads hidden states.
            device: where it lies.
        """

        def words(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=torch.int64, device=device)

        rows = plan.request.batch * plan.request.steps
        cleared = torch.zeros(_CLEARED, dtype=torch.int32)
        cleared[STATUS.offsets["sequence"] // 4] = FIRST_SEQUENCE
        cleared = cleared.to(device)
        status = torch.zeros(_STATUS_WORDS, dtype=torch.int32, device=device)
        status[:_CLEARED] = cleared
        slot_bytes = plan.exchange.workspace_words * plan.exchange.word_bytes
        return cls(
            slots=torch.zeros(slot_bytes, dtype=torch.uint8, device=device),
            state_slots=words(plan.recurrence.state_words),
            exact_slots=words(plan.selection.workspace_words),
            exact_source=words(EXACT_SOURCE.size // 8 if plan.request.exact else 0),
            hidden_term=torch.empty(
                rows, plan.recurrence.hidden_term, dtype=torch.float32, device=device
            ),
            hidden_rows=torch.empty(rows, hidden_size or 0, dtype=torch.bfloat16, device=device),
            cleared=cleared,
            status=status,
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    def clear(self) -> None:
        """Forget a walk that was given up: no word of it is taken for one of the next walk's."""
        self.slots.zero_()
        self.state_slots.zero_()
        self.exact_slots.zero_()
        self.status[:_CLEARED] = self.cleared

    def read_status(self) -> dict[str, int]:
        """The fields of `STATUS`."""
        found = STATUS.unpack(self.status.cpu().numpy().tobytes())
        return {name: int(value) for name, value in found.items()}

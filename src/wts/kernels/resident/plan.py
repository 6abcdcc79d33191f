"""The plan of one head on one GPU: what was decided, and the sizes that follow from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

from wts.kernels.header import write_header
from wts.kernels.resident.args import render_args
from wts.kernels.resident.ledger import ledger
from wts.kernels.resident.sections import Sections
from wts.kernels.resident.shared import shared_layout

__all__ = ["ResidencyPlan", "ResidentPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentPlan(Sections):
    """Where each row of one head lives on one GPU, for one largest batch.

    Made by `planner.plan_walk`; `print(plan)` shows the ledger. What was decided stands in ten
    sections, see `Sections`, each with the sizes that follow from it.
    """

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block."""
        return shared_layout(self)[-1][1]

    @property
    def fits(self) -> bool:
        """Whether a block may have so much shared memory."""
        return self.shared_bytes <= self.gpu.shared_bytes_per_block

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that name this plan in records: equal for equal plans.

        Of the decisions alone: neither their names, nor what the kernel is told of them, nor the
        name and the rates of the GPU.
        """
        gpu = self.gpu
        decided: list[object] = [gpu.arch, gpu.max_blocks, gpu.shared_bytes_per_block]
        names = {one.name for one in fields(self)}
        for section in (getattr(self, one.name) for one in fields(self)):
            if section is not gpu:
                own = [one.name for one in fields(section) if one.name not in names]
                decided += [getattr(section, name) for name in own]
        return hashlib.sha256(repr(decided).encode()).hexdigest()[:12]

    def render_header(self) -> str:
        """The constants the kernel is compiled with; plain C++, no CUDA."""
        shared = {
            "SHARED_BYTES": self.shared_bytes,
            "SHARED_BYTES_LIMIT": self.gpu.shared_bytes_per_block,
        }
        told = (
            self.request,
            self.shard,
            self.product,
            self.placement,
            self.roles,
            self.rounds,
            self.recurrence,
            self.selection,
            self.exchange,
        )
        switched = (self.request, self.product, self.recurrence, self.selection)
        return write_header(
            [*(section.constants() for section in told), shared],
            [section.switches() for section in switched],
            [self.placement.lists()],
        )

    def rendered(self) -> dict[str, str]:
        """The kernel's files that are rendered for this plan, by their names in csrc."""
        return {"plan_constants.h": self.render_header(), "args.cuh": render_args()}

    def __str__(self) -> str:
        return ledger(self, name=self.hash, shared_bytes=self.shared_bytes)


ResidencyPlan = ResidentPlan
"""What it was called before."""

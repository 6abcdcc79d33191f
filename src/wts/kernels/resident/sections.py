"""The sections of a plan: each is what was decided of one thing, and the sizes that follow."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from wts.hardware.gpu import GpuSpec
from wts.kernels.resident.exchange import Exchange
from wts.kernels.resident.placement import Placement
from wts.kernels.resident.product import Product
from wts.kernels.resident.recurrence import Recurrence
from wts.kernels.resident.roles import Roles
from wts.kernels.resident.rounds import Rounds
from wts.kernels.resident.shard import Shard
from wts.selection.base import Sizes
from wts.selection.request import WalkRequest

__all__ = ["Sections"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """All sections, each holding those above it that its sizes follow from.

    Args:
        request: what was asked for: the head's sizes, the batch, types, the selection.
        gpu: the GPU that it is planned for.
        shard: which rows a block owns.
        product: how they are multiplied.
        placement: where they lie.
        roles: how warps share the work and the registers.
        rounds: what is kept of rounds under way.
        recurrence: how latents are made of hidden states and of a state.
        selection: what choosing a token takes.
        exchange: how blocks tell each other what they found.
    """

    request: WalkRequest
    gpu: GpuSpec
    shard: Shard
    product: Product
    placement: Placement
    roles: Roles
    rounds: Rounds
    recurrence: Recurrence
    selection: Sizes
    exchange: Exchange

    def replaced(self, **changed: Any) -> Self:
        """The same with other sections; those that hold one of them then hold the new one.

        Args:
            changed: sections by name.

        Raises:
            TypeError: a name that is no section's.
        """
        names = [one.name for one in fields(self)]
        unknown = sorted(changed.keys() - set(names))
        if unknown:
            raise TypeError(f"a plan has no section {', '.join(unknown)}; it has {names}")
        found: dict[str, Any] = {}
        for name in names:
            section = changed.get(name, getattr(self, name))
            held = [one.name for one in fields(section) if one.name in found]
            fresh = {one: found[one] for one in held if found[one] is not getattr(section, one)}
            found[name] = replace(section, **fresh) if fresh else section
        return replace(self, **found)

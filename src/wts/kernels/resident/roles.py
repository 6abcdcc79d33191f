"""The warps of a block: those that sweep, and those that do everything else."""

from __future__ import annotations

from dataclasses import dataclass

from wts.kernels.resident.shard import Shard

__all__ = ["SERVICE_WARPS", "Roles"]

SERVICE_WARPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """How the registers of a block are shared out.

    Args:
        sweep_registers, service_registers: of a thread of each role.
        columns_per_wait: columns whose words a service warp waits for at once.
    """

    shard: Shard
    sweep_registers: int
    service_registers: int
    columns_per_wait: int

    @property
    def service_warps(self) -> int:
        """Warps beside the sweeping ones."""
        return SERVICE_WARPS

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.shard.sweep_warps + SERVICE_WARPS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def launch_registers(self) -> int:
        """Registers a thread must be launched with, for the roles to share them out anew."""
        sweeping = self.shard.sweep_warps * self.sweep_registers
        return -(-(sweeping + SERVICE_WARPS * self.service_registers) // self.warps)

    def constants(self) -> dict[str, int | bool]:
        """What the kernel is told of it."""
        return {
            "SERVICE_WARPS": SERVICE_WARPS,
            "THREADS": self.threads,
            "SWEEP_REGISTERS": self.sweep_registers,
            "SERVICE_REGISTERS": self.service_registers,
            "SERVED_TOGETHER": self.columns_per_wait,
        }

"""What a GPU is to the planner: how many blocks run together and how many bytes each memory holds.

Nothing here imports torch until the local GPU is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from wts.errors import DeviceError

__all__ = ["GPUS", "LOCAL", "WALKED", "GpuSpec", "arch_of", "caution_of", "gpu_spec"]

LOCAL = "LOCAL"
"""The name that stands for the GPU of this machine."""

_MIB = 1 << 20
_REGISTER_BYTES_PER_SM = 64 * 1024 * 4
_TENSOR_BYTES_PER_SM = 128 * 512 * 4

# The most that one block may ask for: 228 KiB of an SM less the 1 KiB that the system keeps.
_SHARED_BYTES_PER_BLOCK = 227 * 1024
_HOPPER = "sm_90a"
_BLACKWELL = ("sm_100a", "sm_103a")  # of data centres; others have no tensor memory


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One kind of GPU, as far as a residency plan depends on it.

    A walk runs one persistent block per SM, so `max_blocks` never exceeds `num_sms`; it is smaller
    where another program holds SMs (MPS, a partitioned GPU, a green context).

    Args:
        name: what it is called in plans and records.
        compute_capability: (major, minor).
        num_sms: streaming multiprocessors.
        max_blocks: persistent blocks that can be co-resident.
        register_bytes_per_sm: register file of one SM.
        shared_bytes_per_block: the most shared memory that one block may have.
        tensor_bytes_per_sm: tensor memory of one SM, 0 where there is none.
        l2_bytes: second-level cache, 0 where unknown.
        dram_bytes_per_s: peak rate of device memory, 0 where unknown.
        clock_mhz: peak SM clock, 0 where unknown.

    Raises:
        DeviceError: a number out of its range.
    """

    name: str
    compute_capability: tuple[int, int]
    num_sms: int
    max_blocks: int
    register_bytes_per_sm: int = _REGISTER_BYTES_PER_SM
    shared_bytes_per_block: int = _SHARED_BYTES_PER_BLOCK
    tensor_bytes_per_sm: int = 0
    l2_bytes: int = 0
    dram_bytes_per_s: int = 0
    clock_mhz: int = 0

    def __post_init__(self) -> None:
        for field in ("num_sms", "max_blocks", "register_bytes_per_sm", "shared_bytes_per_block"):
            _check_at_least(field, getattr(self, field), 1)
        for field in ("tensor_bytes_per_sm", "l2_bytes", "dram_bytes_per_s", "clock_mhz"):
            _check_at_least(field, getattr(self, field), 0)
        if self.max_blocks > self.num_sms:
            raise DeviceError.mismatch(
                "max_blocks",
                wanted=f"at most num_sms = {self.num_sms}",
                found=self.max_blocks,
                fix="a walk runs one persistent block per SM, so ask for fewer blocks",
            )

    @property
    def arch(self) -> str:
        """The compiler's name of the architecture, such as sm_90a."""
        return arch_of(self.compute_capability)

    @property
    def is_hopper(self) -> bool:
        """Whether this is the kind of GPU that the kernel was run and measured on."""
        return self.arch == _HOPPER

    @property
    def walks(self) -> bool:
        """Whether there is a kernel for this GPU."""
        return self.arch in WALKED

    @property
    def caution(self) -> str:
        """What to know before trusting a walk on this GPU, or ""."""
        return caution_of(self.arch)

    def with_blocks(self, max_blocks: int) -> GpuSpec:
        """Return the same GPU with fewer co-resident blocks.

        Raises:
            DeviceError: more blocks than SMs, or fewer than one.
        """
        return replace(self, max_blocks=max_blocks)


WALKED = (_HOPPER, *_BLACKWELL)
"""Architectures that there is a kernel for."""


def arch_of(compute_capability: tuple[int, int]) -> str:
    """The compiler's name of an architecture, such as sm_90a."""
    major, minor = compute_capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def caution_of(arch: str) -> str:
    """What to know before trusting a walk on GPUs of an architecture, or ""."""
    if arch not in _BLACKWELL:
        return ""
    return (
        f"the kernel is compiled and checked for {arch}, but was not yet run on such a GPU: run "
        "make gpu-test before trusting its tokens, wts bench head for its speed"
    )


def _check_at_least(field: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DeviceError.mismatch(
            field,
            wanted=f"an integer of at least {least}",
            found=repr(value),
            fix="correct the GPU description",
        )


def _hopper(name: str, *, num_sms: int, l2_mib: int, dram_gb_per_s: int, clock_mhz: int) -> GpuSpec:
    return GpuSpec(
        name=name,
        compute_capability=(9, 0),
        num_sms=num_sms,
        max_blocks=num_sms,
        l2_bytes=l2_mib * _MIB,
        dram_bytes_per_s=dram_gb_per_s * 10**9,
        clock_mhz=clock_mhz,
    )


def _blackwell(name: str, capability: tuple[int, int], *, clock_mhz: int) -> GpuSpec:
    return GpuSpec(
        name=name,
        compute_capability=capability,
        num_sms=148,
        max_blocks=148,
        tensor_bytes_per_sm=_TENSOR_BYTES_PER_SM,
        l2_bytes=126 * _MIB,
        dram_bytes_per_s=8000 * 10**9,
        clock_mhz=clock_mhz,
    )


GPUS: Mapping[str, GpuSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            _hopper("h100", num_sms=132, l2_mib=50, dram_gb_per_s=3350, clock_mhz=1980),
            _hopper("h100-pcie", num_sms=114, l2_mib=50, dram_gb_per_s=2000, clock_mhz=1755),
            _hopper("h20", num_sms=78, l2_mib=60, dram_gb_per_s=4000, clock_mhz=1980),
            _hopper("h200", num_sms=132, l2_mib=60, dram_gb_per_s=4800, clock_mhz=1980),
            _blackwell("b200", (10, 0), clock_mhz=1965),
            _blackwell("b300", (10, 3), clock_mhz=2032),
        )
    }
)
"""GPUs known by name. Peak figures of the makers' data sheets; a plan needs only the memories.

No B200 or B300 was at hand: their figures are read, not asked of a driver.
"""


def gpu_spec(name: str, *, index: int | None = None) -> GpuSpec:
    """Look a GPU up by name, or ask the driver about the one in this machine.

    Args:
        name: a key of `GPUS`, or LOCAL; case does not matter.
        index: for LOCAL, which CUDA device; the current one by default.

    Returns:
        Its description.

    Raises:
        DeviceError: an unknown name, or LOCAL without a usable GPU.
    """
    if isinstance(name, str) and name.upper() == LOCAL:
        return _local_spec(index)
    if not isinstance(name, str) or name.lower() not in GPUS:
        raise DeviceError.mismatch(
            "gpu",
            wanted=f"one of {', '.join(GPUS)} or {LOCAL}",
            found=repr(name),
            fix="pick one of these, or build a GpuSpec with the numbers of your GPU",
        )
    return GPUS[name.lower()]


def _local_spec(index: int | None) -> GpuSpec:
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        raise DeviceError.mismatch(
            "gpu",
            wanted="an NVIDIA GPU that torch can use",
            found=f"none (torch {torch.__version__}, CUDA build {torch.version.cuda})",
            fix=f"name a GPU instead of {LOCAL}: {', '.join(GPUS)}",
        )
    count = torch.cuda.device_count()
    if index is None:
        index = torch.cuda.current_device()
    if not 0 <= index < count:
        raise DeviceError.mismatch(
            "index",
            wanted=f"a CUDA device below {count}",
            found=index,
            fix="see which GPUs are visible to this process",
        )
    return _spec_of_properties(torch.cuda.get_device_properties(index))


def _spec_of_properties(properties: object) -> GpuSpec:
    """Describe a GPU from what torch reports; figures an older torch lacks are left unknown."""

    def reported(field: str, default: int = 0) -> int:
        return int(getattr(properties, field, default))

    major, minor = reported("major"), reported("minor")
    num_sms = reported("multi_processor_count")
    # Two transfers per memory clock; the clock is in kHz and the bus in bits.
    dram_bytes_per_s = 2 * reported("memory_clock_rate") * 1000 * reported("memory_bus_width") // 8
    return GpuSpec(
        name=str(getattr(properties, "name", "GPU")),
        compute_capability=(major, minor),
        num_sms=num_sms,
        max_blocks=num_sms,
        register_bytes_per_sm=4 * reported("regs_per_multiprocessor", _REGISTER_BYTES_PER_SM // 4),
        shared_bytes_per_block=reported("shared_memory_per_block_optin", _SHARED_BYTES_PER_BLOCK),
        tensor_bytes_per_sm=_TENSOR_BYTES_PER_SM if arch_of((major, minor)) in _BLACKWELL else 0,
        l2_bytes=reported("L2_cache_size"),
        dram_bytes_per_s=dram_bytes_per_s,
        clock_mhz=reported("clock_rate") // 1000,
    )

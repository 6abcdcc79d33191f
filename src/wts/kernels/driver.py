"""Calls of the CUDA driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from wts.errors import CompileError, DeviceError

__all__ = ["DeviceFunction", "cuda_device", "driver_call"]


def cuda_device(device: str | torch.device | None) -> torch.device:
    """The GPU that is meant, with its index; None means the current one.

    Raises:
        DeviceError: there is none, or what is named is none.
    """
    if not torch.cuda.is_available():
        raise DeviceError(
            "device: wanted a CUDA device, found none that torch can use; "
            "pass backend='emulator', or run on a machine with a Hopper GPU (or Blackwell)"
        )
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda":
        raise DeviceError(f"device: wanted a CUDA device, found {chosen}; pass 'cuda' or 'cuda:0'")
    index = torch.cuda.current_device() if chosen.index is None else chosen.index
    return torch.device("cuda", index)


def driver_call(result: tuple[Any, ...], doing: str) -> Any:
    """Unpack what cuda.bindings returns; DeviceError where the driver refused what was tried."""
    from cuda.bindings import driver

    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError.mismatch(
            doing,
            wanted="success",
            found=f"{error.name} from the driver",
            fix="see whether another program holds this GPU, and what wts doctor says",
        )
    return values[0] if values else None


class DeviceFunction:
    """A kernel of a cubin, loaded on one GPU; all blocks of a launch are co-resident.

    Args:
        cubin: machine code for this GPU.
        name: of the kernel in it.
        device: the GPU, with its index; its context is current.
        threads: of a block.
        shared_bytes: dynamic shared memory of a block.

    Raises:
        CompileError: cuda.core is missing.
        DeviceError: the driver refuses the kernel.
    """

    def __init__(
        self, cubin: bytes, name: str, device: torch.device, *, threads: int, shared_bytes: int
    ) -> None:
        try:
            from cuda.bindings import driver
            from cuda.core import Device, ObjectCode
        except ImportError as error:  # the compiler was not asked: the cubin came from the cache
            raise CompileError.mismatch(
                "cuda.core",
                wanted="version 1.0 or later",
                found=error,
                fix="install the gpu extra; in a clone of the project: pip install '.[gpu]'",
            ) from error

        self.device = device
        self.threads = threads
        self.shared_bytes = shared_bytes
        Device(device.index).set_current()
        self._context = driver_call(driver.cuCtxGetCurrent(), "asking for the context")
        self._code = ObjectCode.from_cubin(cubin)
        self._kernel = self._code.get_kernel(name)
        self._function = driver.CUfunction(int(self._kernel.handle))
        attribute = driver.CUfunction_attribute
        driver_call(
            driver.cuKernelSetAttribute(
                attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared_bytes,
                driver.CUkernel(int(self._kernel.handle)),
                driver.CUdevice(device.index),
            ),
            "setting the kernel's shared memory",
        )

    def most_blocks(self) -> int:
        """Blocks that the GPU holds at once."""
        from cuda.bindings import driver

        per_sm: int = driver_call(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                self._function, self.threads, self.shared_bytes
            ),
            "asking for the kernel's occupancy",
        )
        sms: int = torch.cuda.get_device_properties(self.device).multi_processor_count
        return per_sm * sms

    def launch(self, argument: bytes, blocks: int) -> None:
        """Launch on torch's current stream of the GPU.

        Args:
            argument: the bytes of the kernel's one argument.
            blocks: of the grid; more than `most_blocks` are refused (DeviceError).
        """
        from cuda.bindings import driver

        # Every block waits for every other, so all must be resident: the driver checks that.
        cooperative = driver.CUlaunchAttribute()
        cooperative.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        cooperative.value.cooperative = 1
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.threads, 1, 1
        config.sharedMemBytes = self.shared_bytes
        config.hStream = torch.cuda.current_stream(self.device).cuda_stream
        config.attrs = [cooperative]
        config.numAttrs = 1
        data = ctypes.create_string_buffer(argument, len(argument))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(data))
        with self._current_context():
            driver_call(
                driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(parameters), 0),
                f"launching a walk of {blocks} co-resident blocks",
            )

    @contextmanager
    def _current_context(self) -> Iterator[None]:
        """The context of this GPU: a new thread has none yet, and torch may be on another GPU."""
        from cuda.bindings import driver

        current = driver_call(driver.cuCtxGetCurrent(), "asking for the context")
        if current == self._context:
            yield
            return
        driver_call(driver.cuCtxPushCurrent(self._context), "entering the context")
        try:
            yield
        finally:
            driver_call(driver.cuCtxPopCurrent(), "leaving the context")

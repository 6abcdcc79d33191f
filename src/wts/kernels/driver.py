"""Calls of the CUDA driver."""

from __future__ import annotations

from typing import Any

import torch

from wts.errors import DeviceError

__all__ = ["cuda_device", "driver_call"]


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

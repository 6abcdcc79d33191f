"""Tests in this folder need a GPU that walks; elsewhere they are skipped, and say why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from wts.errors import DeviceError
from wts.hardware.gpu import LOCAL, gpu_spec

HERE = Path(__file__).parent
# The emulator's steps are small: many threads would wait for each other.
torch.set_num_threads(min(4, torch.get_num_threads()))


def unusable() -> str:
    """Why these tests cannot run here, or ""."""
    try:
        gpu = gpu_spec(LOCAL)
    except DeviceError as error:
        return str(error)
    return "" if gpu.walks else f"needs a Hopper or a Blackwell GPU, found {gpu.name}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    reason = unusable() if here else ""
    if reason and os.environ.get("WTS_NEEDS_GPU"):
        pytest.exit(f"nothing was tested: {reason}", returncode=1)
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))

"""A head, its files, a cache of its own; no GPU, or one as far as asking torch goes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from drafters import write_drafter
from wts.heads.markov import MarkovHead

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def head() -> MarkovHead:
    return MarkovHead.random(vocab=203, rank=64, seed=3)


@pytest.fixture
def base_logits() -> torch.Tensor:
    return torch.randn(2, 5, 203, generator=torch.Generator().manual_seed(1)).to(BF16)


@pytest.fixture
def drafter(tmp_path: Path, head: MarkovHead) -> Path:
    return write_drafter(tmp_path / "drafter", head)


@pytest.fixture
def logits_file(tmp_path: Path, base_logits: torch.Tensor) -> Path:
    path = tmp_path / "base.safetensors"
    save_file({"a": torch.zeros(1), "base_logits": base_logits}, path)
    return path


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hopper GPU as far as asking torch goes."""
    properties = SimpleNamespace(name="X", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)

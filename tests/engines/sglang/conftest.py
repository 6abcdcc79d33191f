"""SGLang's modules that an upkeep follows, with fresh classes for each test."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from sglang_served import Results, Updater
from wts.engines.sglang.version import RELEASES

RELEASE = RELEASES[-1]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> tuple[type[Any], type[Any]]:
    """Modules of SGLang that an upkeep is hung on, with fresh classes."""
    classes = []
    for methods, base in ((RELEASE.updates, Updater), (RELEASE.results, Results)):
        name, _, owner = methods.owner.rpartition(".")
        cls = type(owner, (base,), {})
        module = ModuleType(name)
        setattr(module, owner, cls)
        monkeypatch.setitem(sys.modules, name, module)
        classes.append(cls)
    return classes[0], classes[1]

"""Which releases of SGLang are served."""

from __future__ import annotations

import pytest

from wts.engines.common.reasons import Reason
from wts.engines.sglang.version import RELEASES, release_of


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.5.23+cu130"])
def test_the_known_version_and_its_post_releases_are_served(version: str) -> None:
    assert release_of(version) is RELEASES[-1]


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "0.5.230", "0.5.23rc1", "1.0", "0x5y23"])
def test_other_versions_are_named(version: str) -> None:
    reason = release_of(version)
    assert isinstance(reason, Reason)
    assert reason.kind == "version"
    assert version in reason.text
    assert "0.5.23" in reason.text


def test_no_sglang_is_a_reason() -> None:
    assert release_of(None) == Reason(kind="version", text="SGLang is not installed")

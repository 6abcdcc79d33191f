"""Options of `wts bench serving` that are refused, and machines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from wts.cli import bench_serving


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--tokens", "72,12"), "short and a long"),
        (("--engine", "mem_fraction_static"), "NAME=JSON"),
        (("--paths", "rival"), "rival"),
    ],
)
def test_bad_options_are_refused(
    options: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench_serving.main(list(options))
    assert word in capsys.readouterr().err


def test_no_gpu_is_an_error_that_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_serving.main(["--out", str(tmp_path)]) == 2
    assert "gpu: wanted an NVIDIA GPU" in capsys.readouterr().err

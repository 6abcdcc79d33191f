"""`wts fidelity` prints and writes a report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from drafters import write_drafter
from strategies import KINDS, recurrent_head
from walk.recordings import save_inputs
from wts.cli import main
from wts.fidelity.summary import summary


def test_the_command_prints_and_writes_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = recurrent_head(KINDS[0])
    folder = write_drafter(tmp_path / "drafter", head)
    inputs = save_inputs(tmp_path / "i.safetensors", head)
    out = tmp_path / "out"
    assert main(["fidelity", str(folder), "--inputs", str(inputs), "--out", str(out)]) == 0
    text, progress = capsys.readouterr()
    printed = json.loads(text)
    assert printed == json.loads((out / "fidelity.json").read_text())
    for line in summary(printed):
        assert f"] {line}\n" in progress
    assert printed["inputs"]["kind"] == "recorded"
    assert (out / "fidelity.png").stat().st_size > 1000
    # Where there is no matplotlib the numbers are there all the same.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        assert main(["fidelity", str(folder), "--out", str(tmp_path / "bare")]) == 0
    assert [path.name for path in (tmp_path / "bare").iterdir()] == ["fidelity.json"]
    assert "no figure: matplotlib" in capsys.readouterr().err
    assert main(["fidelity", str(folder), "--batch", "3", "--steps", "2"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["inputs"]["kind"] == "random"
    assert printed["steps"]["num_steps"] == 6


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fidelity", str(tmp_path), "--batch", "0"]) == 2
    assert "batch: wanted at least 1" in capsys.readouterr().err
    assert main(["fidelity", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err

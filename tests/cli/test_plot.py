"""`wts plot` draws what there are records of."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.results import H200
from wts import cli

pytest.importorskip("matplotlib")


class TestCommand:
    def test_draws_what_was_asked(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["plot", "--results", str(H200), "--out", str(tmp_path)]
        assert cli.main([*arguments, "--figures", "timeline"]) == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["timeline.png", "timeline.svg"]
        assert capsys.readouterr().out.splitlines() == [
            str(tmp_path / "timeline.svg"),
            str(tmp_path / "timeline.png"),
        ]

    def test_unknown_figures_are_an_error(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["plot", "--results", str(H200), "--out", str(tmp_path / "new")]
        assert cli.main([*arguments, "--figures", "cake"]) == 2
        assert "wanted some of footprint" in capsys.readouterr().err
        assert not (tmp_path / "new").exists()

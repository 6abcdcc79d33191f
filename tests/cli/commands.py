"""Running a command in process."""

from __future__ import annotations

import pytest

from wts import cli


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that an error leaves; progress lines before it do not count."""
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if not line.startswith("[")]
    assert len(errors) == 1
    return errors[0]

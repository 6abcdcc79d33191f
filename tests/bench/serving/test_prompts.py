"""Random prompts keep away from special tokens, and lines of a file become prompts in order."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wts.bench.serving import prompts
from wts.bench.serving.prompts import random_prompts, read_prompts
from wts.errors import InputError


def test_random_prompts_keep_away_from_both_ends_of_the_vocabulary() -> None:
    drawn = random_prompts(151_936, 30, 400, seed=1)
    assert {len(prompt) for prompt in drawn} == {400}
    tokens = {token for prompt in drawn for token in prompt}
    assert min(tokens) >= 1024
    assert max(tokens) < 151_936 - 1024
    assert drawn == random_prompts(151_936, 30, 400, seed=1)
    assert drawn != random_prompts(151_936, 30, 400, seed=2)
    assert {token for prompt in random_prompts(8, 5, 40, seed=1) for token in prompt} == {
        2,
        3,
        4,
        5,
    }


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    return path


def test_texts_among_tokens_become_tokens_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_pretrained(folder: str) -> Any:
        assert folder == str(tmp_path / "target")
        return lambda text: {"input_ids": [len(text)]}

    transformers = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setattr(prompts.importlib, "import_module", lambda name: transformers)
    file = write_lines(tmp_path / "p.jsonl", [5, 6], {"text": "abc"}, {"tokens": [7]}, "defgh")
    assert read_prompts(file, tmp_path / "target") == [[5, 6], [3], [7], [5]]


@pytest.mark.parametrize("line", [{"words": 1}, [], [1.5], [True], 3])
def test_a_line_that_is_no_prompt_is_named(line: Any, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "p.jsonl", [5, 6], line)
    with pytest.raises(InputError, match=r"p\.jsonl, line 2"):
        read_prompts(file, tmp_path)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="prompts: wanted a readable file"):
        read_prompts(tmp_path / "none.jsonl", tmp_path)

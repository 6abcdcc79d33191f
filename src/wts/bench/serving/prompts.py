"""Prompts of the serving benchmark: random tokens, or those of a file."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Sequence
from pathlib import Path

from wts.errors import InputError

__all__ = ["random_prompts", "read_prompts"]

# Random prompts keep away from the ends of a vocabulary, where special tokens are.
_MARGIN = 1024


def random_prompts(vocab: int, num: int, length: int, seed: int) -> list[list[int]]:
    """So many prompts of so many tokens each."""
    draw = random.Random(seed)
    margin = min(_MARGIN, vocab // 4)
    return [[draw.randrange(margin, vocab - margin) for _ in range(length)] for _ in range(num)]


def read_prompts(path: Path, target: Path) -> list[list[int]]:
    """Read JSON lines: a list of tokens, or an object with `tokens`, `text` or `prompt`.

    Args:
        path: the file.
        target: folder of the model whose tokens texts become.

    Raises:
        InputError: the file cannot be read, a line is none of these, or texts need transformers
            and it is not there.
    """
    try:
        lines = [
            json.loads(line)
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.strip()
        ]
    except (OSError, json.JSONDecodeError) as error:
        raise InputError.mismatch(
            "prompts", wanted="a readable file of JSON lines", found=str(error), fix="correct it"
        ) from error
    prompts: list[list[int]] = []
    texts: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        value = line
        if isinstance(line, dict):
            value = next(
                (line[name] for name in ("tokens", "text", "prompt") if name in line), None
            )
        if isinstance(value, str):
            texts[len(prompts)] = value
            prompts.append([])
        elif isinstance(value, list) and value and all(type(token) is int for token in value):
            prompts.append(value)
        else:
            raise InputError.mismatch(
                f"{path}, line {number}",
                wanted="a list of tokens, or an object with tokens, text or prompt",
                found=json.dumps(line)[:60],
                fix="correct the line",
            )
    for place, tokens in zip(texts, _tokenise(list(texts.values()), target), strict=True):
        prompts[place] = tokens
    return prompts


def _tokenise(texts: Sequence[str], target: Path) -> list[list[int]]:
    if not texts:
        return []
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise InputError.mismatch(
            "prompts",
            wanted="transformers, to make tokens of texts",
            found=str(error),
            fix="install it, or pass tokens",
        ) from error
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(target))
    return [list(tokenizer(text)["input_ids"]) for text in texts]

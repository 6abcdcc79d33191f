"""Types and choices of command-line arguments that several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from wts.hardware.gpu import GPUS, LOCAL

__all__ = ["D2T_READINGS", "GPU_NAMES", "names", "numbers", "size"]

GPU_NAMES = ", ".join([*GPUS, LOCAL])
"""What may be planned for, in words."""

D2T_READINGS = ("auto", "offsets", "ids")
"""How a drafter's d2t may be meant."""

_T = TypeVar("_T", int, float)


def numbers(kind: type[_T], least: float) -> Callable[[str], tuple[_T, ...]]:
    """An argument type: numbers separated by commas, none below the least."""

    def parse(text: str) -> tuple[_T, ...]:
        try:
            values = tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"wanted {kind.__name__} numbers separated by commas, got {text!r}"
            ) from None
        if any(not math.isfinite(value) or value < least for value in values):
            raise argparse.ArgumentTypeError(f"wanted numbers of at least {least}, got {text!r}")
        return tuple(dict.fromkeys(values))

    return parse


def size(text: str) -> int:
    """An argument type: one positive integer."""
    values = numbers(int, 1)(text)
    if len(values) != 1:
        raise argparse.ArgumentTypeError(f"wanted one positive integer, got {text!r}")
    return values[0]


def names(choices: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """An argument type: some of the choices, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        values = tuple(dict.fromkeys(text.split(",")))
        for value in values:
            if value not in choices:
                raise argparse.ArgumentTypeError(
                    f"wanted some of {','.join(choices)}, got {value!r}"
                )
        return values

    return parse

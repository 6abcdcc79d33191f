"""The constants that a kernel is compiled with, as a header: plain C++, no CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from wts.numerics.limits import LARGEST_EXACT_PRODUCT, LEAST_EXACT_PRODUCT, LEAST_TEMPERATURE

__all__ = ["write_header"]

_LARGEST_INT = (1 << 31) - 1
Value = TypeVar("Value")


def write_header(
    constants: Iterable[Mapping[str, int | bool]],
    switches: Iterable[Mapping[str, bool]] = (),
    lists: Iterable[Mapping[str, list[int]]] = (),
) -> str:
    """Write what the sections of a plan give.

    Args:
        constants: by name, of one section each. What an int of C++ cannot hold is 64 bits.
        switches: names and values that the preprocessor asks for.
        lists: numbers that it is given, as the elements of an array.

    Raises:
        ValueError: two sections give the same name.
    """
    lines = [
        "// Rendered by the planner; every size of the kernel comes from here.",
        "#pragma once",
    ]
    lines += [f"#define {name} {int(value)}" for name, value in _joined(switches).items()]
    lines += [
        f"#define {name} {', '.join(map(str, numbers))}" for name, numbers in _joined(lists).items()
    ]
    lines.append("#ifndef WTS_TRACE\n#define WTS_TRACE 0\n#endif")
    lines.append("namespace wts {\nnamespace plan {")
    lines += [_constant(name, value) for name, value in _joined(constants).items()]
    fractions = {
        "LEAST_TEMPERATURE": LEAST_TEMPERATURE,
        "LEAST_EXACT_PRODUCT": LEAST_EXACT_PRODUCT,
        "LARGEST_EXACT_PRODUCT": LARGEST_EXACT_PRODUCT,
    }
    lines += [f"constexpr float {name} = {value!r}f;" for name, value in fractions.items()]
    lines.append("constexpr bool TRACE = WTS_TRACE;")
    lines.append("}  // namespace plan\n}  // namespace wts\n")
    return "\n".join(lines)


def _constant(name: str, value: int | bool) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {name} = {'true' if value else 'false'};"
    if value > _LARGEST_INT:
        return f"constexpr unsigned long long {name} = {value:#x}ull;"
    return f"constexpr int {name} = {value};"


def _joined(sections: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """All that sections give."""
    found: dict[str, Value] = {}
    for section in sections:
        twice = found.keys() & section.keys()
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))}: wanted from one section, found in two")
        found |= section
    return found

"""Greedy texts of servers, compared with those of SGLang's own head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Verdict", "compare_texts", "first_difference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Greedy texts of a start beside those of SGLang's own head in its first start.

    Args:
        path: whose texts.
        repeat: of which start.
        concurrency: requests at a time.
        num_equal: requests whose tokens are all the same.
        num_texts: requests.
        first_difference: place of the first token that differs in any of them.
        is_fault: whether SGLang's own texts are always the same, and these are not.
    """

    path: str
    repeat: int
    concurrency: int
    num_equal: int
    num_texts: int
    first_difference: int | None
    is_fault: bool

    def __str__(self) -> str:
        first = "" if self.first_difference is None else f", the first at {self.first_difference}"
        differ = "" if self.num_equal == self.num_texts else f"; others differ{first}"
        return (
            f"{self.path}, start {self.repeat + 1}, concurrency {self.concurrency}: "
            f"{self.num_equal} of {self.num_texts} greedy texts equal those of sglang, "
            f"start 1{differ}"
        )


def compare_texts(texts: Mapping[tuple[str, int, int], list[list[int]]]) -> list[Verdict]:
    """Compare every start's texts with those of SGLang's own head in its first start.

    Args:
        texts: by path, number of the start and concurrency: the tokens of each request.

    Returns:
        Nothing for concurrencies at which SGLang's own head was not started.
    """
    verdicts = []
    for (path, number, concurrency), given in sorted(texts.items()):
        wanted = texts.get(("sglang", 0, concurrency))
        if wanted is None or (path, number) == ("sglang", 0):
            continue
        steady = all(
            other == wanted
            for (whose, _, requests), other in texts.items()
            if whose == "sglang" and requests == concurrency
        )
        places = [first_difference(a, b) for a, b in zip(wanted, given, strict=True)]
        differing = [place for place in places if place is not None]
        verdicts.append(
            Verdict(
                path=path,
                repeat=number,
                concurrency=concurrency,
                num_equal=len(places) - len(differing),
                num_texts=len(places),
                first_difference=min(differing, default=None),
                is_fault=bool(differing) and steady and path != "sglang",
            )
        )
    return verdicts


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Place of the first token that differs, or of the end of the shorter one; None: all equal."""
    if left == right:
        return None
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))

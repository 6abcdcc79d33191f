"""A model check of the exchange: every interleaving of a few blocks over a few steps and launches.

The model is the protocol of csrc/exchange/all_to_all.cuh and nothing else: each block, step after
step, publishes a word in the slot of the step's parity and then waits until each block's slot of
that parity carries the step's tag. Words become visible to each reader at any later time, in the
order of their slot. A block must never take a word of another step. Broken protocols have to be
caught.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

FIRST_SEQUENCE = 2
EMPTY = -1


@dataclass(frozen=True)
class Protocol:
    """What of the protocol can be broken.

    Args:
        slots: slots of a block, used in turns.
        tag: of a sequence number.
        waits_for_all: whether a block waits for every other one, or goes on after the first.
    """

    slots: int
    tag: Callable[[int], int]
    waits_for_all: bool = True


def parity_tag(sequence: int) -> int:
    """The kernel's tag: sequence / 2, four bits."""
    return (sequence >> 1) & 15


GOOD = Protocol(slots=2, tag=parity_tag)


def explore(protocol: Protocol, *, blocks: int, exchanges: int, first: int = FIRST_SEQUENCE) -> int:
    """Walk through all interleavings; raise AssertionError where a wrong word is taken.

    A state is, for each block, its sequence number and whether it has published, and the slots as
    memory has them and as each reader has last seen them (a reader may lag behind memory).

    Returns:
        Number of states seen.
    """
    last = first + exchanges
    slots = protocol.slots
    # memory[writer][slot]: the sequence number of the word there. seen[reader][writer][slot] alike.
    earlier = tuple(
        max((s for s in range(first - slots, first) if s % slots == slot), default=EMPTY)
        for slot in range(slots)
    )
    memory = tuple(earlier for _ in range(blocks))
    seen = tuple(tuple(earlier for _ in range(blocks)) for _ in range(blocks))
    start = (tuple((first, False) for _ in range(blocks)), memory, seen)
    pending, known = [start], {start}

    def put(rows: tuple, index: int, value: object) -> tuple:
        return (*rows[:index], value, *rows[index + 1 :])

    while pending:
        positions, memory, seen = pending.pop()
        following = []
        for block, (sequence, published) in enumerate(positions):
            if sequence == last:
                continue
            slot = sequence % slots
            if not published:
                written = put(memory, block, put(memory[block], slot, sequence))
                following.append((put(positions, block, (sequence, True)), written, seen))
                continue
            for writer in range(blocks):  # any word may become visible, at any time
                if seen[block][writer] != memory[writer]:
                    fresh = put(seen, block, put(seen[block], writer, memory[writer]))
                    following.append((positions, memory, fresh))
            words = [seen[block][writer][slot] for writer in range(blocks)]
            wanted = protocol.tag(sequence)
            come = [word != EMPTY and protocol.tag(word) == wanted for word in words]
            if all(come) or (not protocol.waits_for_all and any(come)):
                for word in words:
                    assert word == sequence, f"took {word} in exchange {sequence}"
                following.append((put(positions, block, (sequence + 1, False)), memory, seen))
        assert following or all(sequence == last for sequence, _ in positions), "a hang"
        for state in following:
            if state not in known:
                known.add(state)
                pending.append(state)
    return len(known)


@pytest.mark.parametrize(("blocks", "exchanges"), [(1, 6), (2, 6), (3, 3)])
def test_every_interleaving_takes_the_right_words(blocks: int, exchanges: int) -> None:
    assert explore(GOOD, blocks=blocks, exchanges=exchanges) > exchanges


@pytest.mark.parametrize("before", range(5))
def test_tags_and_sequence_numbers_wrap(before: int) -> None:
    """Near a wrap of the four-bit tag (32 exchanges) and of the 32-bit sequence number."""
    for wrap in (64, 1 << 32):
        explore(GOOD, blocks=2, exchanges=5, first=wrap - before)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(Protocol(slots=2, tag=lambda sequence: 0), id="no tag"),
        pytest.param(Protocol(slots=1, tag=parity_tag), id="one slot"),
        pytest.param(Protocol(slots=2, tag=lambda s: s & 1), id="the tag repeats in the same slot"),
        pytest.param(Protocol(slots=2, tag=parity_tag, waits_for_all=False), id="goes on early"),
    ],
)
def test_broken_protocols_are_caught(broken: Protocol) -> None:
    with pytest.raises(AssertionError, match=r"took|hang"):
        explore(broken, blocks=2, exchanges=5)

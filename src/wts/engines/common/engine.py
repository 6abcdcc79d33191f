"""An engine in its own words, and what of it walks: the data that common code decides by."""

from __future__ import annotations

import logging
from dataclasses import dataclass

__all__ = ["Draft", "Engine", "Methods"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What common code says and asks in the name of an engine.

    Args:
        name: as its log lines name it, and its own steps.
        logger: where lines go.
        switch: environment variable that leaves the engine as it is where it is 0.
        verbose: environment variable that has plans and hooks in the log where it is 1.
        update_end: the call that ends an update of weights, as its users know it.
        memory_fix: what its users do for more free memory, in the imperative.
        reserve_bytes: what has to stay free after building, for what the engine allocates next.
    """

    name: str
    logger: logging.Logger
    switch: str
    verbose: str
    update_end: str
    memory_fix: str
    reserve_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A kind of draft that an engine makes, and which of them walk.

    Args:
        engine: whose draft it is.
        name: as a log line names it, after "on for" and "off for".
        heads: names of the kinds of head that walk.
        sampled: whether rows of a temperature above 0 walk, too.
        one_rank: why ranks may not draft a block together; None: they may, each with the whole
            head.
    """

    engine: Engine
    name: str
    heads: tuple[str, ...]
    sampled: bool
    one_rank: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """Methods of a class of an engine, by their names.

    Args:
        owner: dotted path of the class.
        names: of the methods.
    """

    owner: str
    names: tuple[str, ...]

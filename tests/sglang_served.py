"""A DSpark draft that is served on the emulator, and stand-ins for the SGLang that serves it."""

from __future__ import annotations

from typing import Any

from sglang_draft import Draft, stand_in
from strategies import hopper, recurrent_head
from wts.engines.common.reasons import Reason
from wts.engines.common.upkeep import Upkeep
from wts.engines.sglang.dspark import Factory, factory_of
from wts.engines.sglang.version import RELEASES, SGLANG
from wts.errors import WalkTimeout
from wts.heads.base import Head
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.walk.walker_set import WalkerSet

RELEASE = RELEASES[-1]
STEPS, MOST, HIDDEN = 5, 3, 40
KINDS = (MarkovHead, GatedHead, RnnHead)


def head_of(kind: type[Any], seed: int = 7) -> Head:
    if kind is MarkovHead:
        return MarkovHead.random(vocab=517, rank=64, seed=seed)
    return recurrent_head(kind, seed=seed)


def draft_of(head: Head) -> Draft:
    return Draft(stand_in(head), vocab=head.vocab, hidden_size=HIDDEN)


class Updater:
    """Stands in for SGLang's WeightUpdater."""

    def update_weights_from_disk(self) -> tuple[bool, str]:
        return True, "disk"

    def load_weights_from_distributed(self) -> str:
        return "distributed"

    def update_weights_from_tensor(self) -> str:
        return "tensor"

    def update_weights_from_ipc(self) -> str:
        return "ipc"

    def end_weight_update(self) -> str:
        return "end"


class Results:
    """Stands in for SGLang's SchedulerBatchResultProcessor."""

    def process_batch_result_decode(self, batch: int) -> int:
        return batch + 1


def factory(draft: Draft, blocks: int = 4, ranks: int = 1) -> Factory:
    made = factory_of(
        draft,
        hopper(blocks),
        release=RELEASES[-1],
        agree=lambda reason, *_: reason,
        ranks=ranks,
        backend="emulator",
    )
    assert isinstance(made, Factory)
    return made


def never(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("called")


def upkeep_of(kind: type[Any], **more: Any) -> Upkeep:
    """An upkeep of walks on the emulator, alone."""
    head = head_of(kind)
    walks = WalkerSet(head, hopper(4), batches=[1], steps=STEPS, backend="emulator")
    return Upkeep(
        **({"engine": SGLANG, "walkers": walks, "adopt": lambda: head, "ranks": 1} | more)
    )


class Failing:
    """Walks that are given up in every look."""

    def __init__(self) -> None:
        self.looks = 0

    def check(self) -> None:
        self.looks += 1
        raise WalkTimeout("block 3")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def failing_upkeep(ranks: int) -> tuple[Upkeep, Failing, Clock]:
    walkers, clock = Failing(), Clock()
    reason = Reason(kind="head", text="unused")
    kept = Upkeep(
        engine=SGLANG,
        walkers=walkers,  # type: ignore[arg-type]
        adopt=lambda: reason,
        ranks=ranks,
        clock=clock,
    )
    return kept, walkers, clock


def made_by(agree: Any, head: Head) -> Factory:
    """A factory of one of two ranks, which agree so."""
    made = factory_of(
        draft_of(head), hopper(4), release=RELEASE, agree=agree, ranks=2, backend="emulator"
    )
    assert isinstance(made, Factory)
    return made

"""Small cases, and what stands in for SGLang's pieces and for a walk on the device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wts.bench.baselines import sglang_steps
from wts.bench.baselines.inputs import WalkInputs
from wts.bench.baselines.torch_steps import step_torch
from wts.bench.compare import Twin
from wts.bench.head.cases import HeadCase
from wts.bench.inputs import draw, draw_head, draw_lm_head, draw_weights


def inputs_of(table: Any, projection: Any, base: Any, anchor: Any, **more: Any) -> WalkInputs:
    head_: Any = SimpleNamespace(
        kind="markov",
        table=torch.tensor(table).bfloat16(),
        projection=torch.tensor(projection).bfloat16(),
    )
    return WalkInputs(
        head=head_,
        base_logits=torch.tensor(base).bfloat16(),
        anchor=torch.tensor(anchor),
        **more,
    )


def module_of(given_: Any = None, linear: str = "unused") -> Any:
    """A stand-in for a module of SGLang, with what it was made of."""
    names = ("markov_w1", "markov_w2", linear)
    return SimpleNamespace(made_of=given_, **{name: SimpleNamespace() for name in names})


RECURRENT = ("gated", "rnn", "domino")

each_kind = pytest.mark.parametrize("kind", RECURRENT)


def small_case(kind: Any, **changes: Any) -> HeadCase:
    fields: dict[str, Any] = {
        "head": kind,
        "hidden_size": 48,
        "state_size": 32,
        "vocab": 200,
        "rank": 64,
        "batch": 4,
        "temperature": 0.0,
        "steps": (1, 3),
    }
    return HeadCase(**(fields | changes))


def recurrent_inputs(kind: Any, steps: int, **changes: Any) -> WalkInputs:
    case = small_case(kind, **changes)
    lm_head = draw_lm_head(case, device="cpu", seed=4) if kind == "domino" else None
    drawn = draw(
        vocab=case.vocab,
        batch=case.batch,
        steps=steps,
        temperature=case.temperature,
        device="cpu",
        seed=5,
        hidden_size=case.hidden_size,
        lm_head=lm_head,
    )
    return WalkInputs(
        head=draw_head(case, device="cpu", seed=6),
        base_logits=drawn.base_logits,
        anchor=drawn.anchor,
        hidden=drawn.hidden,
        lm_head=lm_head,
        temperatures=drawn.temperatures,
        noise_offset=torch.zeros(1, dtype=torch.int64),
        logits_out=torch.zeros_like(drawn.base_logits),
    )


def stand_in_library(calls: list[dict[str, Any]]) -> sglang_steps.Sglang:
    """SGLang's pieces, which note what they are given and draft fives."""

    def draft_markov_block(**given_: Any) -> tuple[torch.Tensor, None]:
        calls.append(given_)
        return torch.full(given_["base_logits"].shape[:2], 5), None

    def domino_rollout(**given_: Any) -> torch.Tensor:
        calls.append(given_)
        batch, positions, _ = given_["draft_hidden"].shape
        return torch.full((batch, positions - 1), 5)

    return sglang_steps.Sglang(
        version=sglang_steps.SGLANG_VERSION,
        draft_markov_block=draft_markov_block,
        draft_noise=SimpleNamespace,
        vanilla_markov=lambda **given_: module_of(given_),
        gated_markov=lambda **given_: module_of(given_, "gate_proj"),
        rnn=lambda **given_: module_of(given_, "joint_proj"),
        domino_rollout=domino_rollout,
        tp_sync=lambda group: group,
    )


VOCAB = 96


class TinyWalker:
    """A walk of small weights on the CPU, for either side of the gate; optionally with a fault."""

    def __init__(self, head_: Any, plan: Any = None, *, backend: str = "device") -> None:
        self.head, self.plan, self.backend = head_, plan, backend

    def check(self) -> None:
        pass

    def hidden_term(self) -> None:
        pass

    def twin(self) -> Twin:
        return self

    def __call__(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        hidden_term: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Any = None,
        logits_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        tokens = step_torch(
            WalkInputs(
                head=self.head,
                base_logits=base_logits,
                anchor=anchor,
            )
        )()
        if logits_out is not None:
            logits_out.copy_(base_logits)
        return tokens


class FaultyWalker(TinyWalker):
    """Right but for the last row of the given step, as a stale candidate would make it."""

    step = 1

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        tokens = super().__call__(*args, **kwargs)
        if self.backend == "device" and tokens.shape[1] > self.step:
            tokens[-1, self.step] += 1
        return tokens


def tiny_head() -> Any:
    table, projection = draw_weights(vocab=VOCAB, rank=64, device="cpu", seed=0)
    return SimpleNamespace(kind="markov", table=table, projection=projection)


SMALL = ("--vocab", "96", "--rank", "64", "--batch", "2,1", "--steps", "1,3", "--quick")

RECURRENT_SMALL = (*SMALL, "--hidden-size", "40", "--state-size", "32")

"""A module is adopted by its parts and by what it gives, or left alone, and the reason says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sglang_draft import Gated, Rnn, Vanilla, domino_arguments, parameter, stand_in
from strategies import recurrent_head
from wts.engines.common.reasons import Reason
from wts.engines.sglang.adopt import adopt_domino, adopt_dspark, behaves, plain_embedding
from wts.heads.base import Head, weights_of
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead


def head_of(kind: type[Any]) -> Head:
    if kind is MarkovHead:
        return MarkovHead.random(vocab=517, rank=64, seed=1)
    return recurrent_head(kind)


DSPARK = (MarkovHead, GatedHead, RnnHead)


@pytest.mark.parametrize("kind", DSPARK)
def test_a_module_becomes_the_head_of_its_parts(kind: type[Any]) -> None:
    head = head_of(kind)
    module = stand_in(head)
    found = adopt_dspark(module)
    assert type(found) is kind
    assert not isinstance(found, Reason)
    for name, weight in weights_of(head).items():
        assert torch.equal(weights_of(found)[name], weight)
    assert found.projection.data_ptr() == module.markov_w2.weight.data_ptr()
    assert behaves(module, found) is None


def test_the_name_of_a_class_does_not_matter() -> None:
    class Renamed(Vanilla):
        pass

    head = head_of(MarkovHead)
    module = Renamed(517, 64)
    module.markov_w1.weight = parameter(head.table)
    module.markov_w2.weight = parameter(head.projection)
    found = adopt_dspark(module)
    assert isinstance(found, MarkovHead)
    assert behaves(module, found) is None


class Doubled(Vanilla):
    def latent(self, row: Any, hidden: Any, state: Any) -> Any:
        return 2 * row, state


class Ungated(Gated):
    def latent(self, row: Any, hidden: Any, state: Any) -> Any:
        return row, state


class Forgetful(Rnn):
    """Right in its first step only."""

    def latent(self, row: Any, hidden: Any, state: Any) -> Any:
        latent, _ = super().latent(row, hidden, state)
        return latent, torch.zeros_like(state)


class Loud(Vanilla):
    def latent(self, row: Any, hidden: Any, state: Any) -> Any:
        raise RuntimeError("needs more")


class Narrow(Vanilla):
    def step_bias(self, prev_tokens: Any, *, hidden_states: Any, state: Any) -> Any:
        bias, state = super().step_bias(prev_tokens, hidden_states=hidden_states, state=state)
        return bias[:, :-1], state


@pytest.mark.parametrize(
    ("kind", "impostor", "word"),
    [
        (MarkovHead, Doubled, "another bias"),
        (GatedHead, Ungated, "another bias"),
        (RnnHead, Forgetful, "another bias"),
        (MarkovHead, Loud, "needs more"),
        (MarkovHead, Narrow, "516"),
    ],
)
def test_a_formula_of_its_own_is_found_out(kind: type[Any], impostor: Any, word: str) -> None:
    module = stand_in(head_of(kind))
    module.__class__ = impostor
    found = adopt_dspark(module)
    assert not isinstance(found, Reason)
    reason = behaves(module, found)
    assert reason is not None
    assert reason.kind == "head"
    assert word in reason.text


def test_weights_that_are_not_numbers_are_left_alone() -> None:
    module = stand_in(head_of(MarkovHead))
    module.markov_w2.weight[:] = float("nan")
    found = adopt_dspark(module)
    assert not isinstance(found, Reason)
    assert behaves(module, found) is not None


def quantised(module: Any) -> None:
    module.markov_w2.weight = parameter(module.markov_w2.weight.to(torch.float8_e4m3fn))


def packed(module: Any) -> None:
    del module.markov_w2.weight


def biased(module: Any) -> None:
    module.markov_w2.bias = parameter(torch.ones(517))


def wrapped(module: Any) -> None:
    outer = nn.Module()
    outer.base_layer = module.markov_w2
    outer.weight = module.markov_w2.weight
    module.markov_w2 = outer


def sharded(module: Any) -> None:
    module.vocab_shard = object()


def sharded_v4(module: Any) -> None:
    module._tp_shard = object()


def of_another_rank(module: Any) -> None:
    module.markov_w1.weight = parameter(module.markov_w1.weight[:, :48])
    module.markov_w2.weight = parameter(module.markov_w2.weight[:, :48])


def headless(module: Any) -> None:
    del module.markov_w1


def both(module: Any) -> None:
    module.gate_proj = module.joint_proj = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("change", "kind", "word"),
    [
        (quantised, "quantised", "float8"),
        (packed, "quantised", "no tensor"),
        (biased, "head", "markov_w2 has a bias"),
        (wrapped, "lora", "LoRA"),
        (sharded, "tensor parallelism", "TP_SHARD=0"),
        (sharded_v4, "tensor parallelism", "TP_SHARD=0"),
        (of_another_rank, "head", "rank"),
        (headless, "head", "no markov_w1"),
        (both, "head", "both"),
    ],
)
def test_what_cannot_walk_says_why(change: Callable[[Any], None], kind: str, word: str) -> None:
    module = stand_in(head_of(MarkovHead))
    change(module)
    found = adopt_dspark(module)
    assert isinstance(found, Reason)
    assert found.kind == kind
    assert word in found.text


def test_a_padded_embedding_is_cut_to_the_vocabulary() -> None:
    head = head_of(MarkovHead)
    module = stand_in(head)
    module.markov_w1.weight = parameter(torch.cat([head.table, head.table[:11]]))
    found = adopt_dspark(module)
    assert isinstance(found, MarkovHead)
    assert found.table_rows == 517


# ---- Domino ------------------------------------------------------------------------------------


def rollout_arguments() -> dict[str, Any]:
    head = recurrent_head(DominoHead, shift_label=True)
    assert isinstance(head, DominoHead)
    hidden = torch.zeros(1, 4, 40).bfloat16()
    return domino_arguments(head, block_hidden=hidden, anchor=torch.zeros(1).long())


MODULES = ("target_embedding", "prefix_gru", "embed_proj", "vocab_size", "shift_label")


def adopt(arguments: dict[str, Any]) -> DominoHead | Reason:
    return adopt_domino(**{name: arguments[name] for name in MODULES})


def test_the_modules_of_a_rollout_become_a_head() -> None:
    head = recurrent_head(DominoHead, shift_label=True)
    arguments = rollout_arguments()
    found = adopt(arguments)
    assert isinstance(found, DominoHead)
    assert found.shift_label
    for name, weight in weights_of(head).items():
        assert torch.equal(weights_of(found)[name], weight)
    assert plain_embedding(arguments["target_embedding"], found) is None


def test_an_embedding_that_scales_is_found_out() -> None:
    class Scaled(nn.Embedding):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens) * 2

    arguments = rollout_arguments()
    arguments["target_embedding"].__class__ = Scaled
    found = adopt(arguments)
    assert isinstance(found, DominoHead)
    reason = plain_embedding(arguments["target_embedding"], found)
    assert reason is not None
    assert "more than a look-up" in reason.text


def two_layers(arguments: dict[str, Any]) -> None:
    arguments["prefix_gru"] = nn.GRU(40, 32, num_layers=2, bias=False).bfloat16()


def gru_bias(arguments: dict[str, Any]) -> None:
    arguments["prefix_gru"] = nn.GRU(40, 32).bfloat16()


def other_activation(arguments: dict[str, Any]) -> None:
    arguments["embed_proj"][1] = nn.GELU()


def projector_bias(arguments: dict[str, Any]) -> None:
    arguments["embed_proj"][2].bias = parameter(torch.zeros(517))


def sharded_embedding(arguments: dict[str, Any]) -> None:
    arguments["target_embedding"].tp_size = 2


def quantised_embedding(arguments: dict[str, Any]) -> None:
    arguments["target_embedding"].weight = parameter(torch.zeros(517, 40, dtype=torch.int8))


def adapter(arguments: dict[str, Any]) -> None:
    outer = nn.Module()
    outer.base_layer = arguments["target_embedding"]
    arguments["target_embedding"] = outer


@pytest.mark.parametrize(
    ("change", "kind", "word"),
    [
        (two_layers, "head", "one layer"),
        (gru_bias, "head", "without bias"),
        (other_activation, "head", "SiLU"),
        (projector_bias, "head", "without bias"),
        (sharded_embedding, "tensor parallelism", "sharded"),
        (quantised_embedding, "quantised", "int8"),
        (adapter, "lora", "LoRA"),
    ],
)
def test_a_rollout_that_cannot_walk_says_why(
    change: Callable[[dict[str, Any]], None], kind: str, word: str
) -> None:
    arguments = rollout_arguments()
    change(arguments)
    found = adopt(arguments)
    assert isinstance(found, Reason)
    assert found.kind == kind
    assert word in found.text

"""What SGLang's own functions are given, against stand-ins for them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.stand_ins import inputs_of, module_of, recurrent_inputs, stand_in_library
from wts.bench.baselines import sglang_steps
from wts.errors import DeviceError, InputError
from wts.heads.domino import DominoHead


@pytest.mark.parametrize(
    ("version", "found"), [(None, "found none installed"), ("0.5.22", r"found SGLang 0\.5\.22")]
)
def test_another_sglang_is_refused_by_name(
    version: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_steps, "installed_version", lambda _: version)
    with pytest.raises(DeviceError, match=found):
        sglang_steps.load_sglang()


def test_an_sglang_that_does_not_import_gives_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise ImportError(f"no {name} here")

    monkeypatch.setattr(sglang_steps, "installed_version", lambda _: sglang_steps.SGLANG_VERSION)
    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(DeviceError, match=r"ImportError: no sglang\.srt"):
        sglang_steps.load_sglang()


def test_sglang_paths_run_its_own_block() -> None:
    """Against a stand-in for the pieces of SGLang: what they are given, and that tokens return."""
    calls: list[dict[str, Any]] = []

    def draft_markov_block(**given_: Any) -> tuple[torch.Tensor, None]:
        calls.append(given_)
        return torch.full(given_["base_logits"].shape[:2], 5), None

    library = sglang_steps.Sglang(
        version=sglang_steps.SGLANG_VERSION,
        draft_markov_block=draft_markov_block,
        draft_noise=SimpleNamespace,
        vanilla_markov=lambda **_: module_of(),
        gated_markov=lambda **given_: module_of(given_, "gate_proj"),
        rnn=lambda **given_: module_of(given_, "joint_proj"),
        domino_rollout=lambda **_: None,
        tp_sync=lambda group: group,
    )
    inputs = inputs_of(
        [[1.0, 0.0]] * 3,
        [[1.0, 0.0]] * 3,
        [[[0.0, 0.0, 0.0]] * 2],
        [0],
        noise_offset=torch.zeros(1, dtype=torch.int64),
        logits_out=torch.zeros(1, 2, 3).bfloat16(),
    )
    assert sglang_steps.sglang(inputs, library=library)().tolist() == [[5, 5]]
    assert sglang_steps.sglang_greedy(inputs, library=library)().tolist() == [[5, 5]]
    default, fused = calls
    assert default["greedy_draft"] is False
    assert default["logits_out"] is inputs.logits_out
    assert default["step_temperatures"].tolist() == [0.0]
    assert default["markov_head"].markov_w1.weight.data_ptr() == inputs.table.data_ptr()
    assert fused["greedy_draft"] is True
    assert fused["logits_out"] is None


@pytest.mark.parametrize(("kind", "linear"), [("gated", "gate_proj"), ("rnn", "joint_proj")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sglang_is_given_its_own_module_of_a_head(
    kind: Any, linear: str, temperature: float
) -> None:
    calls: list[dict[str, Any]] = []
    inputs = recurrent_inputs(kind, 3, temperature=temperature)
    tokens = sglang_steps.sglang(inputs, library=stand_in_library(calls))()
    assert tokens.shape == (4, 3)
    (call,) = calls
    module = call["markov_head"]
    assert module.made_of == {"vocab_size": 200, "markov_rank": 64, "hidden_size": 48}
    names = ("gate_weight", "gate_bias") if kind == "gated" else ("joint_weight", "joint_bias")
    held = getattr(module, linear)
    for part, name in zip((held.weight, held.bias), names, strict=True):
        assert part.data_ptr() == getattr(inputs.head, name).data_ptr()
    assert module.markov_w2.weight.data_ptr() == inputs.projection.data_ptr()
    assert call["draft_hidden"] is inputs.hidden
    assert call["step_temperatures"].tolist() == [temperature] * 4
    with pytest.raises(InputError, match="one greedy row of a Markov head"):
        sglang_steps.sglang_greedy(recurrent_inputs(kind, 2, batch=1), library=stand_in_library([]))


@pytest.mark.parametrize("shift_label", [False, True])
def test_sglang_is_given_a_domino_block(shift_label: bool) -> None:
    calls: list[dict[str, Any]] = []
    inputs = recurrent_inputs("domino", 3)
    assert isinstance(inputs.head, DominoHead)
    inputs = replace(inputs, head=replace(inputs.head, shift_label=shift_label))
    tokens = sglang_steps.sglang_domino(inputs, library=stand_in_library(calls))()
    assert tokens.shape == (4, 3)
    (call,) = calls
    assert isinstance(inputs.head, DominoHead)
    assert call["draft_hidden"].shape == (4, 4, 48)
    assert torch.equal(inputs.head.drafting_hidden(call["draft_hidden"]), inputs.hidden)
    assert (call["vocab_size"], call["candidate_pool_size"]) == (200, 0)
    assert call["shift_label"] is shift_label
    assert call["lm_head_weight"] is inputs.lm_head
    assert torch.equal(call["bonus_tokens"], inputs.anchor)
    assert torch.equal(call["prefix_gru"].weight_ih_l0, inputs.head.gru_input_weight)
    assert torch.equal(call["prefix_gru"].weight_hh_l0, inputs.head.gru_state_weight)
    assert torch.equal(call["embed_proj"][0].weight, inputs.head.projector_weight)
    assert torch.equal(call["embed_proj"][2].weight, inputs.projection)
    assert torch.equal(call["target_embedding"](inputs.anchor), inputs.table[inputs.anchor])


def test_sglang_rolls_out_greedy_domino_heads_only() -> None:
    library = stand_in_library([])
    inputs = recurrent_inputs("domino", 2)
    for other in (
        recurrent_inputs("domino", 2, temperature=1.0),
        recurrent_inputs("gated", 2),
        replace(inputs, lm_head=None),
    ):
        with pytest.raises(InputError, match="a greedy walk of a Domino head"):
            sglang_steps.sglang_domino(other, library=library)

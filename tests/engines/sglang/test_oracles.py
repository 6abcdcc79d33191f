"""SGLang's own samplers, functions and hook registry beside walks on the emulator, on the CPU.

Skipped where SGLang 0.5.23 does not import.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import wts
from sglang_draft import Buffers, domino_arguments
from sglang_oracle import draft_of, input_ids, one_rank, same_block, sampler_of, sglang_or_skip
from strategies import anchors, hopper, recurrent_head
from wts.bench.baselines.sglang_steps import Sglang
from wts.engines.common.upkeep import Upkeep, class_of
from wts.engines.sglang import events
from wts.engines.sglang.domino import Rollout, prepare
from wts.engines.sglang.version import RELEASES, SGLANG
from wts.heads.base import Head
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead

STEPS, MOST, HIDDEN = 6, 4, 40
KINDS = (MarkovHead, GatedHead, RnnHead)


@pytest.fixture(scope="module")
def library() -> Sglang:
    return sglang_or_skip()


def head_of(kind: type[Any]) -> Head:
    if kind is MarkovHead:
        return MarkovHead.random(vocab=517, rank=64, seed=1)
    return recurrent_head(kind)


@pytest.mark.parametrize("greedy_draft", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_sampler_drafts_what_sglangs_steps_draft(
    library: Sglang, kind: type[Any], greedy_draft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_rank(monkeypatch, hopper(4), "emulator")
    head = head_of(kind)
    draft = draft_of(library, head, hidden_size=HIDDEN)
    buffers = {ours: Buffers(head, most=MOST, steps=STEPS) for ours in (True, False)}
    samplers = {
        ours: sampler_of(library, draft, held, ours=ours, greedy_draft=greedy_draft)
        for ours, held in buffers.items()
    }
    heat = torch.tensor([0.0, 0.5, 1.0, 0.0])
    shares = []
    for offset, batch in enumerate((4, 1, 3)):
        hidden = torch.randn(batch * STEPS, HIDDEN, generator=torch.Generator().manual_seed(batch))
        anchor = anchors(head, batch, seed=batch)
        for ours, made in samplers.items():
            made.params.step_temperatures[:] = heat
            made(hidden.bfloat16(), input_ids(anchor, STEPS, head.vocab))
            counted = buffers[ours].noise.offset.item()
            assert counted == (0 if greedy_draft else offset + 1)
        base, _ = draft.compute_base_logits(hidden.bfloat16())
        tokens = {
            ours: made.out[: batch * STEPS].view(batch, STEPS) for ours, made in samplers.items()
        }
        logits: dict[bool, Any] = dict.fromkeys(samplers)
        if not greedy_draft:
            logits = {ours: made.step_logits[:batch] for ours, made in samplers.items()}
        share = same_block(
            head,
            base_logits=base.view(batch, STEPS, -1),
            anchor=anchor,
            hidden=None if kind is MarkovHead else hidden.bfloat16().view(batch, STEPS, -1),
            ours=tokens[True],
            theirs=tokens[False],
            temperatures=None if greedy_draft else heat[:batch],
            key=buffers[True].noise.key,
            offset=offset,
            our_logits=logits[True],
            their_logits=logits[False],
        )
        shares.append(share)
    assert sum(shares) / len(shares) > 0.5, "a bound that decides little tests little"


@pytest.mark.parametrize("shift_label", [False, True])
def test_the_rollout_drafts_what_sglangs_rollout_drafts(
    library: Sglang, shift_label: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "attach", lambda kept, release: None)
    head = recurrent_head(DominoHead, shift_label=shift_label)
    assert isinstance(head, DominoHead)
    generator = torch.Generator().manual_seed(2)
    block = torch.randn(MOST, STEPS + 1, HIDDEN, generator=generator).bfloat16()
    arguments = domino_arguments(head, block_hidden=block, anchor=anchors(head, MOST, seed=1))
    rollout = prepare(
        arguments, hopper(4), release=RELEASES[-1], most_requests=MOST, backend="emulator"
    )
    assert isinstance(rollout, Rollout)
    assert rollout.takes(arguments)
    hidden = head.drafting_hidden(block)
    share = same_block(
        head,
        base_logits=functional.linear(hidden, arguments["lm_head_weight"][: head.vocab]),
        anchor=arguments["bonus_tokens"],
        hidden=hidden,
        ours=rollout(arguments),
        theirs=library.domino_rollout(**arguments),
    )
    assert share > 0.3, "a bound that decides little tests little"


def test_the_rollout_is_called_with_names_only(library: Sglang) -> None:
    """The hook leaves calls with positions to SGLang; there must be none."""
    kinds = {p.kind for p in inspect.signature(library.domino_rollout).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


class Failing:
    def check(self) -> None:
        raise AssertionError("looked")


@pytest.mark.usefixtures("library")
def test_the_methods_that_an_upkeep_is_hung_on_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    release = RELEASES[-1]
    for methods in (release.updates, release.parts, release.results):
        owner = class_of(methods.owner)
        for name in methods.names:
            monkeypatch.setattr(owner, name, getattr(owner, name))  # put back afterwards
    kept = Upkeep(
        engine=SGLANG,
        walkers=Failing(),  # type: ignore[arg-type]
        adopt=lambda: pytest.fail("adopted"),
        ranks=1,
    )
    assert events.attach(kept, release) is None


@pytest.mark.usefixtures("library")
def test_padded_temperatures_of_its_sampler_are_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.speculative.dspark_components.dspark_draft_sampler import DsparkDraftSampler

    (name,) = RELEASES[-1].staging.names
    monkeypatch.setattr(DsparkDraftSampler, name, getattr(DsparkDraftSampler, name))
    assert events.clear_padding(RELEASES[-1])
    assert getattr(DsparkDraftSampler, name).wts_clears_padding


LOAD = """
import sys
first = sys.argv[1] == "consumer first"
name = "sglang.srt.speculative.dspark_components.dspark_draft_sampler"
if first:
    __import__(name)
from sglang.srt.plugins import load_plugins
load_plugins()
import importlib
samplers = importlib.import_module(name)
from wts.engines.sglang import hooks
taken = [samplers.megakernel_draft_sampler(hooks.PROBE) is hooks.PROBE]
worker = importlib.import_module("sglang.srt.speculative.dflash_worker_v2")
taken += [worker.domino_greedy_rollout(draft_hidden=hooks.PROBE) is hooks.PROBE]
print("taken", taken)
"""


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("order", ["consumer first", "plugin first"])
def test_sglangs_own_loader_finds_and_applies_the_hooks(tmp_path: Path, order: str) -> None:
    source = Path(wts.__file__).parents[1]
    info = tmp_path / "weights_that_stay-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weights-that-stay\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nweights_that_stay = wts.engines.sglang.plugin:register\n"
    )
    paths = [str(tmp_path), str(source), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, order],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "taken [True, True]" in done.stdout, done.stderr
    assert "did not take" not in done.stdout + done.stderr

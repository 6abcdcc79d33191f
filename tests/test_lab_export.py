"""A sample has the logits of the head that it was cut out of, and the package runs on it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lab import fidelity
from lab.checkpoints import load_drafter, load_target
from lab.data import Tokens
from lab.export import choose_tokens, export_sample
from lab_case import CPU, save_pair, write_data
from simulator import Simulator
from wts import cli
from wts.errors import WalkError
from wts.fidelity import examine
from wts.hardware.gpu import GPUS
from wts.heads.config import read_config
from wts.heads.load import read_head
from wts.heads.markov import MarkovHead
from wts.kernels.planner import plan_residency
from wts.numerics.step_logits import step_logits
from wts.walk import shipped
from wts.walk.reference import exact_walk
from wts.walk.shipped import load_sample
from wts.walk.walker import Walker

VOCAB, DRAFT = 40, 25


def text(seed: int = 0, *, files: int = 9) -> Tokens:
    """Files of tokens of which low ones of a shuffled vocabulary are frequent."""
    generator = np.random.default_rng(seed)
    names = np.random.default_rng(99).permutation(256)
    ids = names[np.minimum(generator.geometric(0.12, size=files * 80) - 1, 255)].astype(np.int32)
    return Tokens(ids=ids, starts=np.arange(files) * 80, domains=np.arange(files) % 3)


def export(folder: Path, name: str, **changes: object) -> Path:
    drafter, target = save_pair(folder / "models", name)
    settings = {
        "frequent_in": text(), "recorded_in": text(1), "vocab": VOCAB, "draft_vocab": DRAFT,
        "requests": 6, "about": {"drafter": name},
    }  # fmt: skip
    return export_sample(
        load_target(target, CPU), load_drafter(drafter, CPU), folder / "sample",
        **(settings | changes),  # type: ignore[arg-type]
    )  # fmt: skip


def test_frequent_tokens_are_kept() -> None:
    ids = np.array([5, 5, 5, 9, 9, 2, 7, 7, 7, 7], np.int32)
    tokens = Tokens(ids=ids, starts=np.array([0]), domains=np.array([0]))
    kept = choose_tokens(tokens, vocab=3, draft_vocab=2, full_vocab=12)
    assert kept.target.tolist() == [5, 7, 9]
    assert kept.draft.tolist() == [0, 1]
    # Tokens that never occur fill up from the lowest id.
    assert choose_tokens(tokens, vocab=6, draft_vocab=4, full_vocab=12).target.tolist() == [
        0, 1, 2, 5, 7, 9,
    ]  # fmt: skip
    with pytest.raises(WalkError, match="vocab: wanted"):
        choose_tokens(tokens, vocab=3, draft_vocab=4, full_vocab=12)


@pytest.mark.parametrize("name", ["vanilla-3", "gated-3", "rnn-3"])
def test_logits_are_those_of_the_whole_head(name: str, tmp_path: Path) -> None:
    folder = export(tmp_path, name)
    whole = read_head(tmp_path / "models" / name)
    found = load_sample(folder)
    assert (found.head.vocab, found.head.table_rows) == (DRAFT, VOCAB)
    assert read_config(folder).block_size == 3
    ids = load_file(folder / "model.safetensors")["token_ids"].long()
    mapping = found.head.draft_to_target
    assert mapping is not None
    # A walk over the whole vocabulary's base logits, cut to the tokens that are drafted.
    hidden = found.inputs.hidden
    states = found.head.initial_state(6), whole.initial_state(6)
    prev = found.inputs.anchor
    for step in range(3):
        at = None if hidden is None else hidden[:, step]
        base = found.inputs.base_logits[:, step]
        state, latent = found.head.latent(states[0], prev, at)
        other, full_latent = whole.latent(states[1], ids[prev], at)
        states = state, other
        full_base = torch.zeros(6, whole.vocab).bfloat16()
        full_base[:, ids[mapping]] = base
        cut = step_logits(whole, full_base, full_latent)[:, ids[mapping]]
        assert torch.equal(step_logits(found.head, base, latent), cut)
        assert found.inputs.tokens is not None
        prev = found.inputs.tokens[:, step]


def test_what_is_recorded_is_of_real_text(tmp_path: Path) -> None:
    folder = export(tmp_path, "gated-3")
    found = load_sample(folder)
    drafter, target = save_pair(tmp_path / "models", "gated-3")
    trained, model = load_drafter(drafter, CPU), load_target(target, CPU)
    ids = load_file(folder / "model.safetensors")["token_ids"].long()
    held_out = text(1).ids
    inputs, mapping = found.inputs, found.head.draft_to_target
    assert inputs.tokens is not None
    assert inputs.hidden is not None
    assert mapping is not None
    assert inputs.recorded
    for row in range(6):
        block = ids[torch.cat([inputs.anchor[row : row + 1], inputs.tokens[row]])].tolist()
        places = [i for i in range(len(held_out) - 3) if held_out[i : i + 4].tolist() == block]
        matches = []
        for place in places:
            start = place // 80 * 80
            context = torch.from_numpy(held_out[start:place].astype(np.int64))[None]
            with torch.no_grad():
                _, read = model(context, read=trained.shape.target_layers)
                position = torch.arange(place - start)[None]
                hidden = trained.draft_hidden(
                    model.embed_tokens.weight[block[0]][None, None],
                    model.embed_tokens.weight[trained.shape.mask_token],
                    torch.tensor([[place - start]]),
                    trained.context(read, position),
                )[0, 0]
            base = hidden @ model.embed_tokens.weight[ids[mapping]].T
            matches.append(
                torch.equal(hidden, inputs.hidden[row])
                and torch.equal(base, inputs.base_logits[row])
            )
        assert any(matches)
    about = json.loads((folder / "sample.json").read_text())
    assert about["drafter"] == "gated-3"
    assert len(about["domains"]) == 6


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    with pytest.raises(WalkError, match="Domino"):
        export(tmp_path, "domino-3")
    with pytest.raises(WalkError, match="requests: wanted at most"):
        export(tmp_path, "vanilla-3", requests=100)
    with pytest.raises(WalkError, match="folder: wanted a sample"):
        load_sample(tmp_path)


def write_table(path: Path) -> Path:
    """A merge table of single bytes, as qwen.tiktoken writes one."""
    import base64

    lines = [f"{base64.b64encode(bytes([i])).decode()} {i}" for i in range(256)]
    path.write_text("\n".join(lines))
    return path


def test_the_demo_and_fidelity_run_on_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = export(tmp_path, "vanilla-3", table=write_table(tmp_path / "table"))
    found = load_sample(folder)
    assert found.texts is not None
    assert len(found.texts) == VOCAB
    ids = load_file(folder / "model.safetensors")["token_ids"].long()
    assert found.text_of(torch.tensor([0, 3])) == "".join(
        bytes([int(ids[i])]).decode("utf-8", errors="replace") for i in (0, 3)
    )
    monkeypatch.setattr(shipped, "load_sample", lambda: found)
    monkeypatch.setattr(shipped, "has_sample", lambda: True)
    monkeypatch.setattr("wts.cli.demo.device_obstacle", lambda: "none here")
    monkeypatch.setattr("wts.cli.demo._SMALL_VOCAB", 60)
    assert cli.main(["demo", "--steps", "2"]) == 0
    printed = capsys.readouterr().out
    assert "A trained markov head of 25 tokens, behind real text" in printed
    assert "of 18 tokens" in printed
    recorded = str(folder / "recorded.safetensors")
    assert cli.main(["fidelity", str(folder), "--inputs", recorded]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["inputs"] == {
        "kind": "recorded", "requests": 6, "steps": 3, "previous_tokens": "recorded",
    }  # fmt: skip


def test_fidelity_of_every_drafter_on_its_own_text(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    for name in ("vanilla-3", "domino-3"):
        save_pair(tmp_path / "models", name)
    out = tmp_path / "out"
    fidelity.main([str(data), str(tmp_path / "models"), str(out), "--requests", "5"])
    for name, steps in (("vanilla-3", 3), ("domino-3", 2)):
        report = json.loads((out / f"{name}.json").read_text())
        assert report["inputs"]["previous_tokens"] == "recorded"
        requests = report["inputs"]["requests"]
        assert 1 <= requests <= 5
        assert report["steps"]["num_steps"] == requests * steps
        assert (out / f"{name}.png").stat().st_size > 1000


def test_the_sample_that_ships() -> None:
    found = load_sample()
    assert sum(path.stat().st_size for path in shipped.FOLDER.iterdir()) < 12 << 20
    tokens, mapping = found.inputs.tokens, found.head.draft_to_target
    assert tokens is not None
    assert mapping is not None
    report = examine(found.head, found.inputs)
    assert report["steps"]["flips_where_decided"] == 0
    # It was trained: many first tokens are those of the text. Random ones would hardly ever be.
    plan = plan_residency(found.head, GPUS["h200"].with_blocks(8), batch=64, steps=32)
    walker = Walker(found.head, plan, backend="emulator")
    drafted = walker(found.inputs.base_logits, found.inputs.anchor, hidden=found.inputs.hidden)
    assert float((drafted[:, 0] == tokens[:, 0]).double().mean()) > 0.1


def test_exact_walks_of_the_sample_are_the_formula_s() -> None:
    """Real text turns some int8 tokens; exact ones are those of the unquantised head."""
    found = load_sample()
    base, anchor = found.inputs.base_logits, found.inputs.anchor
    gpu = GPUS["h200"].with_blocks(8)
    tokens = {}
    for exact in (False, True):
        plan = plan_residency(found.head, gpu, batch=16, steps=7, exact=exact)
        tokens[exact] = Walker(found.head, plan, backend="emulator")(base, anchor)
    assert isinstance(found.head, MarkovHead)
    assert torch.equal(tokens[True], exact_walk(found.head, base, anchor))
    assert 0 < int((tokens[True] != tokens[False]).sum()) <= 20


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_int8_sums_of_the_sample_leave_few_rows_open() -> None:
    """By the bounds that the kernel has, on real text: what an exact walk costs."""
    found = load_sample()
    assert isinstance(found.head, MarkovHead)
    gpu = GPUS["h200"].with_blocks(4)
    plan = plan_residency(found.head, gpu, batch=4, steps=7, exact=True)
    simulator = Simulator(found.head, plan)
    base, anchor = found.inputs.base_logits[:4], found.inputs.anchor[:4]
    tokens = simulator(base, anchor, seed=1, most_turns=20_000_000)
    assert torch.equal(tokens, exact_walk(found.head, base, anchor))
    *_, steps, rows, _ = simulator.status.tolist()
    assert steps <= 0.25 * 4 * 7
    assert rows <= 4 * steps

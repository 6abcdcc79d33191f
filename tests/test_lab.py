"""The lab trains what it says: losses are the formulas, models see what they may, runs repeat."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.checkpoints import load_drafter, load_target
from lab.config import DOMINO_LOSS, DSPARK_LOSS, RECIPES, with_budgets
from lab.data import DOMAINS, byte_encoder, prepare, read_tokens
from lab.drafter import Drafter
from lab.losses import Terms, projected_loss, step_weights, terms_at
from lab.run import run_recipe
from lab.train_drafter import block_loss, start_from
from lab.train_target import text_loss
from lab.training import Run, train
from lab_case import (
    CPU,
    NAMES,
    SMOKE,
    random_blocks,
    random_drafter,
    random_target,
    save_pair,
    write_data,
)
from wts.heads.base import Head
from wts.heads.config import read_config
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead

HEADS = {"markov": MarkovHead, "gated": GatedHead, "rnn": RnnHead}


def read_head(folder: Path, target: Path) -> Head:
    """The head of a drafter's folder, as the package reads it."""
    config = read_config(folder)
    if config.domino is not None:
        return DominoHead.from_checkpoint(folder, target=target)
    kind = {"vanilla": "markov"}.get(config.markov_head_type, config.markov_head_type)
    return HEADS[kind].from_checkpoint(folder)


# ---- losses ------------------------------------------------------------------------------------


def plain_loss(
    hidden: torch.Tensor,
    latent: torch.Tensor | None,
    projection: torch.Tensor | None,
    output: torch.Tensor,
    target_hidden: torch.Tensor | None,
    labels: torch.Tensor,
    weights: torch.Tensor,
    terms: Terms,
) -> torch.Tensor:
    """The formula over all rows at once, left to autograd."""
    base = hidden @ output.T
    final = base if latent is None or projection is None else base + latent @ projection.T
    rows = terms.ce_final * torch.nn.functional.cross_entropy(final, labels, reduction="none")
    rows = rows + terms.ce_base * torch.nn.functional.cross_entropy(base, labels, reduction="none")
    if target_hidden is not None:
        distance = final.softmax(1) - (target_hidden @ output.T).softmax(1).detach()
        rows = rows + terms.l1 * distance.abs().sum(1)
    return (rows * weights).sum() / weights.sum()


@pytest.mark.parametrize(
    ("terms", "with_latent", "with_target"),
    [
        (Terms(), False, False),
        (Terms(ce_final=0.1, l1=0.9), True, True),
        (Terms(ce_final=0.7, ce_base=0.3), True, False),
        (Terms(ce_final=0.0, ce_base=1.0), True, True),
    ],
)
def test_chunks_have_the_loss_and_the_gradients_of_the_whole(
    terms: Terms, with_latent: bool, with_target: bool
) -> None:
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).float()

    weights = torch.rand(11, generator=generator)
    labels = torch.randint(0, 23, (11,), generator=generator)
    wanted_of = normal(11, 6) if with_target else None
    gradients, values = [], []
    leaves = [normal(11, 6), normal(11, 4), normal(23, 4), normal(23, 6)]
    for chunked in (False, True):
        hidden, latent, projection, output = (x.clone().requires_grad_() for x in leaves)
        used = (latent, projection) if with_latent else (None, None)
        if chunked:
            loss, stats = projected_loss(
                hidden, output=output, labels=labels, weights=weights, terms=terms, chunk=4,
                latent=used[0], projection=used[1], target_hidden=wanted_of,
            )  # fmt: skip
        else:
            loss = plain_loss(hidden, *used, output, wanted_of, labels, weights, terms)
        (3 * loss).backward()
        values.append(float(loss.detach()))
        gradients.append([x.grad for x in (hidden, latent, projection, output)])
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    for name, one, other in zip(("h", "u", "P", "W"), *gradients, strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(other, one, rtol=2e-4, atol=2e-6, msg=name)
    # What is known of the rows.
    final = leaves[0] @ leaves[3].T + (leaves[1] @ leaves[2].T if with_latent else 0)
    own = -final.log_softmax(1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(stats.ce, own, rtol=1e-4, atol=1e-5)
    if wanted_of is not None:
        q = (wanted_of @ leaves[3].T).softmax(1)
        torch.testing.assert_close(stats.accept, torch.minimum(final.softmax(1), q).sum(1))
    right = labels if wanted_of is None else (wanted_of @ leaves[3].T).argmax(1)
    assert stats.hit.bool().tolist() == (final.argmax(1) == right).tolist()


def test_published_weights_of_the_losses() -> None:
    assert terms_at(DSPARK_LOSS, 0.3) == Terms(ce_final=0.1, l1=0.9)
    assert terms_at(DOMINO_LOSS, 0.0) == Terms(ce_final=0.0, ce_base=1.0)
    assert terms_at(DOMINO_LOSS, 0.25) == Terms(ce_final=0.25, ce_base=0.75)
    assert terms_at(DOMINO_LOSS, 1.0) == Terms(ce_final=1.0, ce_base=0.0)
    assert step_weights(3, 4.0).tolist() == pytest.approx([1.0, np.exp(-0.25), np.exp(-0.5)])


# ---- models ------------------------------------------------------------------------------------


def test_a_cache_gives_what_a_whole_sequence_gives() -> None:
    target = random_target()
    ids = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(4))
    whole, read = target(ids, read=(0, 2))
    cache = target.new_cache(2, 20)
    # Requests at positions of their own; the second is run again over stale entries.
    for first, last in ((0, 5), (5, 9), (7, 12)):
        positions = torch.arange(first, last).expand(2, -1)
        final, outputs = target(ids[:, first:last], read=(0, 2), positions=positions, cache=cache)
        torch.testing.assert_close(final, whole[:, first:last], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(outputs, read[:, first:last], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_block_sees_the_context_before_its_anchor_and_no_other_block(name: str) -> None:
    drafter = random_drafter(SMOKE.drafters[name])
    generator = torch.Generator().manual_seed(6)
    context = torch.randn(1, 20, 64, generator=generator)
    anchors = torch.tensor([[5, 12]])
    embeddings = torch.randn(1, 2, 32, generator=generator)
    mask = torch.randn(32, generator=generator)
    positions = torch.arange(20)[None]

    def hidden(context: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        known = drafter.context(context, positions)
        return drafter.draft_hidden(embeddings, mask, anchors, known).detach()

    before = hidden(context, embeddings)
    assert before.shape == (1, 2, drafter.shape.steps, 32)
    changed = context.clone()
    changed[:, 5] += 1  # the first anchor's own position: only the second block may see it
    after = hidden(changed, embeddings)
    torch.testing.assert_close(after[:, 0], before[:, 0])
    assert (after[:, 1] - before[:, 1]).abs().max() > 1e-3
    other = embeddings.clone()
    other[:, 1] += 1
    after = hidden(context, other)
    torch.testing.assert_close(after[:, 0], before[:, 0])
    # Every position of a block sees its anchor.
    assert (after[:, 1] - before[:, 1]).abs().amax(2).min() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_trained_latents_are_those_of_the_packages_head(name: str, tmp_path: Path) -> None:
    folder, target_folder = save_pair(tmp_path, name)
    head = read_head(folder, target_folder)
    drafter, target = load_drafter(folder, CPU), load_target(target_folder, CPU)
    assert drafter.shape == SMOKE.drafters[name]
    assert target.shape == SMOKE.target
    torch.testing.assert_close(head.projection, drafter.projection)
    drafter.float()
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(5, 3, 32, generator=generator).bfloat16()
    prev = torch.randint(0, 256, (5, 3), generator=generator)
    rows = target.embed_tokens.weight[prev].float()
    latents = drafter.latents(hidden.float(), prev, rows)
    state = head.initial_state(5)
    for step in range(3):
        state, latent = head.latent(state, prev[:, step], hidden[:, step])
        wanted = torch.zeros_like(latents[:, step]) if latent is None else latent.float()
        torch.testing.assert_close(latents[:, step].detach(), wanted, rtol=0.03, atol=0.03)
    if name != "domino-3":
        assert latents.abs().amax() > 0.1


def test_domino_may_read_the_position_after(tmp_path: Path) -> None:
    shape = replace(SMOKE.drafters["domino-3"], shift_label=False)
    shifted, plain = random_drafter(SMOKE.drafters["domino-3"]), random_drafter(shape)
    context = plain.context(torch.randn(1, 9, 64), torch.arange(9)[None])
    inputs = (torch.randn(1, 1, 32), torch.randn(32), torch.tensor([[4]]), context)
    first, second = shifted.draft_hidden(*inputs), plain.draft_hidden(*inputs)
    torch.testing.assert_close(first[:, :, 1:], second[:, :, :-1])


def test_configs_have_the_fields_that_sglang_reads(tmp_path: Path) -> None:
    fields = {
        name: json.loads((save_pair(tmp_path / name, name)[0] / "config.json").read_text())
        for name in NAMES
    }
    for name, kind in (("vanilla-3", "vanilla"), ("gated-3", "gated"), ("rnn-3", "rnn")):
        assert fields[name]["architectures"] == ["Qwen3DSparkModel"]
        assert fields[name]["markov_head_type"] == kind
        assert fields[name]["block_size"] == 3
        assert fields[name]["markov_rank"] == 64
    domino = fields["domino-3"]
    assert domino["architectures"] == ["DFlashDraftModel"]
    assert domino["dflash_config"]["projector_type"] == "domino"
    assert domino["block_size"] == domino["dflash_config"]["block_size"] == 4
    for config in fields.values():
        assert config["model_type"] == "qwen3"
        assert config["target_layer_ids"] == [0, 1]
        assert config["mask_token_id"] < config["vocab_size"]


# ---- training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_learns_a_text_by_heart(name: str) -> None:
    target = random_target().requires_grad_(False)
    shape = SMOKE.drafters[name]
    drafter = Drafter(SMOKE.target, shape)
    drafter.initialise(2)
    blocks = random_blocks(shape)
    optimiser = torch.optim.AdamW(drafter.parameters(), lr=1e-2)
    found = []
    for step in range(80):
        loss, _ = block_loss(
            drafter, target, blocks, fraction=0.0 if step == 0 else 0.9, precision="fp32",
            chunk=16, with_target=name != "domino-3",
        )  # fmt: skip
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(float(loss.detach()))
    assert found[-1] < 0.75 * found[0]
    assert all(weight.grad is not None for weight in drafter.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("start", ["vanilla-3", "rnn-3"])
def test_a_drafter_starts_from_another_ones_weights(name: str, start: str) -> None:
    drafter, other = Drafter(SMOKE.target, SMOKE.drafters[name]), random_drafter(
        SMOKE.drafters[start], seed=9
    )  # fmt: skip
    drafter.initialise(2)
    left = start_from(drafter, other)
    known, found = other.state_dict(), drafter.state_dict()
    for key, weight in found.items():
        same = key in known and torch.equal(weight, known[key])
        assert same == (key not in left) or key.endswith("norm.weight")
    alike = name == start or (start, name) == ("vanilla-3", "gated-3")
    if alike:
        assert torch.equal(drafter.projection, other.projection)
    else:
        assert not drafter.projection.any()
    assert any(key.startswith("layers.0.mlp") for key in found if key not in left)
    own = {"gated-3": "gate_proj", "rnn-3": "joint_proj", "domino-3": "prefix_gru"}
    if name in own and name != start:
        assert any(own[name] in key for key in left)


@pytest.mark.parametrize("name", NAMES)
def test_a_block_is_judged_against_the_text_and_the_target(name: str) -> None:
    target, shape = random_target(), SMOKE.drafters[name]
    drafter, blocks = random_drafter(shape), random_blocks(shape)
    embedding = target.embed_tokens.weight
    with torch.no_grad():
        _, stats = block_loss(
            drafter, target, blocks, fraction=1.0, precision="fp32", chunk=7, with_target=True
        )
        rows = iter(zip(stats.ce, stats.accept, stats.hit, strict=True))
        for text, anchors in zip(blocks.ids, blocks.anchors, strict=True):
            final, read = target(text[None], read=shape.target_layers)
            for anchor in anchors.tolist():
                hidden = drafter.draft_hidden(
                    embedding[text[anchor]][None, None],
                    embedding[shape.mask_token],
                    torch.tensor([[anchor]]),
                    drafter.context(read[:, :anchor], torch.arange(anchor)[None]),
                )[0]
                prev = text[anchor : anchor + 3][None]
                latent = drafter.latents(hidden, prev, embedding[prev])
                logits = (hidden @ embedding.T + latent @ drafter.projection.T)[0]
                for step in range(3):
                    ce, accept, hit = next(rows)
                    p = logits[step].softmax(0)
                    judged = final[0, anchor + step] @ embedding.T
                    q = judged.softmax(0)
                    wanted = -p[text[anchor + step + 1]].log()
                    assert float(ce) == pytest.approx(float(wanted), rel=1e-3)
                    overlap = float(torch.minimum(p, q).sum())
                    assert float(accept) == pytest.approx(overlap, abs=1e-4)
                    assert bool(hit) == (int(logits[step].argmax()) == int(judged.argmax()))


def test_the_targets_loss_is_that_of_the_next_token() -> None:
    target = random_target()
    ids = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(4))
    hidden, _ = target(ids[:, :-1])
    logits = hidden @ target.embed_tokens.weight.T
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    found = text_loss(target, ids, precision="fp32", chunk=5)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name}.{name}": tensor
        for path in sorted(folder.glob("*/model.safetensors"))
        for name, tensor in (
            load_target(path.parent, CPU) if path.parent.name == "target"
            else load_drafter(path.parent, CPU)
        ).state_dict().items()
    }  # fmt: skip


def test_runs_repeat_and_go_on_where_they_were_stopped(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    only = ["vanilla-3", "gated-3"]
    for folder in ("one", "two"):
        run_recipe(SMOKE, data, tmp_path / folder, device=CPU, only=only, steps=8)
    first, second = weights_in(tmp_path / "one"), weights_in(tmp_path / "two")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    log = [json.loads(x) for x in (tmp_path / "one/training/target/log.jsonl").open()]
    assert log == [] or "loss" in log[0]
    # A model that is there is not trained again; one whose folder is missing goes on.
    state = torch.load(tmp_path / "one/training/vanilla-3/state.pt", weights_only=True)
    assert state["step"] == 8
    (tmp_path / "one/vanilla-3/model.safetensors").unlink()
    said: list[str] = []
    run_recipe(SMOKE, data, tmp_path / "one", device=CPU, only=only, steps=10, say=said.append)
    assert any("going on from step 8" in line for line in said)
    assert not any("training the target" in line or "training gated" in line for line in said)
    later = weights_in(tmp_path / "one")
    assert not torch.equal(
        later["vanilla-3.markov_head.markov_w2.weight"],
        first["vanilla-3.markov_head.markov_w2.weight"],
    )


def test_a_training_that_was_cut_off_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    def run(folder: str, stop_at: int | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 4)

        def losses(step: int, fraction: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            if step == stop_at:
                raise KeyboardInterrupt
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            assert fraction == step / 9
            return (model(inputs) - inputs).square().mean(), {}

        settings = Run(
            folder=tmp_path / folder, phase=SMOKE.target_phase, steps=9, save_every_s=-1.0
        )
        try:
            train(settings, model, losses)
        except KeyboardInterrupt:
            assert stop_at is not None
        return {name: weight.clone() for name, weight in model.state_dict().items()}

    whole = run("whole", None)
    run("cut", 5)
    resumed = run("cut", None)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_the_large_recipe_fits_what_it_trains_for() -> None:
    recipe = RECIPES["h200"]
    assert recipe.target.vocab == 151_936
    assert set(recipe.phases) == set(recipe.drafters)
    total = recipe.target_phase.budget_s + sum(p.budget_s for p in recipe.phases.values())
    assert total <= 300
    kinds = {(shape.kind, shape.steps) for shape in recipe.drafters.values()}
    both = {(kind, steps) for kind in ("markov", "gated", "rnn") for steps in (7, 16)}
    assert kinds == both | {("domino", 7), ("domino", 15)}
    half = with_budgets(recipe, 0.5)
    assert 2 * half.target_phase.budget_s == recipe.target_phase.budget_s
    assert 2 * sum(p.budget_s for p in half.phases.values()) == pytest.approx(
        sum(p.budget_s for p in recipe.phases.values())
    )
    order = list(recipe.drafters)
    for name, start in recipe.starts.items():
        assert order.index(start) < order.index(name)
    for shape in recipe.drafters.values():
        assert shape.rank == 256
        assert max(shape.target_layers) < recipe.target.layers


# ---- text --------------------------------------------------------------------------------------


def test_files_are_split_and_copies_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for number in range(100):
        name = ("mod.py", "test_mod.py", "head.cuh", "page.md")[number % 4]
        path = root / f"p{number}" / name
        path.parent.mkdir(parents=True)
        text = f"word number {number} is here and is long\n" * 20
        path.write_text(text)
        copy = path.parent / "z" / name
        copy.parent.mkdir()
        copy.write_text(text)
    (root / "data.py").write_text("0123456789, " * 100)
    encode, end = byte_encoder()
    manifest = prepare(
        tmp_path / "out", roots=[root], encode=encode, end_token=end, most_tokens=10**6
    )
    train, val = read_tokens(tmp_path / "out/train.npz"), read_tokens(tmp_path / "out/val.npz")
    assert len(train.starts) + len(val.starts) == 100
    assert np.bincount(val.domains).tolist() == [3, 3, 3, 3]  # an eighth of 25
    assert manifest["train_tokens"] == len(train.ids)
    domains: Any = manifest["domains"]
    assert sum(one["val_tokens"] for one in domains.values()) == len(val.ids)

    def documents(side: object) -> set[str]:
        parts = np.split(side.ids, side.starts[1:])  # type: ignore[attr-defined]
        assert all(part[-1] == end for part in parts)
        return {bytes(part[:-1].astype(np.uint8)).decode() for part in parts}

    assert not documents(train) & documents(val)
    assert {text.split()[2] for text in documents(train) | documents(val)} == set(
        map(str, range(100))
    )
    counts = np.bincount(np.concatenate([train.domains, val.domains]), minlength=len(DOMAINS))
    assert counts.tolist() == [25, 25, 25, 25]


def texts_of(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Texts of bytes, by side and domain."""
    found: dict[str, dict[str, list[str]]] = {}
    for side in ("train", "val"):
        tokens = read_tokens(folder / f"{side}.npz")
        found[side] = {domain: [] for domain in DOMAINS}
        for ids, domain in zip(
            np.split(tokens.ids, tokens.starts[1:]), tokens.domains, strict=True
        ):
            text = bytes(ids[:-1].astype(np.uint8)).decode()
            found[side][DOMAINS[domain]].append(text)
    return found


def prepare_bytes(root: Path, out: Path) -> dict[str, dict[str, list[str]]]:
    encode, end = byte_encoder()
    prepare(out, roots=[root], encode=encode, end_token=end, most_tokens=10**6, most_of_one=1.0)
    return texts_of(out)


WORDS = " ".join(["Words that say what this is about, at some length and to the end."] * 12)
LICENCE = "# Copyright of somebody, who gives a licence\n# to everybody.\n\n"
DOCUMENTED = '''"""About p. {0}"""

class A:
    """Of a. {0}"""

    def f(self, x: int = 1) -> None:
        """Does f. {0}"""
        self.x = x
'''


def test_documentation_is_docstrings_descriptions_and_topics(tmp_path: Path) -> None:
    wrapped = WORDS.replace(". ", ".\n")
    topics = {"if": WORDS + "6", "in": "short", "or": WORDS + "7"}
    sources = {
        "p/documented.py": DOCUMENTED.format(WORDS),
        "p/code.py": LICENCE + f'"""Short."""\n{wrapped}\n',
        "p/broken.py": f'"""{wrapped}\n{wrapped}"""\ndef f(:\n',
        "p-1.dist-info/METADATA": f"Name: p\n\n[![x](y)](z)\n<img src=x>\n\n# P\n\n{WORDS}\n",
        "p-1.dist-info/LICENSE.txt": WORDS + "1",
        "p-1.dist-info/licenses/README.md": WORDS + "2",
        "p/README.txt": WORDS + "3",
        "p/words.txt": WORDS + "4",
        "p/tests/README.md": WORDS + "5",
        "pydoc_data/topics.py": f"topics = {topics}",
    }
    for name, text in sources.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    texts = prepare_bytes(tmp_path / "root", tmp_path / "out")
    assert set(texts["train"]["docs"] + texts["val"]["docs"]) == {
        f"About p. {WORDS}\n\nA\n\nOf a. {WORDS}\n\nA.f(self, x: int=1)\n\nDoes f. {WORDS}\n",
        f"# P\n\n{WORDS}\n",
        *(f"{WORDS}{number}\n" for number in (3, 6, 7)),
    }
    assert set(texts["train"]["python"] + texts["val"]["python"]) == {
        sources["p/code.py"].removeprefix(LICENCE),
        sources["p/broken.py"],
    }


def test_text_for_validation_is_like_no_other(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for number in range(160):
        own = "".join(f"a line of {number} which is number {row}\n" for row in range(30))
        alike = "".join(f"a line that all have and is number {row}\n" for row in range(40))
        parts = {0: own, 1: alike + own, 2: f"{'The same beginning. ' * 6}\n{own}"}
        path = root / f"p{number}.h"
        root.mkdir(exist_ok=True)
        path.write_text(parts[number % 4 if number % 4 < 3 else 0])
    texts = prepare_bytes(root, tmp_path / "out")
    train, val = texts["train"]["cpp"], texts["val"]["cpp"]
    assert (len(train), len(val)) == (140, 20)
    assert not any("a line that all have" in text for text in val)
    assert sum(text.startswith("The same beginning") for text in val) <= 1


def test_ids_of_three_bytes_come_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.py").write_text("some words that are long enough\n" * 20)
    large = [0, 255, 256, 65_535, 65_536, 151_935]
    prepare(tmp_path / "out", roots=[root], encode=lambda text: large, end_token=9, most_tokens=100)
    assert read_tokens(tmp_path / "out/val.npz").ids.tolist() == [*large, 9]

"""Generation is lossless whatever drafts, its counts are right, intervals are what they say."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.acceptance import (
    _MOST_REQUESTS,
    PER_DOMAIN,
    Estimate,
    ExactBeside,
    Prompt,
    bf16_walk,
    by_domain,
    compare,
    draw_prompts,
    estimate,
    int8_walk,
    main,
    records,
)
from lab.checkpoints import load_drafter, load_target
from lab.data import _VALIDATION_DOCUMENTS, DOMAINS, Tokens, read_tokens
from lab.drafter import Drafter
from lab.draw import draw_below
from lab.generate import Block, _accept_sampled, generate
from lab.target import Target
from lab.timing import rounds_with_guesses
from lab_case import CPU, NAMES, save_pair, write_data
from wts.bench import record
from wts.errors import InputError
from wts.heads.base import Head
from wts.heads.load import read_head
from wts.kernels.planner import plan_residency
from wts.kernels.resident.variants import with_selection
from wts.numerics.gumbel import Noise
from wts.walk.walker import Walker

PROMPTS = [[5, 9, 200], [17, 3, 3, 3, 250, 8, 1], [70, 71]]


def load_pair(folder: Path, name: str) -> tuple[Target, Drafter, Head]:
    drafter, target = save_pair(folder, name)
    head = read_head(drafter, target=target if name.startswith("domino") else None)
    return load_target(target, CPU).float(), load_drafter(drafter, CPU).float(), head


def greedy_text(target: Target, prompt: list[int], count: int) -> list[int]:
    """Token after token, with no cache and no draft."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            hidden, _ = target(torch.tensor([ids]))
            ids.append(int((hidden[0, -1] @ target.embed_tokens.weight.T).argmax()))
    return ids[len(prompt) :]


class Knowing:
    """A walk that drafts what the target would say, but for some steps of each block."""

    def __init__(self, target: Target, right: int) -> None:
        self.target, self.right = target, right
        self.texts = [[*prompt, *greedy_text(target, prompt, 40)] for prompt in PROMPTS]
        self.known = [len(prompt) for prompt in PROMPTS]

    def __call__(
        self,
        block: Block,
        temperatures: torch.Tensor | None,
        noise: Noise | None,
        logits_out: torch.Tensor | None,
    ) -> torch.Tensor:
        rows = []
        for row, (text, known) in enumerate(zip(self.texts, self.known, strict=True)):
            assert text[known - 1] == int(block.anchor[row])
            draft = torch.tensor(text[known : known + 3])
            draft[self.right :] = (draft[self.right :] + 1) % 256
            rows.append(draft)
            if known - len(PROMPTS[row]) < 12:
                self.known[row] += self.right + 1
        return torch.stack(rows)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_the_targets_whatever_drafts(name: str, tmp_path: Path) -> None:
    target, drafter, head = load_pair(tmp_path, name)
    walks = (
        bf16_walk(head),
        int8_walk(head, batch=3, steps=3, sampled=False, kind=torch.float32),
    )
    for walk in walks:
        found = generate(
            target, drafter, PROMPTS, walk, new_tokens=12, temperature=0.0, seed=1, shadows=[walk]
        )
        for prompt, one in zip(PROMPTS, found, strict=True):
            assert list(one.tokens) == greedy_text(target, prompt, 12)
            assert one.committed >= 12
            assert one.rounds <= one.committed <= one.rounds * 4
            assert one.shadowed == (one.committed,)
        # Whoever is done waits for the others, and counts no more.
        alone = [
            generate(
                target,
                drafter,
                [prompt],
                walk,
                new_tokens=12,
                temperature=0.0,
                seed=1,
                shadows=[walk],
            )[0]
            for prompt in PROMPTS
        ]
        assert alone == found


def test_the_drafter_has_read_all_that_is_accepted(tmp_path: Path) -> None:
    target, drafter, _ = load_pair(tmp_path, "gated-3")
    knowing, seen = Knowing(target, 2), []

    def walk(block: Block, *rest: object) -> torch.Tensor:
        seen.append((list(knowing.known), block.hidden, block.base_logits))
        return knowing(block, None, None, None)

    generate(target, drafter, PROMPTS, walk, new_tokens=12, temperature=0.0, seed=1)
    embedding = target.embed_tokens.weight
    assert len(seen) == 4
    for known, hidden, base in seen:
        for row, (count, text) in enumerate(zip(known, knowing.texts, strict=True)):
            context = torch.tensor([text[: count - 1]])
            with torch.no_grad():
                _, read = target(context, read=drafter.shape.target_layers)
                wanted = drafter.draft_hidden(
                    embedding[text[count - 1]][None, None],
                    embedding[drafter.shape.mask_token],
                    torch.tensor([[count - 1]]),
                    drafter.context(read, torch.arange(count - 1)[None]),
                )[0, 0]
            torch.testing.assert_close(hidden[row], wanted, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(base[row], wanted @ embedding.T, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_rounds_are_counted(right: int, tmp_path: Path) -> None:
    target, drafter, _ = load_pair(tmp_path, "vanilla-3")
    # The shadow is judged by its own tokens, at the states of the other walk.
    walk, shadowing = Knowing(target, right), Knowing(target, 3)

    def right_shadow(block: Block, *rest: object) -> torch.Tensor:
        shadowing.known = list(walk.known)
        return shadowing(block, None, None, None)

    found = generate(
        target, drafter, PROMPTS, walk, new_tokens=12, temperature=0.0, seed=1,
        shadows=[right_shadow],
    )  # fmt: skip
    for one in found:
        assert one.committed == one.rounds * (right + 1)
        assert one.rounds == -(-12 // (right + 1))
        assert one.shadowed == (one.rounds * 4,)


def test_what_is_accepted_is_distributed_as_the_target(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    count, vocab = 40_000, 6
    q_logits = torch.randn(1, 2, vocab, generator=generator).expand(count, -1, -1)
    p_logits = torch.randn(1, 3, vocab, generator=generator).expand(count, -1, -1)
    temperature = 0.7
    q = (q_logits[0] / temperature).softmax(1)
    drafts = torch.stack(
        [torch.multinomial(q[k], count, replacement=True, generator=generator) for k in (0, 1)], 1
    )
    uniforms = torch.rand(count, 3, 2, generator=generator)
    kept, last = _accept_sampled(drafts, q_logits, p_logits, temperature, uniforms)
    first = torch.where(kept > 0, drafts[:, 0], last)
    p = (p_logits[0] / temperature).softmax(1)

    def check(tokens: torch.Tensor, wanted: torch.Tensor) -> None:
        share = torch.bincount(tokens, minlength=vocab) / len(tokens)
        bound = 5 * (wanted * (1 - wanted) / len(tokens)).sqrt()
        assert ((share - wanted).abs() <= bound + 1e-9).all()

    check(first, p[0])
    second = torch.where(kept > 1, drafts[:, 1], last)
    check(second[kept > 0], p[1])
    check(last[kept == 2], p[2])
    share = float((kept > 0).float().mean())
    assert share == pytest.approx(float(torch.minimum(p[0], q[0]).sum()), abs=0.01)


def test_a_sampled_run_repeats_and_differs_from_another_seed(tmp_path: Path) -> None:
    target, drafter, head = load_pair(tmp_path, "rnn-3")
    target.embed_tokens.weight.mul_(0.1)  # so that sampling is no argmax
    walk = int8_walk(head, batch=3, steps=3, sampled=True, kind=torch.float32)
    runs = [
        generate(
            target,
            drafter,
            PROMPTS,
            walk,
            new_tokens=12,
            temperature=1.0,
            seed=seed,
            shadows=[walk],
        )
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
    # The same walk at the same states, with the same random numbers, gives the same.
    assert all(one.shadowed == (one.committed,) for run in runs for one in run)


def test_intervals_come_from_whole_prompts() -> None:
    # One of 40 prompts is better by 1 a round: its rounds are not independent witnesses.
    first = [(300, 100)] * 40
    second = [(400, 100)] + [(300, 100)] * 39
    found = estimate(first, second, resamples=4000)
    assert found.first == pytest.approx(3.0)
    assert found.difference == pytest.approx(0.025)
    # The number of times it is drawn is close to Poisson of mean 1: 0 to 3 with 95 %.
    assert found.low == 0.0
    assert found.high == pytest.approx(0.075, abs=1e-9)
    same = estimate(first, first)
    assert same == Estimate(prompts=40, first=3.0, second=3.0, difference=0.0, low=0.0, high=0.0)


def test_long_prompts_count_more() -> None:
    found = estimate([(10, 10), (400, 100)], [(10, 10), (400, 80)])
    assert found.first == pytest.approx(410 / 110)
    assert found.second == pytest.approx(410 / 90)


def test_prompts_are_beginnings_of_long_enough_files() -> None:
    lengths = [30, 9, 60, 25, 100, 8]
    starts = np.cumsum([0, *lengths[:-1]])
    ids = np.concatenate([np.arange(n) + 1000 * i for i, n in enumerate(lengths)])
    tokens = Tokens(ids=ids.astype(np.int32), starts=starts, domains=np.array([0, 0, 1, 1, 1, 2]))
    prompts = draw_prompts(tokens, per_domain=2, shortest=6, longest=20, seed=1)
    assert [p.domain for p in prompts] == ["python", "tests", "tests"]
    for prompt in prompts:
        assert 6 <= len(prompt.tokens) <= 20
        file = prompt.tokens[0] // 1000
        assert prompt.tokens == tuple(range(1000 * file, 1000 * file + len(prompt.tokens)))
    assert prompts == draw_prompts(tokens, per_domain=2, shortest=6, longest=20, seed=1)


def test_by_default_there_are_several_hundred_prompts() -> None:
    files, length = 4 * _VALIDATION_DOCUMENTS, 70
    tokens = Tokens(
        ids=np.arange(files * length, dtype=np.int32),
        starts=np.arange(files) * length,
        domains=np.arange(files) % 4,
    )
    prompts = draw_prompts(tokens, per_domain=PER_DOMAIN, shortest=32, longest=128, seed=0)
    assert Counter(prompt.domain for prompt in prompts) == dict.fromkeys(DOMAINS, 96)
    assert len(prompts) % _MOST_REQUESTS == 0  # no batch is half empty
    assert len({prompt.tokens[0] for prompt in prompts}) == 384  # a document gives one


def test_the_comparison_has_a_row_for_each_prompt(tmp_path: Path) -> None:
    target, drafter, head = load_pair(tmp_path, "vanilla-3")
    prompts = draw_prompts(
        Tokens(
            ids=np.tile(np.arange(200, dtype=np.int32), 6),
            starts=np.arange(6) * 200,
            domains=np.array([0, 0, 0, 1, 1, 1]),
        ),
        per_domain=3, shortest=4, longest=30, seed=0,
    )  # fmt: skip
    result = compare(target, drafter, head, prompts, new_tokens=10, temperature=0.0, batch=4)
    assert set(result["domains"]) == {"all", "python", "tests"}
    assert result["same_text"] == 1.0
    assert result["domains"]["all"]["prompts"] == 6
    found = result["same_states"]["all"]
    rows = result["per_prompt"]
    assert found["first"] == sum(r["bf16"][0] for r in rows) / sum(r["bf16"][1] for r in rows)


@pytest.mark.parametrize("name", NAMES)
def test_the_exact_walk_changes_nothing(name: str, tmp_path: Path) -> None:
    drafter, folder = save_pair(tmp_path, name)
    head = read_head(drafter, target=folder if name.startswith("domino") else None)
    target, drafts = load_target(folder, CPU), load_drafter(drafter, CPU)  # in bf16
    prompts = [Prompt(domain="python", tokens=tuple(prompt)) for prompt in PROMPTS]
    result = compare(target, drafts, head, prompts, new_tokens=8, temperature=0.0)
    exact = result["exact"]
    assert exact["blocks"] == sum(row["bf16"][1] for row in result["per_prompt"])
    assert exact["wrong"] == 0
    assert exact["unlike"] <= 0.1 * exact["blocks"]  # where the order of sums has decided
    if exact["unlike"] == 0:
        assert exact["prompts"] == 0
        assert exact["domains"]["all"]["difference"] == 0.0
    sampled = compare(target, drafts, head, prompts, new_tokens=8, temperature=1.0)
    assert "exact" not in sampled


@pytest.mark.parametrize("name", NAMES)  # the formula against the emulator, of every kind
def test_other_tokens_are_looked_into(name: str, tmp_path: Path) -> None:
    _, _, head = load_pair(tmp_path, name)
    plan = plan_residency(head, "h200", batch=2, steps=3, exact=True)
    walker = Walker(head, plan, backend="emulator")
    generator = torch.Generator().manual_seed(4)
    block = Block(
        base_logits=torch.randn(2, 3, head.vocab, generator=generator).bfloat16(),
        anchor=torch.tensor([5, 6]),
        hidden=torch.randn(2, 3, head.hidden_size or 1, generator=generator).bfloat16(),
    )
    hidden = None if head.hidden_size is None else block.hidden

    def other(block: Block, *rest: object) -> torch.Tensor:
        tokens = walker(block.base_logits, block.anchor, hidden=hidden)
        return tokens + torch.tensor([[0], [1]])

    int8 = Walker(head, with_selection(plan, "greedy"), backend="emulator")
    with pytest.raises(InputError, match=r"^walker: wanted an exact one"):
        ExactBeside(int8, other)
    beside = ExactBeside(walker, other)
    beside.exact(block, None, None, None)
    beside.bf16(block, None, None, None)
    assert beside.wrong == 0  # the emulator has the exact walk's tokens: the other walk's are off
    beside.tokens = other(block)
    beside.bf16(block, None, None, None)
    assert beside.wrong == 0  # equal tokens are not looked into
    beside.tokens = other(block) + 1
    beside.bf16(replace(block, active=torch.tensor([True, False])), None, None, None)
    assert beside.wrong == 1
    beside.bf16(block, None, None, None)
    assert beside.wrong == 3


def test_records_say_what_was_compared(tmp_path: Path) -> None:
    _, _, head = load_pair(tmp_path, "rnn-3")
    environment = record.Environment(
        gpu="h200", sms=132, driver="1", cuda="13.0", torch="2.11", sglang=None, commit="c",
        dirty=False, clock_mhz=1980.0, max_clock_mhz=1980.0,
    )  # fmt: skip
    estimates = by_domain(["docs", "cpp"], [(9, 3), (8, 4)], [(9, 3), (8, 2)])
    result = {"temperature": 1.0, "domains": estimates, "same_states": estimates}
    lines = records(result, environment, head, batch=2, steps=3, run_id="r")
    assert [line["domain"] for line in lines] == 2 * ["all", "docs", "cpp"]
    assert [line["states"] for line in lines] == 3 * ["own"] + 3 * ["same"]
    result["exact"] = {"domains": estimates, "blocks": 9, "unlike": 2}
    *others, last = records(result, environment, head, batch=2, steps=3, run_id="r")
    assert len(others) == len(lines)
    assert (last["path"], last["domain"], last["states"]) == ("wts_exact", "all", "same")
    assert (last["blocks"], last["unlike_blocks"]) == (9, 2)
    assert (lines[2]["accepted_length_a"], lines[2]["accepted_length_b"]) == (2.0, 4.0)
    assert (lines[2]["head"], lines[2]["K"], lines[2]["T"]) == ("rnn", 3, 1.0)
    path = record.append(tmp_path, lines[0])
    assert path == tmp_path / "h200" / "acceptance.jsonl"
    assert record.read(path) == [lines[0]]


def test_the_command_writes_a_report_and_a_figure(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    save_pair(tmp_path / "models", "vanilla-3")
    out = tmp_path / "out"
    sizes = "--per-domain 2 --new-tokens 6 --prompt 4 8 --fp32 --device cpu"
    main([str(data), str(tmp_path / "models"), str(out), *sizes.split()])
    report = json.loads((out / "acceptance.json").read_text())
    assert [run["temperature"] for run in report["drafters"]["vanilla-3"]] == [0.0, 1.0]
    assert (out / "acceptance.png").stat().st_size > 1000
    assert read_tokens(data / "val.npz").ids.max() <= 256


def test_records_of_acceptance_have_no_times() -> None:
    fields = {
        "schema": 1, "bench": "acceptance", "run_id": "x", "path": "wts", "head": "markov",
        "weights": "int8", "V": 9, "r": 64, "B": 2, "K": 3, "T": 0.0, "inputs": "recorded",
        "gpu": "h200", "sms": 132, "driver": "1", "cuda": "13", "torch": "2", "sglang": None,
        "commit": "c", "dirty": False, "time": "t", "prompts": 4, "accepted_length_a": 2.0,
        "accepted_length_b": 2.0, "difference": 0.0, "ci_low": 0.0, "ci_high": 0.0,
        "domain": "all",
    }  # fmt: skip
    record.validate(fields)
    with pytest.raises(Exception, match="p50_us: not a field"):
        record.validate(fields | {"p50_us": 1.0})


def test_reports_are_drawn_where_there_is_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"prompts": 3, "first": 2.0, "second": 2.1, "difference": 0.1, "low": 0.0, "high": 0.05}
    runs = [{"temperature": t, "domains": {"all": one, "docs": one}} for t in (0.0, 1.0)]
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.json").write_text(json.dumps({"drafters": {"x": runs, "y": runs}}))
    (tmp_path / "other.json").write_text("[1, 2]")
    said: list[str] = []
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw_below(tmp_path, said.append) == []
    assert "matplotlib: wanted to be installed" in said[0]
    monkeypatch.undo()
    assert draw_below(tmp_path, said.append) == [tmp_path / "deep" / "a.png"]
    assert (tmp_path / "deep" / "a.png").stat().st_size > 1000
    assert len(said) == 1


@pytest.mark.parametrize(
    ("right", "window", "rounds"),
    [
        ([1, 1, 1, 1, 1, 1], 1, 6),
        ([1, 1, 1, 1, 1, 1], 4, 2),
        ([1, 1, 0, 1, 1, 1], 4, 2),  # steps 0 to 2, whose guesses 0 and 1 were right; then the rest
        ([0, 0, 0, 0, 0, 0], 4, 6),
        ([0, 1, 0, 1, 0, 1], 2, 4),
        ([1, 1, 1, 1, 1, 0], 8, 1),  # nothing follows the last token
    ],
)
def test_guessed_steps_come_together(right: list[int], window: int, rounds: int) -> None:
    assert rounds_with_guesses(torch.tensor([right]).bool(), window) == rounds

"""The lab asks SGLang twice, without and with the walk, and believes nothing without its line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import lab
from lab.acceptance import Prompt
from lab.serve import compare_served, engine_arguments
from lab_case import save_pair
from wts.errors import WalkError

ENGINE = """
import os

class Engine:
    def __init__(self, **arguments):
        self.walks = os.environ["WTS_SGLANG"] == "1"
        assert arguments["speculative_algorithm"] == "DSPARK"
        folded = "DSpark draft proposal (greedy) folded into the draft cuda graph"
        print(folded + (", ours may run it" if self.walks else ""), flush=True)
        if self.walks and {line}:
            print("INFO wts: on for SGLang's DSpark draft: markov head", flush=True)
        elif self.walks:
            print("INFO wts: off for SGLang's DSpark draft: memory", flush=True)

    def generate(self, input_ids, sampling_params):
        count = sampling_params["max_new_tokens"]
        assert sampling_params["ignore_eos"]
        rounds = 4 if self.walks and sampling_params["temperature"] else 5
        return [
            {{
                "output_ids": [ids[0]] * count,
                "meta_info": {{"completion_tokens": count, "spec_verify_ct": rounds}},
            }}
            for ids in input_ids
        ]

    def shutdown(self):
        pass
"""
PROMPTS = [Prompt(domain="python", tokens=(1, 2)), Prompt(domain="docs", tokens=(3, 4, 5))]


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *, engine: str) -> list[dict[str, Any]]:
    fake = folder / "fake"
    fake.mkdir()
    (fake / "sglang.py").write_text(engine)
    root = Path(lab.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (fake, root / "src", root))))
    draft, target = save_pair(folder, "vanilla-3")
    return compare_served(
        target, draft, PROMPTS, folder / "out",
        new_tokens=20, temperatures=(0.0, 1.0), requests=2, seed=0,
    )  # fmt: skip


def test_both_engines_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy, sampled = run(tmp_path, monkeypatch, engine=ENGINE.format(line="True"))
    assert greedy["domains"]["all"]["difference"] == 0
    assert (sampled["domains"]["all"]["first"], sampled["domains"]["all"]["second"]) == (4.0, 5.0)
    assert set(sampled["domains"]) == {"all", "python", "docs"}
    assert sampled["same_text"] == 1.0
    assert sampled["per_prompt"][1] == {"domain": "docs", "sglang": [20, 5], "walk": [20, 4]}


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (ENGINE.format(line="False"), "plugin stayed off: off for SGLang's DSpark draft: memory"),
        ("raise SystemExit(3)", "exit status 3"),
    ],
)
def test_a_start_that_does_not_prove_itself_is_an_error(
    engine: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WalkError, match=words):
        run(tmp_path, monkeypatch, engine=engine)


def test_domino_is_served_with_all_candidates(tmp_path: Path) -> None:
    draft, target = save_pair(tmp_path, "domino-3")
    arguments = engine_arguments(target, draft, requests=4, longest=100, seed=1)
    assert arguments["speculative_algorithm"] == "DFLASH"
    assert arguments["speculative_domino_candidate_pool_size"] == 0

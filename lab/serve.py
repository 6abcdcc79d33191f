"""The same comparison with SGLang as the verifier: `python -m lab.serve DATA MODELS OUT`.

Wants SGLang. The same held-out prompts are continued by an engine whose head runs as SGLang runs it
and by one that walks, each in a process of its own, since a process decides once; side by side,
since no time is measured. Accepted length is completion_tokens / spec_verify_ct of each prompt.
Which path ran is to be seen in the logs: a start whose log does not prove it is an error.

OUT gets serve.json and the logs of both engines.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.acceptance import PER_DOMAIN, Prompt, by_domain, draw_prompts
from lab.data import read_tokens
from wts.bench.serving import greedy_only, setting
from wts.bench.serving.models import Drafter
from wts.bench.serving.paths import Plugins, environment_of, plugin_folders, prove
from wts.bench.serving.starts import Start, run_turn
from wts.errors import DeviceError
from wts.heads.config import read_config

__all__ = ["compare_served", "engine_arguments"]

_PATHS = ("sglang", "wts")
_TIME_OUT_S = 540


def engine_arguments(
    target: Path, draft: Path, *, requests: int, longest: int, seed: int
) -> dict[str, object]:
    """Arguments of `sglang.Engine` for a drafter, whose head its folder names."""
    return setting.engine_arguments(
        target,
        draft,
        domino=_drafter(draft) == "domino",
        requests=requests,
        longest=longest,
        seed=seed,
    )


def _drafter(draft: Path) -> Drafter:
    return "dspark" if read_config(draft).domino is None else "domino"


def _work(job_file: Path, result_file: Path) -> None:
    """One engine's share: continue all prompts at all temperatures."""
    os.dup2(2, 1)  # `run_turn` keeps standard output for answers; what engines print is the log
    job = json.loads(job_file.read_text(encoding="utf-8"))
    engine = importlib.import_module("sglang").Engine(**job["engine"])
    results = []
    try:
        for temperature in job["temperatures"]:
            parameters = {
                "temperature": temperature,
                "max_new_tokens": job["new_tokens"],
                "ignore_eos": True,
            }
            outputs = engine.generate(input_ids=job["prompts"], sampling_params=parameters)
            results.append(
                [
                    {
                        "tokens": int(output["meta_info"]["completion_tokens"]),
                        "rounds": int(output["meta_info"]["spec_verify_ct"]),
                        "text": list(output["output_ids"]),
                    }
                    for output in outputs
                ]
            )
    finally:
        engine.shutdown()
    result_file.write_text(json.dumps(results), encoding="utf-8")


def _start(path: str, job: dict[str, Any], out: Path, plugins: Plugins, drafter: Drafter) -> Start:
    """A start of an engine."""
    start = Start(
        job=out / f"{path}.job.json",
        results=out / f"{path}.result.json",
        log=out / f"{path}.log",
        environment=environment_of(
            path,
            os.environ,
            plugins=plugins,
            greedy_only=greedy_only.is_needed(drafter),
            accept_length=0,
            scratch=out,
        ),
        worker=("-m", "lab.serve", "--work"),
    )
    start.job.write_text(json.dumps(job), encoding="utf-8")
    return start


def _results(path: str, start: Start, status: int | None, drafter: Drafter) -> Any:
    """What an engine wrote, where its log proves the path."""
    if status != 0 or not start.results.is_file():
        raise DeviceError.mismatch(
            f"the engine ({path})",
            wanted="results",
            found="no end in time" if status is None else f"exit status {status}",
            fix=f"read {start.log}",
        )
    proof = prove(path, start.log.read_text(encoding="utf-8", errors="replace"), drafter)
    if isinstance(proof, str):
        raise DeviceError.mismatch(
            f"the log of the engine ({path})",
            wanted="lines that prove its path",
            found=proof,
            fix=f"see why in {start.log}",
        )
    print(f"{path}: {proof.line.strip()}", file=sys.stderr)
    return json.loads(start.results.read_text(encoding="utf-8"))


def _serve(job: dict[str, Any], out: Path, drafter: Drafter) -> list[list[list[dict[str, Any]]]]:
    """Both engines' results."""
    plugins = plugin_folders(out / "plugins", needed=True)
    starts = [_start(path, job, out, plugins, drafter) for path in _PATHS]
    statuses = run_turn(starts, [], limit_s=_TIME_OUT_S)
    return [
        _results(path, start, status, drafter)
        for path, start, status in zip(_PATHS, starts, statuses, strict=True)
    ]


def compare_served(
    target: Path,
    draft: Path,
    prompts: Sequence[Prompt],
    out: Path,
    *,
    new_tokens: int,
    temperatures: Sequence[float],
    requests: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Continue prompts with both engines, and compare them as `lab.acceptance` does.

    Args:
        target, draft: checkpoint folders.
        prompts: to continue.
        out: for jobs, logs and results.
        new_tokens: of each prompt.
        temperatures: a comparison for each.
        requests: served at once.
        seed: of the engines.

    Returns:
        For each temperature what `lab.acceptance.compare` gives, without equal states.
    """
    drafter = _drafter(draft)
    greedy_only.check_temperatures(drafter, temperatures)
    out.mkdir(parents=True, exist_ok=True)
    longest = max(len(prompt.tokens) for prompt in prompts) + new_tokens
    job = {
        "engine": engine_arguments(target, draft, requests=requests, longest=longest, seed=seed),
        "prompts": [list(prompt.tokens) for prompt in prompts],
        "new_tokens": new_tokens,
        "temperatures": list(temperatures),
    }
    theirs, ours = _serve(job, out, drafter)
    domains = [prompt.domain for prompt in prompts]
    found = []
    for temperature, one, other in zip(temperatures, theirs, ours, strict=True):
        sides = [[(x["tokens"], x["rounds"]) for x in side] for side in (one, other)]
        same = sum(a["text"] == b["text"] for a, b in zip(one, other, strict=True))
        found.append(
            {
                "temperature": temperature,
                "domains": by_domain(domains, *sides),
                "same_text": same / len(prompts),
                "per_prompt": [
                    {"domain": d, "sglang": list(a), "walk": list(b)}
                    for d, a, b in zip(domains, *sides, strict=True)
                ],
            }
        )
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.serve", description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="what lab.data wrote")
    parser.add_argument("models", type=Path, nargs="?", help="what lab.run wrote")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--drafter", default="vanilla-7", metavar="NAME")
    parser.add_argument("--per-domain", type=int, default=PER_DOMAIN, help="prompts of each domain")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, nargs=2, default=(32, 128), help="shortest, longest")
    parser.add_argument("--temperature", type=float, action="append", help="0 and 1 by default")
    parser.add_argument("--requests", type=int, default=16, help="served at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.work is not None:
        _work(*args.work)
        return
    if args.out is None:
        parser.error("DATA, MODELS and OUT are wanted")
    prompts = draw_prompts(
        read_tokens(args.data / "val.npz"),
        per_domain=args.per_domain,
        shortest=args.prompt[0],
        longest=args.prompt[1],
        seed=args.seed,
    )
    found = compare_served(
        args.models / "target",
        args.models / args.drafter,
        prompts,
        args.out,
        new_tokens=args.new_tokens,
        temperatures=args.temperature or (0.0, 1.0),
        requests=args.requests,
        seed=args.seed,
    )
    (args.out / "serve.json").write_text(json.dumps({args.drafter: found}) + "\n")
    for result in found:
        all_of_it = result["domains"]["all"]
        print(
            f"T={result['temperature']:g}: SGLang {all_of_it['first']:.4f}, walk "
            f"{all_of_it['second']:.4f}, difference {all_of_it['difference']:+.4f} "
            f"[{all_of_it['low']:+.4f}, {all_of_it['high']:+.4f}], same text "
            f"{result['same_text']:.1%}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()

"""One start of an engine, measured: `python -m wts.bench.serving_worker JOB RESULTS GATE`.

A process of its own, because the environment of an engine's start says which head it serves with.
The job is read from a JSON file, results are appended to another as they come, one line each, so
that whatever was measured before a time-out is kept. The first line says that the engine is ready;
it measures once the third file is there.

Engines start processes that import this module again; only the first one runs `main`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main", "measure"]


def main(argv: Sequence[str]) -> int:
    """Start the engine of a job and measure its points.

    Args:
        argv: the job file, the results file and the file to wait for.
    """
    job_file, results_file, gate = (Path(name) for name in argv)
    job = json.loads(job_file.read_text(encoding="utf-8"))

    def emit(event: str, fields: Mapping[str, object]) -> None:
        with results_file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"event": event, **fields}) + "\n")

    started = time.perf_counter()
    engine = importlib.import_module("sglang").Engine(**job["engine"])
    try:
        emit("ready", {"seconds": time.perf_counter() - started})
        parent = os.getppid()
        while not gate.exists():
            if os.getppid() != parent:
                raise RuntimeError(f"nobody is left who would make {gate}")
            time.sleep(0.1)
        for point in job["points"]:
            emit("point", point | measure(engine, job, **point))
    finally:
        engine.shutdown()
    emit("done", {"seconds": time.perf_counter() - started})
    return 0


def measure(
    engine: Any, job: Mapping[str, Any], *, concurrency: int, temperature: float
) -> dict[str, object]:
    """Time generations of two lengths in turns; their difference has no prefill in it.

    Args:
        engine: a started `sglang.Engine`.
        job: prompts (lists of tokens), short and long (tokens to generate), repeats.
        concurrency: requests at a time, the first so many prompts.
        temperature: of all of them.

    Returns:
        short and long, a run for every repeat each, and the tokens of the first long run.
    """
    prompts = job["prompts"][:concurrency]
    if len(prompts) < concurrency:
        raise ValueError(f"prompts: wanted {concurrency}, found {len(prompts)}")

    def run(num_tokens: int) -> tuple[dict[str, object], list[list[int]]]:
        params = {"temperature": temperature, "max_new_tokens": num_tokens, "ignore_eos": True}
        started = time.perf_counter()
        outputs = engine.generate(input_ids=prompts, sampling_params=params)
        seconds = time.perf_counter() - started
        metas = [output["meta_info"] for output in outputs]
        return {
            "seconds": seconds,
            "tokens": [int(meta["completion_tokens"]) for meta in metas],
            "rounds": [int(meta["spec_verify_ct"]) for meta in metas],
        }, [list(output["output_ids"]) for output in outputs]

    run(job["short"])  # first calls compile and choose kernels
    result: dict[str, list[object]] = {"short": [], "long": [], "texts": []}
    for repeat in range(job["repeats"]):
        result["short"].append(run(job["short"])[0])
        timed, texts = run(job["long"])
        result["long"].append(timed)
        if repeat == 0:
            result["texts"] = list(texts)
    return dict(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

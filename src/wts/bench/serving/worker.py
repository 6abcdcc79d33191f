"""One start of an engine, measured: `python -m wts.bench.serving.worker JOB RESULTS`.

A process of its own, because the environment of an engine's start says which head it serves with.
The job is read from a JSON file. A byte on standard output says that the engine is ready, and one
more follows every measurement, which a line on standard input asks for; where that ends, so does
the start. Results are appended to a file as they come, one JSON line each, so that whatever was
measured before a time-out is kept.

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
from typing import Any, TextIO

__all__ = ["main", "measure"]


def main(argv: Sequence[str]) -> int:
    """Start the engine of a job and measure what is asked for.

    Args:
        argv: the job file and the results file.
    """
    job_file, results_file = (Path(name) for name in argv)
    job = json.loads(job_file.read_text(encoding="utf-8"))
    orders, answers = _take_streams()

    def emit(event: str, fields: Mapping[str, object]) -> None:
        with results_file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"event": event, **fields}) + "\n")

    started = time.perf_counter()
    engine = importlib.import_module("sglang").Engine(**job["engine"])
    try:
        emit("ready", {"seconds": time.perf_counter() - started})
        os.write(answers, b".")
        for line in orders:
            order = json.loads(line)
            emit("measured", order | measure(engine, job, **order))
            os.write(answers, b".")
    finally:
        engine.shutdown()
    emit("done", {"seconds": time.perf_counter() - started})
    return 0


def _take_streams() -> tuple[TextIO, int]:
    """Keep the standard streams to itself: what engines print goes where errors go."""
    orders, answers = os.fdopen(os.dup(0)), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return orders, answers


def measure(
    engine: Any, job: Mapping[str, Any], *, concurrency: int, temperature: float, repeat: int
) -> dict[str, object]:
    """Time a short and a long generation; their difference has no prefill in it.

    Args:
        engine: a started `sglang.Engine`.
        job: prompts (lists of tokens), short and long (tokens to generate).
        concurrency: requests at a time, the first so many prompts.
        temperature: of all of them.
        repeat: how often this point was measured before.

    Returns:
        short and long, and the tokens of the long run if it is the first.
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

    run(job["short"])  # compiles, chooses kernels and warms caches that another engine has used
    short, _ = run(job["short"])
    long, texts = run(job["long"])
    return {"short": short, "long": long, "texts": [] if repeat else texts}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Records and machines that tests of benchmarks make up."""

from __future__ import annotations

from typing import Any

from wts.bench import record


def environment(**changes: Any) -> record.Environment:
    fields: dict[str, Any] = {
        "gpu": "h200",
        "sms": 132,
        "driver": "580.1",
        "cuda": "13.0",
        "torch": "2.11.0",
        "sglang": None,
        "commit": "0" * 40,
        "dirty": False,
        "clock_mhz": 1755.0,
        "max_clock_mhz": None,
    }
    return record.Environment(**(fields | changes))


def head_record(**changes: Any) -> record.Record:
    fields: dict[str, Any] = {
        "bench": "head",
        "run_id": "20260101T000000Z-abcdef",
        "path": "wts",
        "head": "markov",
        "weights": "int8",
        "V": 151_936,
        "r": 256,
        "B": 1,
        "K": 16,
        "T": 0,
        "cache": "cold",
        "p50_us": 50.0,
        "p05_us": 49.0,
        "p95_us": 52.5,
        "n": 60,
        "inputs": "random",
        "excludes": "",
        "resident_share": 1.0,
        "plan": "abc123",
    }
    return record.build(environment(), **(fields | changes))


def serving_record(**changes: Any) -> record.Record:
    fields: dict[str, Any] = {
        "bench": "serving",
        "cache": "warm",
        "model": "qwen3-4b",
        "draft": "dspark",
        "block": 16,
        "concurrency": 4,
        "accept": "simulated",
        "tokens_per_s": 3748.0,
        "round_us": 6404.0,
        "accepted_length": 6,
        "repeat": 0,
    }
    return head_record() | fields | changes

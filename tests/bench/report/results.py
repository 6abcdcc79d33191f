"""Records of one GPU that tests make up, and what a figure shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wts.bench.record import Record, validate
from wts.bench.report.points import Results

ROOT = Path(__file__).parents[3]

H200 = ROOT / "benchmarks" / "results" / "h200"

ENVIRONMENT = {
    "schema": 1,
    "weights": "int8",
    "r": 256,
    "inputs": "random",
    "gpu": "h200",
    "sms": 132,
    "driver": "1",
    "cuda": "13.0",
    "torch": "2",
    "sglang": None,
    "commit": "abc",
    "dirty": False,
    "time": "2026-01-01T00:00:00Z",
    "run_id": "one",
    "n": 3,
    "excludes": "",
    "resident_share": 1.0,
    "plan": "x",
    "cache": "cold",
}


def record(us: float, *, bench: str = "head", **fields: object) -> Record:
    found = {
        **ENVIRONMENT,
        "bench": bench,
        "path": "wts",
        "head": "markov",
        "V": 151_936,
        "B": 1,
        "K": 1,
        "T": 0.0,
        "p50_us": us,
        "p05_us": us,
        "p95_us": us,
        **fields,
    }
    validate(found)
    return found


def results(**records: Sequence[Record]) -> Results:
    every = {name: records.get(name, []) for name in ("head", "placement", "serving", "acceptance")}
    return Results(gpu="h200", digest="d", records=every)


def lines_of(path: str, entry: float, step: float, **fields: object) -> list[Record]:
    return [record(entry + step * k, path=path, K=k, **fields) for k in (1, 7, 16)]


def texts(figure: Any) -> str:
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))

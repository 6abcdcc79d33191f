"""Turns of starts: whose turn it is, and processes that do not do as they should."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wts.bench.serving.starts import Order, Point, Start, orders_of, run_turn

LIMIT_S = 60.0

SHORT_S = 10.0  # but long enough to start on a busy machine


class TestOrders:
    def test_starts_alternate_and_each_is_first_as_often(self) -> None:
        points: dict[Point, int] = {(1, 0.0): 3, (2, 0.0): 3}
        orders = orders_of([points] * 3, repeats=3)
        assert [place for place, _ in orders] == [0, 1, 2, 1, 2, 0, 2, 0, 1] * 2
        assert [order["concurrency"] for _, order in orders] == [1] * 9 + [2] * 9
        assert [order["repeat"] for _, order in orders[:9]] == [0, 0, 0, 1, 1, 1, 2, 2, 2]

    def test_the_first_goes_on_from_point_to_point(self) -> None:
        points: dict[Point, int] = {(1, 0.0): 1, (2, 0.0): 1, (4, 1.0): 1}
        assert [place for place, _ in orders_of([points] * 2, repeats=1)] == [0, 1, 1, 0, 0, 1]

    def test_what_a_start_has_is_not_asked_again(self) -> None:
        wanted: list[dict[Point, int]] = [{(1, 0.0): 3}, {(1, 0.0): 1, (2, 0.0): 1}]
        orders = orders_of(wanted, repeats=3)
        assert [(p, o["concurrency"], o["repeat"]) for p, o in orders] == [
            *((0, 1, 0), (1, 1, 2), (0, 1, 1), (0, 1, 2)),
            (1, 2, 2),
        ]


# A worker as `serving_worker` is one, without an engine: what it is told is in its job.
WORKER = """
import json, os, sys, time
job = json.load(open(sys.argv[1]))
if job.get("crashes"):
    sys.exit(3)
os.write(1, b".")
for line in sys.stdin:
    order = json.loads(line)
    if order["repeat"] == job.get("falls at"):
        sys.exit(4)
    if order["repeat"] == job.get("hangs at"):
        time.sleep(600)
    with open(job["calls"], "a") as calls:
        calls.write(f"{job['name']}{order['repeat']} ")
    os.write(1, b".")
if job.get("stays"):
    time.sleep(600)
"""

Turn = Callable[..., list[int | None]]


@pytest.fixture
def turn(tmp_path: Path) -> Turn:
    """Run starts a, b, ... of three measurements each, with their jobs."""
    (tmp_path / "stand_in.py").write_text(WORKER)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    def run(*jobs: dict[str, object], limit_s: float = LIMIT_S) -> list[int | None]:
        made = []
        for name, job in zip("abc", jobs, strict=False):
            file = tmp_path / f"{name}.json"
            file.write_text(json.dumps({"name": name, "calls": str(tmp_path / "calls"), **job}))
            made.append(
                Start(
                    job=file,
                    results=tmp_path / f"{name}.jsonl",
                    log=tmp_path / f"{name}.log",
                    environment=environment,
                    worker=("-m", "stand_in"),
                )
            )
        orders: list[Order] = orders_of([{(1, 0.0): 3}] * len(jobs), repeats=3)
        return run_turn(made, orders, limit_s=limit_s)

    return run


class TestRunTurn:
    def test_one_at_a_time_measures_in_the_order_of_the_orders(
        self, turn: Turn, tmp_path: Path
    ) -> None:
        assert turn({}, {}, {}) == [0, 0, 0]
        assert (tmp_path / "calls").read_text() == "a0 b0 c0 b1 c1 a1 c2 a2 b2 "

    def test_the_others_go_on_without_one_that_fell_out(self, turn: Turn, tmp_path: Path) -> None:
        assert turn({"crashes": True}, {}, {"falls at": 1}) == [3, 0, 4]
        assert (tmp_path / "calls").read_text() == "b0 c0 b1 b2 "

    def test_all_are_ended_when_time_is_up(self, turn: Turn, tmp_path: Path) -> None:
        begun = time.monotonic()
        assert turn({}, {"hangs at": 1}, limit_s=SHORT_S) == [None, None]
        assert time.monotonic() - begun < LIMIT_S / 2
        assert (tmp_path / "calls").read_text() == "a0 b0 "

    def test_one_that_does_not_end_by_itself_is_ended(self, turn: Turn) -> None:
        assert turn({}, {"stays": True}, limit_s=SHORT_S) == [0, None]

"""The line that says which path runs."""

from __future__ import annotations

import logging

import pytest

from strategies import hopper
from wts.engines.common import report
from wts.engines.common.buckets import Bucket, build_walks
from wts.engines.common.reasons import Reason
from wts.engines.sglang.version import DOMINO, DSPARK, SGLANG
from wts.heads.markov import MarkovHead

REASON = Reason(kind="memory", text="none left")


def bucket(
    batch: int, share: float = 1.0, reason: Reason | None = None, *, product: bool = False
) -> Bucket:
    return Bucket(batch=batch, resident_share=share, product=product, reason=reason)


def test_neighbours_of_one_path_are_told_together() -> None:
    slow = Reason(kind="plan", text="too slow")
    text = report.describe_buckets(
        SGLANG,
        (bucket(1), bucket(2, 0.5), bucket(4, 0.5), bucket(8, 0.5, slow), bucket(16, 0.5, slow)),
    )
    assert text.split("; ") == [
        "batch 1: 1 kernel a block, 100 % resident",
        "batch 2 to 4: 1 kernel a block, 50 % resident",
        "batch 5 to 16: SGLang's own steps (too slow)",
        "batch 17 and above: SGLang's own steps",
    ]


def test_the_product_of_hidden_states_is_told() -> None:
    text = report.describe_buckets(SGLANG, (bucket(2), bucket(4, product=True)))
    assert text.startswith(
        "batch 1 to 2: 1 kernel a block, 100 % resident; "
        "batch 3 to 4: 1 kernel and a matrix product a block, 100 % resident; "
    )


def test_the_line_names_what_walks(caplog: pytest.LogCaptureFixture) -> None:
    walks = build_walks(
        MarkovHead.random(vocab=517, rank=64, seed=1),
        hopper(4),
        draft=DSPARK,
        most_requests=2,
        steps=5,
        base_type="bf16",
        sampled=True,
        backend="emulator",
    )
    assert not isinstance(walks, Reason)
    with caplog.at_level(logging.INFO, logger="wts.sglang"):
        report.will_walk(walks)
        report.stays_off(DOMINO, REASON)
    on, off = caplog.messages
    for word in ("DSpark", "markov head", "V 517", "r 64", "K 5", "batch 1 to 2", "MiB held"):
        assert word in on
    assert off == "wts: off for SGLang's Domino rollout: none left"

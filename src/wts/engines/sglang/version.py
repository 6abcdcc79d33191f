"""The releases of SGLang that are served, the doors into each, and which of its drafts walk."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from importlib import metadata

from wts.engines.common.engine import Draft, Engine, Methods
from wts.engines.common.reasons import Reason

__all__ = ["DOMINO", "DSPARK", "RELEASES", "SGLANG", "Release", "installed", "release_of"]

SGLANG = Engine(
    name="SGLang",
    logger=logging.getLogger("wts.sglang"),
    switch="WTS_SGLANG",
    verbose="WTS_SGLANG_VERBOSE",
    update_end="end_weight_update",
    memory_fix="lower --mem-fraction-static",
    reserve_bytes=512 << 20,  # its draft graphs are captured next
)

DSPARK = Draft(
    engine=SGLANG, name="SGLang's DSpark draft", heads=("markov", "gated", "rnn"), sampled=True
)

DOMINO = Draft(
    engine=SGLANG,
    name="SGLang's Domino rollout",
    heads=("domino",),
    sampled=False,
    one_rank="base logits of a rollout are sharded over ranks",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release of SGLang, whose functions are known to be the ones that are hooked.

    Args:
        number: of the release; its post-releases are served, too.
        factory: the function that gives a draft model's sampler factory, or None for SGLang's own
            steps; a dotted path, as the others.
        rollout: the function that drafts a block of Domino.
        updates: where an online change of weights is complete, the target's or the draft's.
        parts: what changes a part of the weights; taken only before an `end_weight_update`.
        results: where the host has waited for a batch's results anyway, outside of every capture.
        staging: where a batch's temperatures are written before its graph is replayed, those of
            padding not.
    """

    number: str
    factory: str
    rollout: str
    updates: Methods
    parts: Methods
    results: Methods
    staging: Methods


_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_SCHEDULER = "sglang.srt.managers.scheduler_components"
_DSPARK = "sglang.srt.speculative.dspark_components"

RELEASES = (
    Release(
        number="0.5.23",
        factory="sglang.srt.kernel_plugins.nvidia.binding.megakernel_draft_sampler",
        rollout="sglang.srt.speculative.domino_utils.domino_greedy_rollout",
        updates=Methods(
            owner=_UPDATER,
            names=("update_weights_from_disk", "update_weights_from_ipc", "end_weight_update"),
        ),
        parts=Methods(
            owner=_UPDATER, names=("load_weights_from_distributed", "update_weights_from_tensor")
        ),
        results=Methods(
            owner=f"{_SCHEDULER}.batch_result_processor.SchedulerBatchResultProcessor",
            names=("process_batch_result_decode",),
        ),
        staging=Methods(
            owner=f"{_DSPARK}.dspark_draft_sampler.DsparkDraftSampler",
            names=("stage_sampling_params",),
        ),
    ),
)
"""All releases that are served, the newest last."""


def installed() -> str | None:
    """The installed version of SGLang; None where it is not installed."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def release_of(version: str | None) -> Release | Reason:
    """Find the release that a version is of, or why it is not served."""
    if version is None:
        return Reason(kind="version", text="SGLang is not installed")
    for release in RELEASES:
        if re.fullmatch(re.escape(release.number) + r"(\.post\d+)?(\+.*)?", version):
            return release
    served = " or ".join(release.number for release in RELEASES)
    return Reason(kind="version", text=f"this is SGLang {version}, wanted is {served}")

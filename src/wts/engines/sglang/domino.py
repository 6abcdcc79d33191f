"""The Domino rollout as a walk, under the arguments of SGLang's own function.

Source:
    SGLang 0.5.23, sglang/srt/speculative/domino_utils.py, `domino_greedy_rollout`.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from wts.engines.common import report
from wts.engines.common.buckets import Walks, build_walks
from wts.engines.common.reasons import Reason, why_not_ranks
from wts.engines.common.upkeep import Upkeep
from wts.engines.sglang import events
from wts.engines.sglang.adopt import adopt_domino, plain_embedding
from wts.engines.sglang.version import DOMINO, SGLANG, Release
from wts.hardware.gpu import GpuSpec
from wts.heads.domino import DominoHead
from wts.walk.backends import BackendName

__all__ = ["Modules", "Rollout", "prepare"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Modules:
    """The modules of SGLang that a head is made of, as long as a drafter has them.

    They are held weakly: a Rollout is kept by its drafter, and would keep that one itself.

    Args:
        target_embedding: weak reference to the target's embedding.
        prefix_gru: to the drafter's GRU.
        embed_proj: to its projector.
    """

    target_embedding: weakref.ref[Any]
    prefix_gru: weakref.ref[Any]
    embed_proj: weakref.ref[Any]

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> Modules:
        """Those among the arguments of a rollout."""
        return cls(**{name: weakref.ref(arguments[name]) for name in _MODULES})

    def are_in(self, arguments: dict[str, Any]) -> bool:
        """Whether a call is given the very same."""
        return all(getattr(self, name)() is arguments[name] for name in _MODULES)

    def adopt(self, *, vocab_size: int, shift_label: bool) -> DominoHead | Reason:
        """Make a head of them; see `adopt_domino`."""
        found = {name: getattr(self, name)() for name in _MODULES}
        if any(module is None for module in found.values()):
            return Reason(kind="head", text="the drafter is gone")
        return adopt_domino(**found, vocab_size=vocab_size, shift_label=shift_label)


_MODULES = ("target_embedding", "prefix_gru", "embed_proj")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """Walks of one Domino head.

    Args:
        walks: the walks.
        head: the head, whose labels may be shifted.
        modules: SGLang's modules that it was made of.
        tokens: int64 [most requests, K], where a captured rollout leaves its tokens.
        upkeep: of the walks: it lives as long as they are served.
    """

    walks: Walks
    head: DominoHead
    modules: Modules
    tokens: torch.Tensor
    upkeep: Upkeep

    def takes(self, arguments: dict[str, Any]) -> bool:
        """Whether a call is one that was built for."""
        hidden = arguments["draft_hidden"]
        return (
            self.modules.are_in(arguments)
            and _whole_vocabulary(arguments)
            and bool(arguments["shift_label"]) == self.head.shift_label
            and int(arguments["vocab_size"]) == self.head.vocab
            and hidden.dtype == arguments["lm_head_weight"].dtype == torch.bfloat16
            and arguments["bonus_tokens"].dtype == torch.int64
            and 2 <= hidden.shape[1] <= self.walks.steps + 1
            and self.walks.for_batch(hidden.shape[0]) is not None
        )

    @torch.no_grad()
    def __call__(self, arguments: dict[str, Any]) -> torch.Tensor:
        """Draft a block.

        Args:
            arguments: those of SGLang's function, which `takes` has agreed to.

        Returns:
            int64 [B, K].
        """
        hidden = self.head.drafting_hidden(arguments["draft_hidden"])
        batch, steps, size = hidden.shape
        # The rows in SGLang's order, so that its product gives SGLang's base logits.
        rows = hidden.transpose(0, 1).reshape(steps * batch, size)
        weight = arguments["lm_head_weight"][: self.head.vocab]
        base_logits = functional.linear(rows, weight).view(steps, batch, self.head.vocab)
        walker = self.walks.for_batch(batch)
        assert walker is not None
        # Eagerly the caller keeps the tokens beyond the next call; captured, it copies them.
        out = self.tokens[:batch] if arguments["in_cuda_graph"] else None
        if steps != self.walks.steps:
            out = None
        return walker(
            base_logits.transpose(0, 1), arguments["bonus_tokens"], hidden=hidden, out=out
        )


def prepare(
    arguments: dict[str, Any],
    gpu: GpuSpec,
    *,
    release: Release,
    most_requests: int,
    backend: BackendName = "device",
) -> Rollout | Reason:
    """Build walks from the arguments of a first rollout, which is a warm-up.

    Args:
        arguments: those of SGLang's function.
        gpu: the GPU that walks are planned for.
        release: the SGLang that asks.
        most_requests: the largest batch that will be captured.
        backend: "device", or "emulator" to try the same on a CPU.

    Returns:
        The rollout, or why SGLang's own runs; the log has said it.
    """
    found = _prepared(arguments, gpu, most_requests, backend)
    if isinstance(found, Rollout):  # last: its upkeep may be called from then on
        found = events.attach(found.upkeep, release) or found
    if isinstance(found, Reason):
        report.stays_off(DOMINO, found)
    else:
        report.will_walk(found.walks)
    return found


def _prepared(
    arguments: dict[str, Any], gpu: GpuSpec, most_requests: int, backend: BackendName
) -> Rollout | Reason:
    reason = _why_not_these(arguments)
    if reason is not None:
        return reason
    modules = Modules.of(arguments)
    adopt = partial(
        modules.adopt,
        vocab_size=int(arguments["vocab_size"]),
        shift_label=arguments["shift_label"],
    )
    head = adopt()
    if isinstance(head, Reason):
        return head
    if head.vocab != int(arguments["vocab_size"]):
        return Reason(
            kind="head", text=f"{head.vocab} rows of embed_proj, {arguments['vocab_size']} tokens"
        )
    reason = plain_embedding(arguments["target_embedding"], head)
    if reason is not None:
        return reason
    steps = arguments["draft_hidden"].shape[1] - 1
    walks = build_walks(
        head,
        gpu,
        draft=DOMINO,
        most_requests=most_requests,
        steps=steps,
        base_type="bf16",
        sampled=False,
        backend=backend,
    )
    if isinstance(walks, Reason):
        return walks
    most = min(most_requests, walks.buckets[-1].batch)
    return Rollout(
        walks=walks,
        head=head,
        modules=modules,
        tokens=torch.zeros(most, steps, dtype=torch.int64, device=head.table.device),
        upkeep=Upkeep(engine=SGLANG, walkers=walks.walkers, adopt=adopt, ranks=1),
    )


def _whole_vocabulary(arguments: dict[str, Any]) -> bool:
    pool = int(arguments["candidate_pool_size"])
    return pool == 0 or pool >= int(arguments["vocab_size"])


def _why_not_these(arguments: dict[str, Any]) -> Reason | None:
    group = arguments.get("tp_group")
    reason = why_not_ranks(DOMINO, 1 if group is None else group.world_size)
    if reason is not None:
        return reason
    if not _whole_vocabulary(arguments):
        return Reason(
            kind="candidates",
            text=f"it selects among {arguments['candidate_pool_size']} candidates; "
            "--speculative-domino-candidate-pool-size 0 selects among all tokens",
        )
    types = (arguments["draft_hidden"].dtype, arguments["lm_head_weight"].dtype)
    if types != (torch.bfloat16, torch.bfloat16):
        return Reason(kind="head", text=f"hidden states and lm_head are {types}, not bfloat16")
    return None

"""What a launch tells its kernel: addresses, strides and numbers, by the names of `WalkArgs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch

from wts.kernels.packed import PackedHead
from wts.kernels.workspace import Workspace
from wts.selection.call import Call

__all__ = [
    "Arguments",
    "call_arguments",
    "hidden_arguments",
    "packed_arguments",
    "workspace_arguments",
]

Arguments: TypeAlias = Mapping[str, int | None]
"""Values by the names of fields; None is a null pointer."""


def call_arguments(call: Call, tokens: torch.Tensor) -> Arguments:
    """The tensors of a walk, and where its tokens go, int64 [B, K].

    The walk's own hidden states are named by whoever has made them readable for the kernel.
    """
    base, logits, noise = call.base_logits, call.logits_out, call.noise
    return {
        "base": base.data_ptr(),
        "base_request_stride": base.stride(0),
        "base_step_stride": base.stride(1),
        "anchor": call.anchor.data_ptr(),
        "anchor_stride": call.anchor.stride(0),
        "tokens": tokens.data_ptr(),
        "temperatures": _address(call.temperatures),
        "noise_offset": None if noise is None else noise.offset.data_ptr(),
        "noise_key": 0 if noise is None else noise.key,
        "logits_out": _address(logits),
        "logits_request_stride": 0 if logits is None else logits.stride(0),
        "logits_step_stride": 0 if logits is None else logits.stride(1),
        "num_requests": call.batch,
        "num_steps": call.steps,
    }


def hidden_arguments(hidden: torch.Tensor | None, term: torch.Tensor | None) -> Arguments:
    """Hidden states [B, K, H] as the kernel reads them, and what they add to each step."""
    return {
        "hidden": _address(hidden),
        "hidden_request_stride": 0 if hidden is None else hidden.stride(0),
        "hidden_step_stride": 0 if hidden is None else hidden.stride(1),
        "hidden_part": None if hidden is None else _address(term),
    }


def packed_arguments(packed: PackedHead) -> Arguments:
    """The packed weights, those of a head's steps among them."""
    return {
        "tiles": packed.tiles.data_ptr(),
        "row_scale": packed.row_scale.data_ptr(),
        "table": packed.table.data_ptr(),
        "draft_to_target": _address(packed.draft_to_target),
        **packed.steps.arguments(),
    }


def workspace_arguments(workspace: Workspace) -> Arguments:
    """The memory in which blocks agree."""
    return {
        "slots": workspace.slots.data_ptr(),
        "state_slots": workspace.state_slots.data_ptr(),
        "exact_slots": workspace.exact_slots.data_ptr(),
        "exact": workspace.exact_source.data_ptr(),
        "status": workspace.status.data_ptr(),
    }


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

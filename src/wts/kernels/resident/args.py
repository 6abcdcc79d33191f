"""The kernel's one argument, as the host makes it."""

from __future__ import annotations

import ctypes
from enum import IntEnum

__all__ = ["TURNS", "Turn", "WalkArgs"]


class Turn(IntEnum):
    """Which batches a launch walks; also the names of the kernel's `enum class Turn`."""

    ALWAYS = 0
    ALL_GREEDY = 1
    ANY_SAMPLED = 2


TURNS = ",".join(Turn.__members__)
"""These names, in their order, as the kernel is given them."""


class WalkArgs(ctypes.Structure):
    """The kernel's one argument; `struct WalkArgs` of csrc/args.cuh, whose size is asserted."""

    _fields_ = [
        ("tiles", ctypes.c_void_p),
        ("row_scale", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("hidden_part", ctypes.c_void_p),
        ("hidden", ctypes.c_void_p),
        ("hidden_request_stride", ctypes.c_int64),
        ("hidden_step_stride", ctypes.c_int64),
        ("hidden_weight", ctypes.c_void_p),
        ("hidden_bias", ctypes.c_void_p),
        ("draft_to_target", ctypes.c_void_p),
        ("base", ctypes.c_void_p),
        ("base_request_stride", ctypes.c_int64),
        ("base_step_stride", ctypes.c_int64),
        ("anchor", ctypes.c_void_p),
        ("anchor_stride", ctypes.c_int64),
        ("tokens", ctypes.c_void_p),
        ("temperatures", ctypes.c_void_p),
        ("noise_offset", ctypes.c_void_p),
        ("noise_key", ctypes.c_uint64),
        ("logits_out", ctypes.c_void_p),
        ("logits_request_stride", ctypes.c_int64),
        ("logits_step_stride", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("state_weight", ctypes.c_void_p),
        ("projector_weight", ctypes.c_void_p),
        ("state_slots", ctypes.c_void_p),
        ("status", ctypes.c_void_p),
        ("trace", ctypes.c_void_p),
        ("num_requests", ctypes.c_int32),
        ("num_steps", ctypes.c_int32),
        ("timeout_us", ctypes.c_uint32),
        ("turn", ctypes.c_uint32),
        ("exact", ctypes.c_void_p),
        ("exact_slots", ctypes.c_void_p),
    ]

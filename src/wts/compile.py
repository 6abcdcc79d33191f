"""From a plan to a specialised kernel: NVRTC through cuda.core, cubins cached on disk.

Nothing else in the package knows the compiler. No GPU is needed to compile.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import logging
import os
import re
import struct
import tempfile
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from importlib import resources
from pathlib import Path

from wts.errors import CompileError, PlanError
from wts.plan import ResidencyPlan
from wts.planner import with_fewer_registers, with_lone_warps

__all__ = [
    "KERNEL_NAME",
    "CompiledWalk",
    "Resources",
    "WalkArgs",
    "cache_folder",
    "compile_fitting",
    "compile_walk",
]

KERNEL_NAME = "wts_walk"
_SOURCES = (
    "walk.cu",
    "service.cuh",
    "inner.cuh",
    "own_units.cuh",
    "latents.cuh",
    "exact.cuh",
    "cells.cuh",
    "activations.cuh",
    "sweep.cuh",
    "product_mma.cuh",
    "lone_ring.cuh",
    "product_wgmma.cuh",
    "product_tcgen05.cuh",
    "offer.cuh",
    "ring.cuh",
    "rounds.cuh",
    "exchange.cuh",
    "noise.cuh",
    "select.cuh",
    "layout.cuh",
    "ptx.cuh",
)
logger = logging.getLogger("wts")
_MOST_ATTEMPTS = 9
# Low 12 bits of a 128-bit machine instruction, of sm_90 and sm_100 alike; read off the disassembly.
# UTCMMA stands for UTCIMMA and UTCHMMA, with A in tensor memory or in shared memory.
_OPCODES = {
    0x237: "IMMA",
    0x23C: "HMMA",
    0xDF1: "IGMMA",
    0x9F1: "IGMMA",
    0x983: "LDL",
    0x387: "STL",
    0x9EA: "UTCMMA",
    0x5EA: "UTCMMA",
    0x3E9: "UTCBAR",
    0x9ED: "STTM",
    0x9EE: "LDTM",
}


class Turn(IntEnum):
    """Which batches a launch walks; also the names of the kernel's `enum class Turn`."""

    ALWAYS = 0
    ALL_GREEDY = 1
    ANY_SAMPLED = 2


TURNS = ",".join(Turn.__members__)
"""These names, in their order, as the kernel is given them."""


class WalkArgs(ctypes.Structure):
    """The kernel's one argument; `struct WalkArgs` of csrc/rounds.cuh, whose size is asserted."""

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


class _Spilled(CompileError):
    """A kernel that needs more registers than its plan leaves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the compiled kernel uses, read from the cubin and the assembler's report.

    Args:
        registers: per thread at launch; the roles share them out anew.
        spill_bytes: stores and loads that the assembler says it spilled.
        matrix_instructions: IMMA, HMMA and IGMMA in the code.
        tensor_instructions: UTCMMA in the code, the products of tcgen05.
        local_accesses: LDL and STL in the code; any is a fault.
    """

    registers: int
    spill_bytes: int
    matrix_instructions: int
    tensor_instructions: int
    local_accesses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledWalk:
    """A kernel for one plan.

    Args:
        plan: the plan.
        cubin: machine code.
        used: its resources.
        cached: whether it came from the cache.
    """

    plan: ResidencyPlan
    cubin: bytes
    used: Resources
    cached: bool


def cache_folder() -> Path:
    """Where cubins are kept: `wts` in the user's cache folder (XDG_CACHE_HOME or ~/.cache)."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "wts"


def compile_walk(
    plan: ResidencyPlan, *, trace: bool = False, spills: bool = False, cache: Path | None = None
) -> CompiledWalk:
    """Compile the walk for a plan, or take it from the cache.

    Args:
        plan: the plan; every size in the kernel comes from it.
        trace: whether the kernel writes time stamps (for measurements only).
        spills: whether a kernel that spills registers will do (for measurements only).
        cache: folder of cached cubins; `cache_folder()` by default.

    Returns:
        The kernel.

    Raises:
        CompileError: NVRTC or cuda.core is missing, the source does not compile, or the result
            spills registers, does not hold the planned number of matrix instructions, or is
            launched with too few registers for the roles.
    """
    header = plan.render_header()
    sources = _read_sources()
    version = _nvrtc_version()
    digest = hashlib.sha256()
    for part in (header, *sources.values(), version, plan.arch, str(trace), TURNS, "1"):
        digest.update(part.encode() + b"\0")
    folder = cache or cache_folder()
    path = folder / f"{digest.hexdigest()[:32]}.cubin"
    log_path = path.with_suffix(".log")
    kept = _load(path, log_path)
    cached = kept is not None
    cubin, log = kept or _compile(header, sources, plan.arch, trace)
    used = _resources(cubin, log)
    if not cached:  # also what is refused below, so that the next process need not compile it again
        _store(path, cubin)
        _store(log_path, f"{_fingerprint(cubin)}\n{log}".encode())
    if not (trace or spills) and (used.local_accesses or used.spill_bytes):
        raise _Spilled(
            f"plan {plan.hash}: wanted a kernel without spills, found {used.spill_bytes} spilled "
            f"bytes and {used.local_accesses} local accesses; report this plan: {plan!r}"
        )
    wanted = plan.matrix_instructions * plan.sweeps_written
    if used.matrix_instructions != wanted:
        raise CompileError(
            f"plan {plan.hash}: wanted {wanted} matrix instructions, found "
            f"{used.matrix_instructions}; report this plan: {plan!r}"
        )
    if used.tensor_instructions != plan.tensor_instructions:
        raise CompileError(
            f"plan {plan.hash}: wanted {plan.tensor_instructions} products of tcgen05, found "
            f"{used.tensor_instructions}; report this plan: {plan!r}"
        )
    if used.registers < plan.launch_registers:  # setmaxnreg would wait for ever
        raise CompileError(
            f"plan {plan.hash}: wanted {plan.launch_registers} registers a thread at launch, found "
            f"{used.registers}; report this plan: {plan!r}"
        )
    return CompiledWalk(plan=plan, cubin=cubin, used=used, cached=cached)


def compile_fitting(plan: ResidencyPlan, *, trace: bool = False) -> CompiledWalk:
    """Compile a plan, or the nearest one with fewer registers that this compiler does not spill.

    Plans are tuned with one version of NVRTC; another may need some registers more. What is taken
    is logged, and is the `plan` of the result. Tokens are the same under any plan.

    Raises:
        CompileError: as `compile_walk`; also where nothing fits.
    """
    for _ in range(_MOST_ATTEMPTS):
        try:
            return compile_walk(plan, trace=trace)
        except _Spilled as error:
            try:
                fewer = with_fewer_registers(plan)
            except PlanError:
                if not plan.warpgroups:  # nothing left to take: the spill is the error
                    raise error from None
                fewer = with_lone_warps(plan)
            logger.info("wts: plan %s gives way to %s: %s", plan.hash, fewer.hash, error)
            plan = fewer
    return compile_walk(plan, trace=trace)


def _read_sources() -> dict[str, str]:
    folder = resources.files("wts") / "csrc"
    return {name: (folder / name).read_text() for name in _SOURCES}


def _nvrtc_version() -> str:
    try:
        from cuda.bindings import nvrtc

        error, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:
        raise CompileError(
            f"NVRTC: wanted cuda.bindings with a loadable NVRTC, found {error}; "
            "install the gpu extra; in a clone of the project: pip install '.[gpu]'"
        ) from error
    return f"{major}.{minor}"


def _compile(header: str, sources: dict[str, str], arch: str, trace: bool) -> tuple[bytes, str]:
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise CompileError(
            f"cuda.core: wanted version 1.0 or later, found {error}; "
            "install the gpu extra; in a clone of the project: pip install '.[gpu]'"
        ) from error
    log = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="wts-") as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_text(text)
        (Path(folder) / "plan_constants.h").write_text(header)
        options = ProgramOptions(
            arch=arch,
            std="c++17",
            include_path=[folder],
            ptxas_options=["-v"],
            define_macro=[
                ("WTS_TRACE", str(int(trace))),
                ("WTS_ARGS_BYTES", str(ctypes.sizeof(WalkArgs))),
                ("WTS_TURNS", TURNS),
            ],
        )
        try:
            program = Program(sources["walk.cu"], "c++", options)
            code = program.compile("cubin", logs=log).code
        except Exception as error:
            raise CompileError(f"the kernel for {arch} does not compile: {error}") from error
    return bytes(code), log.getvalue()


def _fingerprint(cubin: bytes) -> str:
    return f"sha256 {hashlib.sha256(cubin).hexdigest()}"


def _load(path: Path, log_path: Path) -> tuple[bytes, str] | None:
    """A cubin of the cache and its log; None where there is none, or only a damaged one."""
    try:
        cubin, log = path.read_bytes(), log_path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return (cubin, log) if log.startswith(_fingerprint(cubin)) else None


def _store(path: Path, data: bytes) -> None:
    """Write a file of the cache so that a reader sees it whole; a full disk is not an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
            whole = Path(folder) / path.name
            whole.write_bytes(data)
            os.replace(whole, path)
    except OSError:
        return


def _resources(cubin: bytes, log: str) -> Resources:
    counts = instruction_counts(cubin)
    # The entry function's report comes first in the log; functions it calls follow.
    registers = re.findall(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if not registers or not spills:
        raise CompileError(f"the assembler's report is missing from the compile log: {log!r}")
    return Resources(
        registers=max(map(int, registers)),
        spill_bytes=sum(int(store) + int(load) for store, load in spills),
        matrix_instructions=counts["IMMA"] + counts["HMMA"] + counts["IGMMA"],
        tensor_instructions=counts["UTCMMA"],
        local_accesses=counts["LDL"] + counts["STL"],
    )


def instruction_counts(cubin: bytes) -> Counter[str]:
    """Count what `_OPCODES` names in a cubin's code (an ELF file of 16-byte instructions)."""
    table = struct.unpack_from("<Q", cubin, 0x28)[0]
    entry, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry) for i in range(count)]
    counts: Counter[str] = Counter()
    for name, _, _, _, offset, size in sections:
        start = sections[names][4] + name
        if not cubin[start : cubin.index(b"\0", start)].startswith(b".text"):
            continue
        for at in range(offset, offset + size, 16):
            opcode = struct.unpack_from("<Q", cubin, at)[0] & 0xFFF
            if opcode in _OPCODES:
                counts[_OPCODES[opcode]] += 1
    return counts

"""From a plan to a specialised kernel: NVRTC through cuda.core, cubins cached on disk.

Nothing else in the package knows the compiler. No GPU is needed to compile.
"""

from __future__ import annotations

import hashlib
import io
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from wts.errors import CompileError, PlanError
from wts.kernels.cache import cache_folder, fingerprint, load_cubin, store_file
from wts.kernels.cubin import Resources, resources_of
from wts.kernels.resident.arrange import with_fewer_registers, with_single_warps
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.sources import ENTRY, read_sources

__all__ = ["KERNEL_NAME", "CompiledWalk", "compile_fitting", "compile_walk"]

KERNEL_NAME = "wts_walk"
logger = logging.getLogger("wts")
_MOST_ATTEMPTS = 9


class _Spilled(CompileError):
    """A kernel that needs more registers than its plan leaves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledWalk:
    """A kernel for one plan.

    Args:
        plan: the plan.
        cubin: machine code.
        used: its resources.
        cached: whether it came from the cache.
    """

    plan: ResidentPlan
    cubin: bytes
    used: Resources
    cached: bool


def compile_walk(
    plan: ResidentPlan, *, trace: bool = False, spills: bool = False, cache: Path | None = None
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
    sources = read_sources() | plan.rendered()
    version = _nvrtc_version()
    digest = hashlib.sha256()
    for part in (*sources.values(), version, plan.gpu.arch, str(trace), "2"):
        digest.update(part.encode() + b"\0")
    folder = cache or cache_folder()
    path = folder / f"{digest.hexdigest()[:32]}.cubin"
    log_path = path.with_suffix(".log")
    kept = load_cubin(path, log_path)
    cached = kept is not None
    cubin, log = kept or _compile(sources, plan.gpu.arch, trace)
    used = resources_of(cubin, log)
    if not cached:  # also what is refused below, so that the next process need not compile it again
        store_file(path, cubin)
        store_file(log_path, f"{fingerprint(cubin)}\n{log}".encode())
    if not (trace or spills) and (used.local_accesses or used.spill_bytes):
        raise _Spilled(
            f"plan {plan.hash}: wanted a kernel without spills, found {used.spill_bytes} spilled "
            f"bytes and {used.local_accesses} local accesses; report this plan: {plan!r}"
        )
    wanted = plan.product.matrix_instructions * plan.selection.sweeps_written
    if used.matrix_instructions != wanted:
        raise CompileError(
            f"plan {plan.hash}: wanted {wanted} matrix instructions, found "
            f"{used.matrix_instructions}; report this plan: {plan!r}"
        )
    if used.tensor_instructions != plan.product.tensor_instructions:
        raise CompileError(
            f"plan {plan.hash}: wanted {plan.product.tensor_instructions} products of tcgen05, "
            f"found {used.tensor_instructions}; report this plan: {plan!r}"
        )
    if used.registers < plan.roles.launch_registers:  # setmaxnreg would wait for ever
        raise CompileError(
            f"plan {plan.hash}: wanted {plan.roles.launch_registers} registers a thread at "
            f"launch, found {used.registers}; report this plan: {plan!r}"
        )
    return CompiledWalk(plan=plan, cubin=cubin, used=used, cached=cached)


def compile_fitting(plan: ResidentPlan, *, trace: bool = False) -> CompiledWalk:
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
                if not plan.product.warpgroups:  # nothing left to take: the spill is the error
                    raise error from None
                fewer = with_single_warps(plan)
            logger.info("wts: plan %s gives way to %s: %s", plan.hash, fewer.hash, error)
            plan = fewer
    return compile_walk(plan, trace=trace)


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


def _compile(sources: dict[str, str], arch: str, trace: bool) -> tuple[bytes, str]:
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
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        options = ProgramOptions(
            arch=arch,
            std="c++17",
            include_path=[folder],
            ptxas_options=["-v"],
            define_macro=[("WTS_TRACE", str(int(trace)))],
        )
        try:
            program = Program(sources[ENTRY], "c++", options)
            code = program.compile("cubin", logs=log).code
        except Exception as error:
            raise CompileError(f"the kernel for {arch} does not compile: {error}") from error
    return bytes(code), log.getvalue()

"""`wts doctor`: what this machine can run, and why not.

Each finding is one line. The compiler is tried for real, on a small kernel: that needs no GPU, and
finds a missing library as well as a version that does not fit.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from wts.errors import DeviceError, WalkError
from wts.hardware.gpu import GPUS, LOCAL, gpu_spec
from wts.progress import progress_printer

__all__ = ["Finding", "configure", "device_obstacle", "examine", "report", "run"]

_OLDEST_PYTHON = (3, 11)


def configure(parser: argparse.ArgumentParser) -> None:
    """`wts doctor` has no options."""
    del parser


def run(args: argparse.Namespace) -> int:
    """Print what this machine can run, and why not."""
    del args
    say = progress_printer()
    say("loading torch and trying the compiler")
    print(report(examine()))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: what.
        good: whether it is as a walk on the device needs it.
        detail: what was found and, where it is not good, what to do.
    """

    name: str
    good: bool
    detail: str


def device_obstacle() -> str | None:
    """Say why no GPU of this machine can run the walk, or None. The compiler is not asked."""
    import torch

    try:
        spec = gpu_spec(LOCAL)
    except DeviceError:
        return f"torch {torch.__version__} finds no NVIDIA GPU"
    if not spec.walks:
        major, minor = spec.compute_capability
        return (
            f"{spec.name} has compute capability {major}.{minor}; the walk needs Hopper (9.0) or "
            "Blackwell (10.0, 10.3)"
        )
    return None


def examine() -> list[Finding]:
    """Look at everything that a walk on the device needs, in the order it needs it."""
    findings = [_python(), _torch(), _gpu(), *_compiler(), _cache()]
    if all(finding.good for finding in findings):
        findings.append(_small_walk())
    return findings


def report(findings: list[Finding]) -> str:
    """Write the findings and, from them, which backends can be used."""
    lines = [
        f"  {finding.name:<14}{'ok' if finding.good else 'no':<5}{finding.detail}"
        for finding in findings
    ]
    missing = [finding.name for finding in findings if not finding.good]
    lines += [
        "",
        "  backends of Walker:",
        f"  {'reference':<14}yes  any CPU, or the GPU that torch uses",
        f"  {'emulator':<14}yes  any CPU; the device's tokens bit for bit",
        f"  {'device':<14}" + (f"no   see {', '.join(missing)}" if missing else "yes"),
    ]
    return "\n".join(lines)


def _python() -> Finding:
    return Finding(
        name="python",
        good=sys.version_info >= _OLDEST_PYTHON,
        detail=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    )


def _torch() -> Finding:
    import torch

    built = torch.version.cuda
    return Finding(
        name="torch",
        good=built is not None,
        detail=f"{torch.__version__}, "
        + (f"built for CUDA {built}" if built else "a build without CUDA: CPU backends only"),
    )


def _gpu() -> Finding:
    obstacle = device_obstacle()
    if obstacle is not None:
        return Finding(name="gpu", good=False, detail=obstacle)
    spec = gpu_spec(LOCAL)
    major, minor = spec.compute_capability
    return Finding(
        name="gpu",
        good=True,
        detail=f"{spec.name}, compute capability {major}.{minor}, {spec.max_blocks} co-resident "
        f"blocks, {spec.l2_bytes / 2**20:.0f} MiB of L2"
        + (f"; {spec.caution}" if spec.caution else ""),
    )


def _compiler() -> list[Finding]:
    versions = {
        name: _version(name) for name in ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc")
    }
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    importable = _importable()
    hint = "" if importable else "; in a clone of the project: pip install '.[gpu]'"
    packages = Finding(name="cuda python", good=importable, detail=found + hint)
    try:
        detail = _compile_small()
    except WalkError as error:
        return [packages, Finding(name="nvrtc", good=False, detail=str(error))]
    return [packages, Finding(name="nvrtc", good=True, detail=detail)]


def _importable() -> bool:
    try:
        import cuda.bindings.driver
        import cuda.core
    except ImportError:
        return False
    return cuda.core is not None and cuda.bindings.driver is not None


def _compile_small() -> str:
    from wts.heads.kinds import Shape
    from wts.kernels.compile import compile_walk
    from wts.kernels.planner import plan_residency

    spec = GPUS["h200"]
    if device_obstacle() is None:
        spec = gpu_spec(LOCAL)
    with tempfile.TemporaryDirectory(prefix="wts-") as folder:  # what is cached needs no compiler
        plan = plan_residency(Shape(vocab=4096, rank=64), spec)
        kernel = compile_walk(plan, cache=Path(folder))
    return f"a small walk compiles for {spec.arch}, {kernel.used.registers} registers, no spills"


def _small_walk() -> Finding:
    """Walk a small head on the GPU and on the emulator."""
    import torch

    from wts.heads.markov import MarkovHead
    from wts.kernels.planner import plan_residency
    from wts.walk.walker import Walker

    head = MarkovHead.random(vocab=4096, rank=64, seed=0)
    generator = torch.Generator().manual_seed(0)
    base_logits = torch.randn(1, 8, head.vocab, generator=generator).bfloat16()
    anchor = torch.zeros(1, dtype=torch.int64)
    try:
        plan = plan_residency(head, LOCAL, steps=8)
        walker = Walker(head, plan, backend="device")
        tokens = walker(base_logits.cuda(), anchor.cuda()).cpu()
        walker.check()
    except WalkError as error:
        return Finding(name="walk", good=False, detail=str(error))
    same = torch.equal(tokens, Walker(head, plan, backend="emulator")(base_logits, anchor))
    return Finding(
        name="walk",
        good=same,
        detail=f"{tokens.numel()} tokens of a small head "
        + ("equal the emulator's" if same else "differ from the emulator's: please report this"),
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cache() -> Finding:
    from wts.kernels.cache import cache_folder

    folder = cache_folder()
    sizes = [path.stat().st_size for path in folder.glob("*.cubin")] if folder.is_dir() else []
    writable = os.access(_nearest_existing(folder), os.W_OK)
    return Finding(
        name="cubin cache",
        good=True,
        detail=f"{folder}, {len(sizes)} kernels, {sum(sizes) / 2**20:.1f} MiB"
        + ("" if writable else ", not writable: each start compiles anew"),
    )


def _nearest_existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder

"""Runs the kernel's own source on the CPU: csrc with a stand-in for its one folder of assembly.

For tests of small plans where there is no GPU: staging, exchange, selection, streaming, sampling
and every index are the device's; only the instructions in csrc/ptx are imitated.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch

from wts.heads.base import Head
from wts.kernels.packed import pack_head
from wts.kernels.resident.args import ARGS, Turn
from wts.kernels.resident.plan import ResidentPlan
from wts.numerics.gumbel import Noise
from wts.numerics.torch_dtypes import DTYPE_OF

HERE = Path(__file__).parent
CSRC = Path(__file__).parents[2] / "src" / "wts" / "csrc"
FIRST_SEQUENCE = 2
BUILDS = "WTS_SIMULATOR_BUILDS"  # where a run's workers keep what they have built
GUARD = 64  # unregistered bytes around every tensor


class _Range(ctypes.Structure):
    _fields_ = [("first", ctypes.c_void_p), ("bytes", ctypes.c_int64)]


FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-w", "-U_FORTIFY_SOURCE")


def _compile(arguments: Sequence[str | Path], target: Path) -> Path:
    """Compile one file, whole once it is there."""
    begun = target.with_name(f"{target.name}.{os.getpid()}")
    subprocess.run(["g++", *FLAGS, *map(str, arguments), "-o", str(begun)], check=True)
    return begun.replace(target)


@contextmanager
def _alone(name: str) -> Iterator[Path]:
    """A folder that workers of one run share; nobody else builds what has this name meanwhile."""
    folder = Path(os.environ.get(BUILDS) or _own_builds())
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@cache
def _own_builds() -> str:
    """A folder for builds where nobody has given one; removed with the process."""
    folder = tempfile.mkdtemp(prefix="wts-simulator-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _machine() -> Path:
    """What all plans have in common, compiled once a run: a folder with header and object."""
    with _alone("machine") as folder:
        machine = folder / "machine"
        if not (machine / "machine.o").exists():
            machine.mkdir(exist_ok=True)
            shutil.copy(HERE / "machine.h", machine)
            _compile(["-x", "c++-header", HERE / "machine.h"], machine / "machine.h.gch")
            _compile(["-I", machine, "-c", HERE / "machine.cpp"], machine / "machine.o")
        return machine


Rendered: TypeAlias = tuple[tuple[str, str], ...]
"""Names and texts of a plan's rendered files."""


def _texts(folder: Path) -> dict[str, str]:
    """All files of a folder, by their path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


@cache
def _build(rendered: Rendered, change: tuple[str, str] | None) -> ctypes.CDLL:
    """Compile the kernel with what is rendered for a plan; kept for the run.

    A change is a text of one of its files, and what to put there: for tests of tests.
    """
    sources = _texts(CSRC)
    if change is not None:
        assert sum(text.count(change[0]) for text in sources.values()) == 1, change
        sources = {name: text.replace(*change) for name, text in sources.items()}
    sources |= {f"ptx/{name}": text for name, text in _texts(HERE / "ptx").items()}
    sources |= {"simulate.cpp": (HERE / "simulate.cpp").read_text(), **dict(rendered)}
    machine = _machine()
    name = hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()
    with _alone(name) as folder:
        library = folder / f"{name}.so"
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=folder) as place:
                for file, text in sources.items():
                    Path(place, file).parent.mkdir(parents=True, exist_ok=True)
                    Path(place, file).write_text(text)
                includes = ("-include", "machine.h", "-I", place, "-I", machine)
                parts = (Path(place, "simulate.cpp"), machine / "machine.o")
                _compile(["-shared", *includes, *parts], library)
        return ctypes.CDLL(str(library))


class Simulator:
    """A device Walker without a device: one workspace, walks one after the other.

    Args:
        head: the head.
        plan: a small plan for it.
        sequence: what the workspace's exchange counter starts at.
        change: a text of the kernel's source, and what stands there instead.
    """

    def __init__(
        self,
        head: Head,
        plan: ResidentPlan,
        *,
        sequence: int = FIRST_SEQUENCE,
        change: tuple[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self.packed = pack_head(head, plan, torch.device("cpu"))
        self.slots = torch.zeros(
            plan.exchange.workspace_words * plan.exchange.word_bytes, dtype=torch.uint8
        )
        self.status = torch.zeros(8, dtype=torch.int32)
        self.status[0] = sequence - (1 << 32) if sequence >= 1 << 31 else sequence
        # What earlier walks have left: the word of the last exchange of each parity.
        words = self.slots.view(torch.int64 if plan.selection.long_words else torch.int32).view(
            2, -1
        )
        for before in range(max(0, sequence - 2), sequence) if sequence != FIRST_SEQUENCE else ():
            words[before & 1] = (before >> 1) & (
                0xFFFF if plan.selection.long_words else 0x3 if plan.request.exact else 0xF
            )
        self.state_slots = torch.zeros(plan.recurrence.state_words, dtype=torch.int64)
        self.exact_slots = torch.zeros(plan.selection.workspace_words, dtype=torch.int64)
        self.kernel = _build(tuple(plan.rendered().items()), change)

    def _part(self, hidden: torch.Tensor | None) -> torch.Tensor | None:
        """What hidden states add to the steps; or room for it, where the kernel makes it."""
        if hidden is None or not self.plan.recurrence.hidden_inside:
            return self.packed.hidden_term(hidden)
        self.part = torch.zeros(*hidden.shape[:2], self.plan.recurrence.hidden_term)
        return self.part

    def __call__(
        self,
        base: torch.Tensor,
        anchor: torch.Tensor,
        *,
        hidden: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Noise | None = None,
        logits_out: torch.Tensor | None = None,
        seed: int = 0,
        absent: int = 0,
        timeout_us: int = 1_000_000,
        most_turns: int = 400_000,
        turn: Turn = Turn.ALWAYS,
    ) -> torch.Tensor:
        """Walk; raises RuntimeError on a bad access or a hang. Tokens are -1 if it stood aside."""
        batch, steps, _ = base.shape
        tokens = torch.full((batch, steps), -1, dtype=torch.int64)
        unquantised = self.packed.exact
        held = {
            "exact": None if unquantised is None else unquantised.source(),
            "exact_slots": self.exact_slots,
            "tiles": self.packed.tiles,
            "row_scale": self.packed.row_scale,
            "table": self.packed.table,
            "hidden_part": self._part(hidden),
            "hidden": hidden,
            **self.packed.steps.tensors,
            "state_slots": self.state_slots,
            "draft_to_target": self.packed.draft_to_target,
            "base": base,
            "anchor": anchor,
            "tokens": tokens,
            "temperatures": temperatures,
            "noise_offset": None if noise is None else noise.offset,
            "logits_out": logits_out,
            "slots": self.slots,
            "status": self.status,
        }
        given: dict[str, int | None] = dict.fromkeys((field.name for field in ARGS.fields), 0)
        given |= {
            "base_request_stride": base.stride(0),
            "base_step_stride": base.stride(1),
            "anchor_stride": anchor.stride(0),
            "hidden_request_stride": 0 if hidden is None else hidden.stride(0),
            "hidden_step_stride": 0 if hidden is None else hidden.stride(1),
            "noise_key": 0 if noise is None else noise.key,
            "logits_request_stride": 0 if logits_out is None else logits_out.stride(0),
            "logits_step_stride": 0 if logits_out is None else logits_out.stride(1),
            "num_requests": batch,
            "num_steps": steps,
            "timeout_us": timeout_us,
            "turn": turn,
        }
        # What the kernel finds by addresses in memory.
        found = {} if unquantised is None else {"": unquantised.projection, " ": unquantised.table}
        ranges = []
        for name, tensor in (held | found).items():
            if tensor is not None:
                if name.strip():
                    given[name] = tensor.data_ptr()
                storage = tensor.untyped_storage()
                first, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
                # Copies are whole 16-byte pieces: one may begin before its first element.
                first -= first % 16 if name == "base" else 0
                ranges.append(_Range(first, end - first))
        message = ctypes.create_string_buffer(256)
        result = self.kernel.simulate(
            ARGS.pack(**given),
            (_Range * len(ranges))(*ranges),
            len(ranges),
            ctypes.c_uint(seed),
            absent,
            ctypes.c_longlong(most_turns),
            message,
        )
        if result != 0:
            raise RuntimeError(message.value.decode())
        return tokens


def step_dtype(plan: ResidentPlan) -> torch.dtype:
    """Dtype of a plan's step logits."""
    return DTYPE_OF[plan.request.step_type]

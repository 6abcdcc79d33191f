"""Walks of small plans under compute-sanitizer: `make gpu-sanitize`, or `sanitize.py TOOL ...`.

A tool that sees nothing says little, so each has to find a fault that was planted for it first.
Only kernels of the walk's name are looked at; what they read is written by copies from the host,
which initcheck follows, and each tensor has an allocation of its own, whose ends memcheck knows.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import torch

import wts.kernels.compile
import wts.kernels.launch
from bounded import Outcome, run_bounded
from strategies import (
    DTYPES,
    KINDS,
    RecurrentHead,
    anchors,
    base_logits,
    hidden_states,
    recurrent_head,
)
from walks import gpu_of
from wts.dtypes import NumberType
from wts.hardware.gpu import LOCAL, GpuSpec, gpu_spec
from wts.heads.base import Head
from wts.heads.markov import MarkovHead
from wts.kernels.compile import KERNEL_NAME
from wts.kernels.packed import pack_head
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan
from wts.numerics.gumbel import Noise
from wts.walk.validate import LONGEST_TIMEOUT_MS
from wts.walk.walker import Walker

FAULT_STATUS = 86  # of compute-sanitizer, when it has found something
EACH_LANE_ARRIVES = "WTS_EACH_LANE_ARRIVES"
DEFAULT_FOLDER = "/usr/local/cuda/bin"  # where the toolkit's installer puts it


# ---- what is walked ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One small plan, and walks of it.

    Args:
        name: for messages.
        vocab: of the head; with `draft_vocab`, the target vocabulary.
        rank: of the head.
        blocks: most blocks of the plan.
        batch: requests, as planned.
        steps: of a walk.
        sampled: whether rows are sampled, every second one.
        draft_vocab: of a mapped head.
        base_type: of the base logits.
        streamed: whether a part of the projection has to be streamed.
        odd: base logits start at an odd element, and so does each row.
        kind: of the head, where it reads hidden states; None for a Markov head.
    """

    name: str
    vocab: int
    rank: int = 64
    blocks: int = 3
    batch: int = 1
    steps: int = 3
    sampled: bool = False
    draft_vocab: int | None = None
    base_type: NumberType = "bf16"
    streamed: bool = False
    odd: bool = False
    kind: type[RecurrentHead] | None = None

    def head(self) -> Head:
        if self.kind is not None:
            return recurrent_head(self.kind, vocab=self.vocab, rank=self.rank, seed=self.vocab)
        return MarkovHead.random(
            vocab=self.vocab, rank=self.rank, seed=self.vocab, draft_vocab=self.draft_vocab
        )

    def plan(self, head: Head, gpu: GpuSpec) -> ResidentPlan:
        plan = plan_residency(
            head,
            gpu,
            batch=self.batch,
            steps=self.steps,
            sampled=self.sampled,
            base_type=self.base_type,
        )
        if (plan.placement.streamed_fragments > 0) != self.streamed or plan.shard.num_blocks < 2:
            sys.exit(f"{self.name}: found another plan than this case is for:\n{plan}")
        return plan

    def base(self, head: Head) -> torch.Tensor:
        """Base logits; a walk reads whole pieces of 16 bytes, as an allocation is made of."""
        base = base_logits(
            head, batch=self.batch, steps=self.steps, seed=self.batch, base_type=self.base_type
        )
        if not self.odd:
            return base
        stride = (head.vocab + 2) | 1
        piece = 16 // base.element_size()
        needed = 1 + self.batch * self.steps * stride
        storage = torch.full((-(-needed // piece) * piece,), torch.nan, dtype=base.dtype)
        view = storage.as_strided(base.shape, (self.steps * stride, stride, 1), 1)
        view.copy_(base)
        return view

    def walk(self) -> None:
        head = self.head()
        plan = self.plan(head, gpu_of("device", self.blocks))
        # Under a tool a walk takes a hundred times as long; the limit of the program is enough.
        walker = Walker(head, plan, backend="device", timeout_ms=LONGEST_TIMEOUT_MS)
        write_from_the_host(walker)
        emulator = walker.twin()
        base, anchor = self.base(head), anchors(head, self.batch, 1)
        storage = torch.empty(0, dtype=base.dtype).set_(base.untyped_storage()).cuda()
        there = storage.as_strided(base.size(), base.stride(), base.storage_offset())
        for number in range(2):  # the second walk finds the words of the first
            for requests in sorted({1, self.batch}):
                here = self.sampling(requests, number, base.shape[2], "cpu")
                on_gpu = self.sampling(requests, number, base.shape[2], "cuda")
                if self.kind is not None:
                    hidden = hidden_states(
                        head, batch=requests, steps=self.steps, seed=number
                    ).cuda()
                    on_gpu["hidden"] = hidden
                tokens = walker(there[:requests], anchor[:requests].cuda(), **on_gpu).cpu()
                term = walker.hidden_term()
                wanted = emulator(base[:requests], anchor[:requests], hidden_term=term, **here)
                if not torch.equal(tokens, wanted):
                    sys.exit(f"{self.name}: found {tokens.tolist()}, wanted {wanted.tolist()}")
        walker.check()
        print(f"{self.name}: right", flush=True)

    def sampling(self, requests: int, offset: int, vocab: int, device: str) -> dict[str, Any]:
        """What a sampled walk takes besides; copied from the host, like all that is read."""
        if not self.sampled:
            return {}
        temperatures = torch.tensor([0.9, 0.0] * requests)[:requests]
        step_type = DTYPES[self.base_type]  # that of the table, or fp32
        logits = torch.zeros(requests, self.steps, vocab, dtype=step_type)
        return {
            "temperatures": temperatures.to(device),
            "noise": Noise(key=5, offset=torch.tensor([offset]).to(device)),
            "logits_out": logits.to(device),
        }


CASES = (
    *(Case(name=f"greedy, batch {batch}", vocab=1001, batch=batch) for batch in (1, 2, 4, 9)),
    *(
        Case(name=f"sampled, batch {batch}", vocab=1001, batch=batch, sampled=True)
        for batch in (1, 2, 4, 9)
    ),
    Case(name="streamed", vocab=5003, rank=256, blocks=2, batch=2, streamed=True),
    Case(
        name="streamed and sampled",
        vocab=5003,
        rank=256,
        blocks=2,
        batch=4,
        sampled=True,
        streamed=True,
    ),
    *(
        Case(
            name=f"streamed by warpgroups, {'sampled' if sampled else 'greedy'}",
            vocab=5003,
            rank=256,
            blocks=2,
            batch=8,
            sampled=sampled,
            streamed=True,
        )
        for sampled in (False, True)
    ),
    *(
        Case(name=f"{kind.__name__}, {how}", vocab=1001, batch=batch, kind=kind, sampled=sampled)
        for kind in KINDS
        for how, batch, sampled in (("one team", 2, False), ("warpgroups", 5, True))
    ),
    Case(name="mapped", vocab=1500, draft_vocab=1003, blocks=4, batch=4),
    Case(name="fp32 base logits", vocab=1003, batch=2, base_type="fp32"),
    Case(name="whole lines", vocab=1024, blocks=4, batch=9, steps=5),
    Case(name="odd rows", vocab=1003, batch=4, odd=True),
    Case(name="odd rows in whole shards", vocab=1024, blocks=4, batch=2, odd=True),
)


def write_from_the_host(walker: Walker) -> None:
    """Write what a walk reads of its Walker by copies; torch's kernels are not looked at."""
    (kernel,) = walker.kernels
    copy_parts(pack_head(walker.head, walker.plan, torch.device("cpu")), kernel.packed)
    used = kernel.workspace
    for memory in (used.slots, used.status, used.state_slots, used.hidden_term):
        memory.copy_(memory.cpu())
    torch.cuda.synchronize()


def copy_parts(new: Any, old: Any) -> None:
    """Copy tensors, and dataclasses of them, over others of the same shapes."""
    if isinstance(new, torch.Tensor):
        old.copy_(new)
    elif is_dataclass(new):
        for field in fields(new):
            copy_parts(getattr(new, field.name), getattr(old, field.name))


# ---- faults that are planted -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A fault that a tool has to find, in a kernel of one block of 64 threads.

    Args:
        body: of the kernel, which has `in` (64 ints that nobody wrote) and `out` (64 ints).
        words: of the tool's report of it.
    """

    body: str
    words: str


PLANTED = {
    "memcheck": Planted(body="out[64 + threadIdx.x] = 1;", words="Invalid __global__ write"),
    "racecheck": Planted(
        body="""
          __shared__ int shared[64];
          shared[threadIdx.x] = threadIdx.x;
          out[threadIdx.x] = shared[63 - threadIdx.x];""",
        words="Race reported between",
    ),
    "synccheck": Planted(
        body="""
          __shared__ unsigned long long barrier;
          if (threadIdx.x == 0) {
            const unsigned at = __cvta_generic_to_shared(&barrier);
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at));
            for (int i = 0; i < 3; ++i)  // nobody waits for the phases
              asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at));
          }""",
        words="Missing wait",
    ),
    "initcheck": Planted(body="out[threadIdx.x] = in[threadIdx.x];", words="Uninitialized"),
}


def launch_planted(tool: str) -> None:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device()
    device.set_current()
    name = f"{KERNEL_NAME}_planted"
    source = (
        f'extern "C" __global__ void {name}(const int* in, int* out) {{ {PLANTED[tool].body} }}'
    )
    options = ProgramOptions(arch=gpu_spec(LOCAL).arch)
    kernel = Program(source, "c++", options).compile("cubin").get_kernel(name)
    data, out = (torch.empty(64, dtype=torch.int32, device="cuda") for _ in range(2))
    stream = device.create_stream()
    launch(stream, LaunchConfig(grid=1, block=64), kernel, data.data_ptr(), out.data_ptr())
    stream.sync()


# ---- the tools ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the table says of one tool."""

    tool: str
    planted: str
    walks: str
    good: bool


def run_child(task: str, seconds: float, prefix: list[str]) -> Outcome:
    """Run one task of this file, perhaps under a tool."""
    variables = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [*prefix, sys.executable, __file__, "--task", task]
    return run_bounded(command, seconds=seconds, environment=variables)


def under_tool(sanitizer: str, tool: str) -> list[str]:
    """The command line before the program's own."""
    command = [sanitizer, "--tool", tool, "--kernel-name", f"kernel_substring={KERNEL_NAME}"]
    command += ["--error-exitcode", str(FAULT_STATUS), "--show-backtrace", "device"]
    command += ["--print-limit", "8"]
    command += ["--launch-timeout", "0"]  # torch takes long to load, and the program has a limit
    # Calls that torch makes and handles itself, and copies of what its own kernels wrote.
    if tool == "memcheck":
        command += ["--report-api-errors", "no"]
    if tool == "initcheck":
        command += ["--check-api-memory-access", "no"]
    return command


def run_tool(sanitizer: str, tool: str, seconds: float) -> Row:
    """Let a tool find its planted fault, then look at the walks."""
    prefix = under_tool(sanitizer, tool)
    planted = run_child(f"planted-{tool}", seconds, prefix)
    seen = planted.status == FAULT_STATUS and PLANTED[tool].words in planted.output
    if not seen:
        print(f"\n{tool}, of the planted fault: {planted}\n", flush=True)
    walks = run_child("walks-each-lane" if tool == "racecheck" else "walks", seconds, prefix)
    clean = walks.status == 0 and all_right() in walks.output
    if not clean:
        print(f"\n{tool}, of the walks: {walks}\n", flush=True)
    verdict = {0: "clean", FAULT_STATUS: "FAULTS", None: "OUT OF TIME"}.get(walks.status, "FAILED")
    return Row(
        tool=tool,
        planted="seen" if seen else "NOT SEEN",
        walks=verdict if clean or walks.status != 0 else "NOT WALKED",
        good=seen and clean,
    )


def all_right() -> str:
    return f"{len(CASES)} plans were walked right"


def walk_each_lane_arriving() -> None:
    """The same walks of kernels in which every lane arrives for itself at a barrier.

    racecheck knows what an arrival orders, but not that __syncwarp orders what other lanes wrote
    before it.
    """
    read = wts.kernels.compile.read_sources

    def patched() -> dict[str, str]:
        sources = read()
        return sources | {"rounds.cuh": f"#define {EACH_LANE_ARRIVES} 1\n{sources['rounds.cuh']}"}

    assert EACH_LANE_ARRIVES in read()["rounds.cuh"]
    wts.kernels.compile.read_sources = patched
    walk_all()


def multiply_on_the_host(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """launch.write_hidden_term: a library's kernel has no place here, and racecheck breaks some."""
    products = hidden.cpu().float() @ weight.cpu().float().T
    out.copy_(products if bias is None else products + bias.cpu())


def walk_all() -> None:
    wts.kernels.launch.write_hidden_term = multiply_on_the_host
    for case in CASES:
        case.walk()
    print(all_right())


def find_sanitizer() -> str | None:
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=DEFAULT_FOLDER
    )


def main(arguments: list[str]) -> int:
    """Give 0 where every tool saw its fault and no other, 1 where not, 2 without the tools."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tool", nargs="*", help=f"of {', '.join(PLANTED)}; all by default")
    parser.add_argument("--seconds", type=float, default=300, help="limit of each of its two runs")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    tasks: dict[str, Callable[[], None]] = {
        "walks": walk_all,
        "walks-each-lane": walk_each_lane_arriving,
    }
    tasks |= {f"planted-{tool}": partial(launch_planted, tool) for tool in PLANTED}
    if options.task is not None:
        torch.set_num_threads(min(4, torch.get_num_threads()))
        tasks[options.task]()
        return 0
    unknown = sorted(set(options.tool) - set(PLANTED))
    if unknown:
        parser.error(f"tool: wanted some of {', '.join(PLANTED)}, found {', '.join(unknown)}")
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print(
            f"compute-sanitizer: wanted on PATH or in {DEFAULT_FOLDER}, found in neither; "
            "install the CUDA toolkit, or put its folder on PATH",
            file=sys.stderr,
        )
        return 2
    print("walking without a tool first", flush=True)
    plain = run_child("walks", options.seconds, [])  # fills the cubin cache for the rest
    if plain.status != 0:
        print(f"the walks fail without any tool: {plain}", file=sys.stderr)
        return 1
    rows = []
    for tool in options.tool or PLANTED:
        print(f"walking under {tool}", flush=True)
        rows.append(run_tool(sanitizer, tool, options.seconds))
    print(f"\n{'tool':<12}{'planted fault':<16}walks of {len(CASES)} plans")
    for row in rows:
        print(f"{row.tool:<12}{row.planted:<16}{row.walks}")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

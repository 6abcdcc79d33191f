"""What the plans of `plans.json` were when they were recorded, and whether they still are.

    PYTHONPATH=src:tests python tests/goldens/goldens.py check [PLAN ...] [--only PART ...]
    PYTHONPATH=src:tests python tests/goldens/goldens.py record [PLAN ...] [--only PART ...]

A change that is to move code and not what it does leaves every part of every plan as it is:

constants: of the header that the kernel is compiled with, by name.
offsets: of the members of a block's shared memory, and of the kernel's arguments.
packed: the bytes of a seeded head, tensor by tensor (of small heads).
text: the machine code that the recorded version of NVRTC makes, its registers and instructions.
tokens: of a seeded walk on the emulator (of small heads).
simulated: of the same walk of the kernel executed on the CPU (of a few).

`renames.json` has new names of constants, members, arguments and tensors: old to new, or to null
where it is gone; under "new" those that there were not. `explained.json` has plans (or patterns of
their names) whose machine code may differ, and why: it may then have 1 % more or less instructions,
but no more registers, and no spills.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import torch

from machine_code import code_of, digest

HERE = Path(__file__).parent
RECORDED, RENAMES, EXPLAINED = (
    HERE / f"{name}.json" for name in ("recorded", "renames", "explained")
)
PARTS = ("constants", "offsets", "packed", "text", "tokens", "simulated")
SMALL = 32_000  # rows of the largest head whose weights are drawn and packed
COMPILER = "nvidia-cuda-nvrtc"
STEPS = 3  # of a seeded walk
MOST_LOGITS = 64_000  # of a step of one: fewer requests walk a large head
TOLERANCE = 0.01  # of the instructions, where a change of them is explained


@dataclass(frozen=True, kw_only=True)
class Golden:
    """One plan: a head's sizes, and what is asked of the planner.

    Args:
        target: rows of the target's vocabulary, where draft ids are mapped to them.
        hidden: elements of hidden states.
        blocks: of the GPU, where not all.
        shared: bytes of shared memory of a block, where fewer.
        streaming: whether all weights are streamed.
        split: tiles of a warp in tensor memory and in tcgen05's shared memory, where not the
            planner's.
        traced: whether the kernel writes time stamps.
        simulated: whether the kernel is also executed on the CPU.
    """

    vocab: int
    rank: int = 256
    kind: str = "markov"
    state: int = 0
    hidden: int = 0
    target: int | None = None
    table_type: str = "bf16"
    gpu: str = "h200"
    blocks: int | None = None
    shared: int | None = None
    batch: int = 1
    steps: int = 16
    selection: str = "greedy"
    weights: str = "int8"
    base_type: str = "bf16"
    tensor_memory: bool | None = None
    streaming: bool = False
    split: Sequence[int] | None = None
    traced: bool = False
    simulated: bool = False

    @property
    def small(self) -> bool:
        """Whether its weights are drawn and packed, and it walks."""
        return self.vocab <= SMALL


def _plans() -> dict[str, Golden]:
    asked: dict[str, dict[str, Any]] = json.loads((HERE / "plans.json").read_text())
    return {name: Golden(**fields) for name, fields in asked.items()}


PLANS = _plans()

# ---- what is asked of the package: whoever moves or renames something there follows here ---------


def plan_of(golden: Golden) -> Any:
    """The plan."""
    from wts.hardware.gpu import gpu_spec
    from wts.heads.kinds import Shape
    from wts.kernels.planner import plan_residency
    from wts.kernels.resident.variants import streaming_plan, with_tcgen05_tiles

    gpu = gpu_spec(golden.gpu)
    gpu = gpu.with_blocks(golden.blocks) if golden.blocks else gpu
    gpu = replace(gpu, shared_bytes_per_block=golden.shared) if golden.shared else gpu
    names = ("vocab", "rank", "kind", "state", "hidden", "table_type")
    shape = Shape(
        **{name: getattr(golden, name) for name in names},
        table_rows=golden.target,
        mapped=golden.target is not None,
    )
    plan = plan_residency(
        shape,
        gpu,
        batch=golden.batch,
        steps=golden.steps,
        sampled=golden.selection == "sampled",
        exact=golden.selection == "exact",
        base_type=golden.base_type,
        weights=golden.weights,
        tensor_memory=golden.tensor_memory,
    )
    if golden.streaming:
        plan = streaming_plan(plan)
    return with_tcgen05_tiles(plan, *golden.split) if golden.split else plan


def rendered(plan: Any) -> str:
    """The header that the kernel of a plan is compiled with."""
    text: str = plan.render_header()
    return text


def members_of(plan: Any) -> dict[str, int]:
    """Offsets in a block's shared memory; the last is where it ends."""
    from wts.kernels.resident.shared import shared_layout

    return dict(shared_layout(plan))


def arguments_of(plan: Any) -> dict[str, int]:
    """Offsets in the kernel's arguments; the last is where they end."""
    from wts.kernels.resident.args import ARGS

    return dict(ARGS.offsets) | {"end": ARGS.size}


def compiled(plan: Any, *, traced: bool) -> tuple[Any, bytes, int, int]:
    """The plan that a kernel was made of, its machine code, registers and spilled bytes."""
    from wts.kernels.compile import compile_fitting

    with own_cache():
        found = compile_fitting(plan, trace=traced)
    return found.plan, found.cubin, found.used.registers, found.used.spill_bytes


def random_head(golden: Golden) -> Any:
    """A head of these sizes, of any weights."""
    from wts import DominoHead, GatedHead, MarkovHead, RnnHead

    kinds: dict[str, Any] = {
        "markov": MarkovHead,
        "gated": GatedHead,
        "rnn": RnnHead,
        "domino": DominoHead,
    }
    sizes: dict[str, Any] = {"vocab": golden.vocab, "rank": golden.rank, "seed": 1}
    if golden.target is not None:
        sizes |= {"vocab": golden.target, "draft_vocab": golden.vocab}
    if golden.kind == "markov":
        sizes["dtype"] = DTYPES[golden.table_type]
    else:
        sizes["hidden_size"] = golden.hidden
    if golden.kind == "domino":
        sizes["state_size"] = golden.state
    return kinds[golden.kind].random(**sizes)


def packed_of(head: Any, plan: Any) -> dict[str, torch.Tensor]:
    """Every tensor that a head is packed to; of an exact walk the numbers, not the addresses."""
    from wts.kernels.packed import pack_head

    packed = pack_head(head, plan, torch.device("cpu"))
    names = ("tiles", "row_scale", "table", "draft_to_target")
    found = {name: getattr(packed, name) for name in names}
    found |= packed.steps.tensors
    if packed.exact is not None:
        found["exact"] = packed.exact.source()[2:]
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def emulator_of(head: Any, plan: Any) -> Any:
    """What is called with base logits, anchors and keywords, and gives tokens."""
    from wts import Walker

    return Walker(head, plan, backend="emulator")


def simulator_of(head: Any, plan: Any) -> Any:
    """The same of the kernel executed on the CPU."""
    from simulator import Simulator

    return Simulator(head, plan)


def noise_of(key: int, offset: int) -> Any:
    """Where noise of a sampled walk comes from."""
    from wts import Noise

    return Noise(key=key, offset=torch.tensor([offset]))


# ---- what is recorded of a plan ------------------------------------------------------------------

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Found = dict[str, Any]


def constants_of(plan: Any) -> Found:
    """Names and values of a rendered header; of a long list its length and digest."""
    text = rendered(plan)
    pairs = re.findall(r"^#define (\w+) (.*)$", text, re.MULTILINE)
    pairs += re.findall(r"^constexpr [\w ]+ (\w+) = (.*);$", text, re.MULTILINE)
    found: Found = {}
    for name, value in pairs:
        if "," in value:
            found[name] = f"{value.count(',') + 1} numbers {digest(value.encode())}"
        else:
            found[name] = int(value) if re.fullmatch(r"-?\d+", value) else value
    return found


def offsets_of(plan: Any) -> Found:
    """Offsets of all members, those of arguments with a prefix."""
    arguments = {f"args.{name}": at for name, at in arguments_of(plan).items()}
    return {f"shared.{name}": at for name, at in members_of(plan).items()} | arguments


def digest_of(tensor: torch.Tensor) -> str:
    """Of a tensor's type, shape and bytes."""
    data = tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    return f"{kind} {digest(data)}"


def whole_numbers(size: Sequence[int], most: int, seed: int) -> torch.Tensor:
    """Integers from -most to most: the same on every machine, as normal deviates are not."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, tuple(size), generator=generator)


@cache
def head_of(name: str) -> Any:
    """A head whose weights have so few bits that sums of them are exact in any order."""
    head = random_head(PLANS[name])
    assert is_dataclass(head)
    assert not isinstance(head, type)
    drawn = {}
    for seed, one in enumerate(fields(head)):
        weight = getattr(head, one.name)
        if isinstance(weight, torch.Tensor) and weight.is_floating_point():
            numbers = whole_numbers(weight.shape, 127, seed)
            drawn[one.name] = (numbers / 256).to(weight.dtype)
    return replace(head, **drawn)


def inputs_of(golden: Golden) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Base logits, anchors (the last one outside the table) and what else a walk is called with."""
    batch = max(1, min(golden.batch, MOST_LOGITS // golden.vocab))
    base = whole_numbers((batch, STEPS, golden.vocab), 1 << 20, 11) / (1 << 17)
    rows = golden.vocab if golden.target is None else golden.target
    anchor = whole_numbers((batch,), rows, 12).abs() % rows
    anchor[-1] = -1
    others: dict[str, Any] = {}
    if golden.hidden:
        hidden = whole_numbers((batch, STEPS, golden.hidden), 15, 13) / 8
        others["hidden"] = hidden.bfloat16()
    if golden.selection == "sampled":
        warm = torch.tensor([1.0, 0.0, 0.75, 1e-5, 2.0, 0.5, 1.25])
        others["temperatures"] = warm.repeat(-(-batch // len(warm)))[:batch].clone()
    return base.to(DTYPES[golden.base_type]), anchor, others


def tokens_of(golden: Golden, walk: Any) -> Found:
    """Tokens of a seeded walk, and of a sampled one the step logits that are exported."""
    base, anchor, others = inputs_of(golden)
    found: Found = {}
    if golden.selection == "sampled":
        exported = DTYPES["fp32" if golden.base_type != golden.table_type else golden.base_type]
        others["noise"] = noise_of(0x1234_5678_9ABC_DEF0, (1 << 32) - 1)
        others["logits_out"] = torch.zeros(base.shape, dtype=exported)
    tokens = walk(base, anchor, **others)
    found["first request"] = tokens[0].tolist()
    found["all"] = digest_of(tokens)
    if golden.selection == "sampled":
        found["logits"] = digest_of(others["logits_out"])
    return found


def text_of(plan: Any, *, traced: bool) -> Found:
    """What the compiler makes of a plan, and which constants it gave way in."""
    fitting, cubin, registers, spills = compiled(plan, traced=traced)
    found = code_of(cubin) | {"registers": registers, "spilled bytes": spills}
    before, after = constants_of(plan), constants_of(fitting)
    gave_way = {name: value for name, value in after.items() if before.get(name) != value}
    return found | {f"gave way: {name}": value for name, value in sorted(gave_way.items())}


@contextmanager
def own_cache() -> Iterator[None]:
    """An empty cache of kernels, so that all are compiled."""
    name, before = "XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="wts-goldens-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before


@cache
def compiler_version() -> str:
    """Version of the installed compiler's package, or why there is none that can be asked."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
        version = importlib.metadata.version(COMPILER)
    except Exception as error:
        return f"none ({error})"
    loaded = f"{major}.{minor}"
    return version if version.startswith(f"{loaded}.") else f"{loaded}, not the installed {version}"


def parts_of(golden: Golden) -> tuple[str, ...]:
    """Which parts there are of a plan."""
    without = set() if golden.small else {"packed", "tokens"}
    without |= set() if golden.simulated else {"simulated"}
    return tuple(part for part in PARTS if part not in without)


def found_of(name: str, part: str) -> Found:
    """What a part of a plan is now."""
    golden = PLANS[name]
    plan = plan_of(golden)
    if part == "constants":
        return constants_of(plan)
    if part == "offsets":
        return offsets_of(plan)
    if part == "text":
        return text_of(plan, traced=golden.traced)
    head = head_of(name)
    if part == "packed":
        return {tensor: digest_of(value) for tensor, value in packed_of(head, plan).items()}
    return tokens_of(golden, (emulator_of if part == "tokens" else simulator_of)(head, plan))


# ---- comparing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Renames:
    """Names that have changed since a part was recorded.

    Args:
        now: old names, and what they are called now; None: gone.
        new: names that there were not.
    """

    now: Mapping[str, str | None]
    new: frozenset[str]

    @classmethod
    def read(cls, part: str, path: Path = RENAMES) -> Renames:
        """Those of a part; "text" has the constants that a plan gave way in."""
        data = json.loads(path.read_text()).get("constants" if part == "text" else part, {})
        new = frozenset(data.get("new", ()))
        names: dict[str, str | None] = data.get("names", {})
        if part == "text":
            names = {f"gave way: {old}": now and f"gave way: {now}" for old, now in names.items()}
        return cls(names, new)


def differences(old: Found, now: Found, renames: Renames) -> list[str]:
    """What differs, in words; nothing if all is as it was but for names."""
    lines, expected = [], set(renames.new)
    for name, was in old.items():
        called = renames.now.get(name, name)
        if called is None:
            if name in now:
                lines.append(f"{name}: is said to be gone, and is there")
            continue
        expected.add(called)
        label = name if called == name else f"{name} (now {called})"
        if called not in now:
            lines.append(f"{label}: was {was}, is gone")
        elif now[called] != was:
            lines.append(f"{label}: was {was}, is {now[called]}")
    lines += [f"{name}: is new, {now[name]}" for name in now if name not in expected]
    return lines


def explanation(plan: str, path: Path = EXPLAINED) -> str | None:
    """Why a plan's machine code may differ."""
    reasons: dict[str, str] = json.loads(path.read_text())
    return next((why for pattern, why in reasons.items() if fnmatch(plan, pattern)), None)


def too_much(old: Found, now: Found) -> list[str]:
    """What even explained machine code may not do."""
    lines = []
    if now["registers"] > old["registers"]:
        lines.append(f"registers: were {old['registers']}, are {now['registers']}: more")
    if now["spilled bytes"] or now.get("LDL", 0) or now.get("STL", 0):
        lines.append("it spills")
    was, is_now = old["instructions"], now["instructions"]
    if abs(is_now - was) > TOLERANCE * was:
        lines.append(f"instructions: were {was}, are {is_now}: {(is_now - was) / was:+.2%}")
    gave_way = {name: value for name, value in old.items() if name.startswith("gave way")}
    if gave_way != {name: value for name, value in now.items() if name.startswith("gave way")}:
        lines.append("it gives way in other constants")
    return lines


def compared(plan: str, part: str, old: Found, now: Found) -> tuple[list[str], list[str]]:
    """Differences of a part that are faults, and those that are explained."""
    lines = differences(old, now, Renames.read(part))
    why = explanation(plan) if part == "text" and lines else None
    if why is None:
        return lines, []
    return too_much(old, now), [*lines, f"explained: {why}"]


def read_recorded() -> dict[str, Any]:
    """All that is recorded."""
    data: dict[str, Any] = json.loads(RECORDED.read_text())
    return data


def write_recorded(data: Mapping[str, Any]) -> None:
    """A line for each part of a plan, so that a difference names it."""
    plans = []
    for plan, parts in data["plans"].items():
        lines = [f"   {json.dumps(part)}: {json.dumps(found)}" for part, found in parts.items()]
        plans.append(f"  {json.dumps(plan)}: {{\n" + ",\n".join(lines) + "\n  }")
    head = f'{{\n "{COMPILER}": {json.dumps(data[COMPILER])},\n "plans": {{\n'
    RECORDED.write_text(head + ",\n".join(plans) + "\n }\n}\n")


def missing(part: str) -> str:
    """Why a part cannot be compared here, or ""."""
    if part == "simulated":
        return "" if shutil.which("g++") else "needs g++"
    if part == "text":
        wanted, found = read_recorded()[COMPILER], compiler_version()
        return "" if wanted == found else f"recorded with {COMPILER} {wanted}, found {found}"
    return ""


# ---- commands ------------------------------------------------------------------------------------


def found_in(name: str, parts: Iterable[str]) -> dict[str, Found]:
    """Parts of a plan; for processes of their own."""
    torch.set_num_threads(1)
    found = {part: found_of(name, part) for part in parts}
    head_of.cache_clear()
    return found


def each_plan(
    names: Sequence[str], parts: Sequence[str], jobs: int
) -> Iterator[tuple[str, dict[str, Found]]]:
    """Plans and the parts that are asked for and that they have."""
    asked = [[part for part in parts_of(PLANS[name]) if part in parts] for name in names]
    if jobs == 1:
        yield from zip(names, map(found_in, names, asked), strict=True)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(names, pool.map(found_in, names, asked), strict=True)


def record(names: Sequence[str], parts: Sequence[str], jobs: int) -> int:
    """Record what plans are now."""
    version = compiler_version()
    data = read_recorded() if RECORDED.exists() else {COMPILER: version, "plans": {}}
    if "text" in parts and version != data[COMPILER]:
        if set(names) != set(PLANS):
            print(f"recorded with {COMPILER} {data[COMPILER]}, found {version}: record all plans")
            return 1
        data[COMPILER] = version
    for name, found in each_plan(names, parts, jobs):
        before = data["plans"].get(name, {})
        whole = before | found
        data["plans"][name] = {part: whole[part] for part in parts_of(PLANS[name]) if part in whole}
        print(f"{name}: {', '.join(found)}", flush=True)
    data["plans"] = {name: data["plans"][name] for name in PLANS if name in data["plans"]}
    write_recorded(data)
    return 0


def check(names: Sequence[str], parts: Sequence[str], jobs: int, text: str) -> int:
    """Compare plans with what was recorded."""
    away = {part: missing(part) for part in parts if missing(part)}
    if text == "off":
        away["text"] = "--text off"
    for part, why in away.items():
        print(f"{part} is not compared: {why}")
    parts = [part for part in parts if part not in away]
    recorded, failed = read_recorded()["plans"], []
    for name, found in each_plan(names, parts, jobs):
        for part, now in found.items():
            old = recorded.get(name, {}).get(part, {})
            faults, explained = compared(name, part, old, now)
            warned = part == "text" and text == "warn"
            for line in faults:
                print(f"{name}: {part}: {line}{' (a warning)' if warned else ''}", flush=True)
            for line in explained:
                print(f"{name}: {part}: ({line})", flush=True)
            if faults and not warned:
                failed.append(f"{name} ({part})")
    print(f"{len(names)} plans, {len(failed)} parts differ", *failed, sep="\n  ")
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The commands."""
    parser = argparse.ArgumentParser(description="Record plans, or check them against records.")
    parser.add_argument("command", choices=("record", "check"))
    parser.add_argument("plans", nargs="*", metavar="PLAN", help="all by default; or patterns")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--text", choices=("fail", "warn", "off"), default="fail")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    patterns = options.plans or ["*"]
    names = [name for name in PLANS if any(fnmatch(name, pattern) for pattern in patterns)]
    unknown = [p for p in patterns if not any(fnmatch(name, p) for name in PLANS)]
    if unknown:
        parser.error(f"no plan is called {', '.join(unknown)}; there are: {', '.join(PLANS)}")
    if options.command == "record":
        return record(names, options.only, options.jobs)
    return check(names, options.only, options.jobs, options.text)


if __name__ == "__main__":
    sys.exit(main())

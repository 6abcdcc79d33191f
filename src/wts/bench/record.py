"""Result records: JSON lines of one measured point each, which all published numbers come from."""

from __future__ import annotations

import json
import math
import re
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from wts.errors import InputError

SCHEMA = 1

Record = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """What a field may hold. `kind` is bool, int, float (an int is one too) or str."""

    kind: type
    choices: tuple[object, ...] = ()
    least: float | None = None
    most: float | None = None
    nullable: bool = False
    may_be_empty: bool = False


_BENCHES = ("head", "trained", "placement", "serving", "fidelity", "acceptance")

_COMMON: dict[str, _Field] = {
    "schema": _Field(kind=int, choices=(SCHEMA,)),
    "bench": _Field(kind=str, choices=_BENCHES),
    "run_id": _Field(kind=str),
    "path": _Field(
        kind=str,
        choices=(
            "wts",
            "probe",
            "step_torch",
            "sglang",
            "sglang_greedy",
            "wts_streaming",
            "wts_exact",
            "null_head",
        ),
    ),
    "head": _Field(kind=str, choices=("markov", "gated", "rnn", "domino")),
    "weights": _Field(kind=str, choices=("int8", "bf16")),
    "V": _Field(kind=int, least=1),
    "r": _Field(kind=int, least=1),
    "B": _Field(kind=int, least=1),
    "K": _Field(kind=int, least=1),
    "T": _Field(kind=float, least=0),
    "inputs": _Field(kind=str, choices=("random", "recorded")),
    "gpu": _Field(kind=str),
    "sms": _Field(kind=int, least=1),
    "driver": _Field(kind=str),
    "cuda": _Field(kind=str),
    "torch": _Field(kind=str),
    "sglang": _Field(kind=str, nullable=True),
    "commit": _Field(kind=str),
    "dirty": _Field(kind=bool),
    "time": _Field(kind=str),
}

# Of every benchmark that times something.
_TIMED: dict[str, _Field] = {
    "cache": _Field(kind=str, choices=("cold", "cold_read", "warm")),
    "p50_us": _Field(kind=float, least=0),
    "p05_us": _Field(kind=float, least=0),
    "p95_us": _Field(kind=float, least=0),
    "n": _Field(kind=int, least=1),
    "excludes": _Field(kind=str, choices=("", "lm_head"), may_be_empty=True),
    "resident_share": _Field(kind=float, least=0, most=1),
    "plan": _Field(kind=str, may_be_empty=True),
}
_UNTIMED = ("fidelity", "acceptance")

_BY_BENCH: dict[str, dict[str, _Field]] = {
    # Of a sweeping warp: fragments of 512 bytes; what the assembler spilled, 0 where it did not.
    "placement": {
        "register_fragments": _Field(kind=int, least=0),
        "shared_fragments": _Field(kind=int, least=0),
        "streamed_fragments": _Field(kind=int, least=0),
        "spill_bytes": _Field(kind=int, least=0),
    },
    "serving": {
        "model": _Field(kind=str),
        "draft": _Field(kind=str),
        "block": _Field(kind=int, least=1),
        "concurrency": _Field(kind=int, least=1),
        "accept": _Field(kind=str, choices=("trained", "checkpoint", "random", "simulated")),
        "tokens_per_s": _Field(kind=float, least=0),
        "round_us": _Field(kind=float, least=0),
        "accepted_length": _Field(kind=float, least=0),
        "repeat": _Field(kind=int, least=0),
    },
    "acceptance": {
        "prompts": _Field(kind=int, least=1),
        "accepted_length_a": _Field(kind=float, least=0),
        "accepted_length_b": _Field(kind=float, least=0),
        "difference": _Field(kind=float),
        "ci_low": _Field(kind=float),
        "ci_high": _Field(kind=float),
        "domain": _Field(kind=str),
    },
}

# What a record may carry besides: the SM clock (as a spin kernel measured it, and the maximum); the
# share of a baseline's first tokens that were ours (of heads with a state: of second tokens, where
# the first ones were); H and, of Domino, G; what was subtracted where something is excluded, 0 for
# paths without it; of exact walks the share of steps that exact logits decided, and how many rows'
# were computed in one of these. Of accepted lengths: whether the second walk drafted by itself
# ("own", also where nothing is said) or at every state of the first one's run ("same"); then also
# the blocks drafted, and those in which it drafted other tokens.
_OPTIONAL: dict[str, _Field] = {
    "clock_mhz": _Field(kind=float, least=1),
    "max_clock_mhz": _Field(kind=float, least=1, nullable=True),
    "first_token_agreement": _Field(kind=float, least=0, most=1, nullable=True),
    "H": _Field(kind=int, least=1),
    "G": _Field(kind=int, least=1),
    "excluded_us": _Field(kind=float, least=0),
    "rescored_share": _Field(kind=float, least=0, most=1),
    "rescored_rows": _Field(kind=float, least=0),
    "states": _Field(kind=str, choices=("own", "same")),
    "blocks": _Field(kind=int, least=1),
    "unlike_blocks": _Field(kind=int, least=0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine and the versions that a run was measured with."""

    gpu: str
    sms: int
    driver: str
    cuda: str
    torch: str
    sglang: str | None
    commit: str
    dirty: bool
    clock_mhz: float
    max_clock_mhz: float | None


def gpu_folder(device_name: str) -> str:
    """The short lower-case name of a GPU, the folder of its results: `NVIDIA H200` -> `h200`.

    Memory sizes and memory kinds are left out; a form factor that has other SMs (PCIe) stays.
    """
    words = re.split(r"[\s_/-]+", device_name.lower())
    dropped = re.compile(r"nvidia|geforce|tesla|sxm\d*|hbm\d*e?|\d+gb?|gb")
    kept = [word for word in words if word and not dropped.fullmatch(word)]
    return "-".join(kept) or "unknown"


def new_run_id() -> str:
    """A name for the points of one run; ratios are taken only between points that share it."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def _output_of(command: list[str], *, folder: Path | None = None) -> str | None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def source_version(described: str | None = None) -> tuple[str, bool]:
    """The commit that is measured and whether files differ from it.

    Args:
        described: output of `git describe --always --dirty --abbrev=40`, for a copy of the sources
            that has no repository; taken from the repository when None.

    Returns:
        commit and dirty; `("unknown", True)` when there is neither.
    """
    if described is None:
        described = _output_of(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            folder=Path(__file__).parent,
        )
    if not described:
        return "unknown", True
    return described.removesuffix("-dirty"), described.endswith("-dirty")


def installed_version(distribution: str) -> str | None:
    """The installed version of a distribution, None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def capture_environment(*, described: str | None = None) -> Environment:
    """Ask the current CUDA device, torch and the repository what they are.

    Args:
        described: see `source_version`.
    """
    import torch

    from wts.bench.clock import measured_clock_mhz

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    query = [
        "nvidia-smi",
        "--query-gpu=driver_version,clocks.max.sm",
        "--format=csv,noheader,nounits",
    ]
    answer = _output_of([*query, f"--id=GPU-{properties.uuid}"]) or _output_of(query) or ""
    driver, _, max_clock = (part.strip() for part in answer.split("\n")[0].partition(","))
    commit, dirty = source_version(described)
    return Environment(
        gpu=gpu_folder(properties.name),
        sms=properties.multi_processor_count,
        driver=driver or "unknown",
        cuda=torch.version.cuda or "unknown",
        torch=torch.__version__,
        sglang=installed_version("sglang"),
        commit=commit,
        dirty=dirty,
        clock_mhz=round(measured_clock_mhz(), 1),
        max_clock_mhz=float(max_clock) if max_clock.replace(".", "", 1).isdigit() else None,
    )


def build(environment: Environment, **fields: object) -> Record:
    """A checked record: the given fields, the environment, the schema number and the time.

    Raises:
        InputError: a field is missing, unknown, or of the wrong type.
    """
    record: Record = {"schema": SCHEMA, **fields, **asdict(environment)}
    record["time"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    validate(record)
    return record


def _check(name: str, field: _Field, value: object) -> None:
    if value is None and field.nullable:
        return
    accepted: tuple[type, ...] = (int, float) if field.kind is float else (field.kind,)
    # A bool is an int to Python, but never a count or a time.
    if not isinstance(value, accepted) or (isinstance(value, bool) and field.kind is not bool):
        wanted = "number" if field.kind is float else field.kind.__name__
        raise InputError(f"{name}: wanted {wanted}, found {value!r} ({type(value).__name__})")
    if field.choices and value not in field.choices:
        raise InputError(f"{name}: wanted one of {list(field.choices)}, found {value!r}")
    if isinstance(value, str):
        if not value and not field.may_be_empty:
            raise InputError(f"{name}: wanted text, found an empty string")
        return
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            raise InputError(f"{name}: wanted a finite number, found {value}")
        if field.least is not None and value < field.least:
            raise InputError(f"{name}: wanted at least {field.least}, found {value}")
        if field.most is not None and value > field.most:
            raise InputError(f"{name}: wanted at most {field.most}, found {value}")


def validate(record: Mapping[str, object]) -> None:
    """Check a record against the schema.

    Raises:
        InputError: names the first field that is missing, unknown, mistyped or out of range.
    """
    if "bench" not in record:
        raise InputError("bench: missing; every record says which benchmark wrote it")
    _check("bench", _COMMON["bench"], record["bench"])
    timed = record["bench"] not in _UNTIMED
    required = _COMMON | (_TIMED if timed else {}) | _BY_BENCH.get(str(record["bench"]), {})
    for name in required:
        if name not in record:
            raise InputError(f"{name}: missing from the record")
    known = required | _OPTIONAL
    for name, value in record.items():
        if name not in known:
            raise InputError(f"{name}: not a field of a {record['bench']} record")
        _check(name, known[name], value)
    if not timed:
        return
    p05, p50, p95 = (float(str(record[name])) for name in ("p05_us", "p50_us", "p95_us"))
    if not p05 <= p50 <= p95:
        raise InputError(f"p05_us, p50_us, p95_us: wanted them in order, found {p05}, {p50}, {p95}")


def append(folder: Path, record: Record) -> Path:
    """Append a record to `folder/<gpu>/<bench>.jsonl`, and return that file.

    Raises:
        InputError: the record does not follow the schema.
    """
    validate(record)
    path = folder / str(record["gpu"]) / f"{record['bench']}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(record) + "\n")
    return path


def quantised_runs(records: Sequence[Record]) -> list[Record]:
    """All but runs of walks with bf16 weights (those of SGLang's steps always are)."""
    others = {r["run_id"] for r in records if r["path"] == "wts" and r["weights"] == "bf16"}
    return [record for record in records if record["run_id"] not in others]


def read(path: Path) -> list[Record]:
    """All records of a file, each checked.

    Raises:
        InputError: names file and line of the first line that is no record; or the file, where it
            cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError.mismatch(
            "file", wanted="a readable results file", found=str(error), fix="check its path"
        ) from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise InputError(f"wanted a JSON object, found {type(record).__name__}")
            validate(record)
        except (json.JSONDecodeError, InputError) as error:
            raise InputError(f"{path}, line {number}: {error}") from error
        records.append(record)
    return records

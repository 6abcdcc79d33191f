"""The paths of the serving benchmark: how a start is given its head, and what proves that.

SGLang finds plugins by entry points of installed distributions, in each of its processes. Folders
stand in for distributions: one names this package's plugin where it runs from a source tree,
another the null head, a third the switch of `greedy_only`. Which of them act is said by the
environment of a start.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from wts.bench.serving import greedy_only as greedily
from wts.bench.serving import null_head
from wts.bench.serving.models import Drafter
from wts.errors import InputError

__all__ = ["PATHS", "Plugins", "Proof", "environment_of", "plugin_folders", "prove"]

PATHS = ("sglang", "wts", "null_head")
"""SGLang's own head, ours, and none."""

_GROUP = "sglang.srt.plugins"
_SOURCE = Path(__file__).parents[3]
_NULL_HEAD = f"{null_head.__name__}:{null_head.install.__name__}"
_GREEDY = f"{greedily.__name__}:{greedily.install.__name__}"

# What SGLang says itself, in the words of 0.5.23, when a drafter's head is part of its CUDA graph;
# of DSpark it adds whether another sampler than its own may run.
# Source: sglang/srt/speculative/dspark_components/dspark_draft_sampler.py, dflash_worker_v2.py.
_FOLDED = {
    "dspark": re.compile(r"DSpark draft proposal \([^)]*\) folded into the draft cuda graph(.*)"),
    "domino": re.compile(r"DFLASH Domino rollout folded into the draft cuda graph(.*)"),
}
_FOREIGN = "may run it"

# Our plugin's one line per process: "on for" a drafter, with what it does in which batches, or "off
# for" it and why.
_OURS = re.compile(r"(?:^|\s)wts: (.*)")
_ON = "on for "
# And later, of walks that were given up: what they drafted says nothing of any head.
_GIVEN_UP = "may be wrong"
_BATCHES = re.compile(r"batch (\d+)(?: to (\d+)| and above)?: ([^;]*)")
_RESIDENT = re.compile(r"([0-9.]+) % resident")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the log of a start says of its path.

    Args:
        line: the line that proves it.
    """

    line: str

    def resident_share(self, batch: int) -> float:
        """How much of W stays on chip, 0..1, in a batch; 0 where SGLang's own steps run."""
        for low, high, text in _BATCHES.findall(self.line):
            share = _RESIDENT.search(text)
            if share is not None and int(low) <= batch <= int(high or low):
                return min(float(share.group(1)) / 100, 1.0)
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """Folders that stand in for distributions with a plugin.

    Args:
        ours: names this package's; None where an installed distribution does, or nothing.
        null: names the null head.
        greedy: names the switch of `greedy_only`.
    """

    ours: Path | None
    null: Path
    greedy: Path


def plugin_folders(folder: Path, *, needed: bool) -> Plugins:
    """Write the stand-ins for distributions.

    Args:
        folder: where they go.
        needed: whether this package's plugin has to be found.

    Raises:
        InputError: neither an installed distribution nor the source tree has a plugin.
    """
    return Plugins(
        ours=_our_folder(folder / "wts", needed=needed),
        null=_distribution(folder / "null_head", "wts-null-head", {"wts_null_head": _NULL_HEAD}),
        greedy=_distribution(folder / "greedy", "wts-greedy", {"wts_greedy": _GREEDY}),
    )


def _our_folder(folder: Path, *, needed: bool) -> Path | None:
    installed = metadata.entry_points(group=_GROUP)
    values = [point.value for point in installed]
    if any(value.startswith("wts.") and not value.startswith("wts.bench.") for value in values):
        return None
    project = _SOURCE.parent / "pyproject.toml"
    points: Mapping[str, str] = {}
    if project.is_file():
        fields = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        points = fields.get("entry-points", {}).get(_GROUP, {})
    if not points and not needed:
        return None
    if not points:
        raise InputError.mismatch(
            "paths",
            wanted=f"an entry point of this package in the group {_GROUP}",
            found=f"none installed, and none in {project}",
            fix="install the package, or leave path wts out",
        )
    return _distribution(folder, "weights-that-stay-source", points)


def _distribution(folder: Path, name: str, points: Mapping[str, str]) -> Path:
    info = folder / f"{name.replace('-', '_')}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    lines = "".join(f"{point} = {target}\n" for point, target in points.items())
    (info / "entry_points.txt").write_text(f"[{_GROUP}]\n{lines}")
    return folder


def environment_of(
    path: str,
    inherited: Mapping[str, str],
    *,
    plugins: Plugins,
    greedy_only: bool,
    accept_length: float,
    scratch: Path,
) -> dict[str, str]:
    """The environment of a start.

    Args:
        path: one of PATHS.
        inherited: of this process.
        plugins: ours is on the path of every start, the null head on that of its own starts only.
        greedy_only: whether the switch of `greedy_only` is, too, in starts of every path.
        accept_length: simulated tokens a round; 0 leaves acceptance to the verifier.
        scratch: where kernels are kept that one start compiles and the next ones reuse, unless the
            inherited environment says where.
    """
    folders = [plugins.null] if path == "null_head" else []
    folders += [plugins.greedy] if greedy_only else []
    folders += [] if plugins.ours is None else [plugins.ours]
    before = inherited.get("PYTHONPATH")
    changed = {
        "PYTHONPATH": ":".join([*map(str, [*folders, _SOURCE]), *([before] if before else [])]),
        "PYTHONUNBUFFERED": "1",
        "WTS_SGLANG": "1" if path == "wts" else "0",
        "TRITON_CACHE_DIR": inherited.get("TRITON_CACHE_DIR", str(scratch / "triton")),
    }
    kept = {name: value for name, value in inherited.items() if name != "SGLANG_SIMULATE_ACC_LEN"}
    if accept_length > 0:
        changed["SGLANG_SIMULATE_ACC_LEN"] = f"{accept_length:g}"
    return kept | changed


def prove(path: str, log: str, drafter: Drafter) -> Proof | str:
    """Find what proves the path of a start.

    Args:
        path: one of PATHS.
        log: everything that the start printed.
        drafter: its drafter.

    Returns:
        The proof, or what is wrong: a log that does not say, or that says something else.
    """
    folded = _FOLDED["domino" if drafter == "domino" else "dspark"].search(log)
    ours = [match.group(1) for match in map(_OURS.search, log.splitlines()) if match]
    serving = [line for line in ours if line.startswith(_ON)]
    wrong = [line for line in ours if _GIVEN_UP in line]
    null = [line for line in log.splitlines() if null_head.LOG_PREFIX in line]
    if folded is None:
        return "the log does not say that the drafter's head is part of the draft CUDA graph"
    if wrong:
        return f"walks were given up: {wrong[0]}"
    if path == "null_head":
        if serving:
            return f"the log says that our plugin serves: {serving[0]}"
        return Proof(line=null[0]) if null else "the log has no line of the null head"
    if null:
        return f"the log says that the null head serves: {null[0]}"
    if path == "sglang":
        if serving:
            return f"the log says that our plugin serves: {serving[0]}"
        if _FOREIGN in folded.group(1):
            return f"the log says that another sampler may run: {folded.group(0)}"
        return Proof(line=folded.group(0))
    if not serving:
        return f"our plugin stayed off: {ours[0]}" if ours else "the log has no line of our plugin"
    if drafter != "domino" and _FOREIGN not in folded.group(1):
        return f"our plugin has a line, but SGLang took no sampler of it: {folded.group(0)}"
    return Proof(line=serving[0])

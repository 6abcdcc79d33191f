"""Text and code of installed packages as token ids: `python -m lab.data OUT`.

Files are found by their kind below the given roots (by default the standard library and the
site-packages of this Python), cleaned of copies and of what is no text, put in the order of a hash
of their contents, and split by file: every fortieth is for validation. The merge
table of Qwen comes with the PyPI package dashscope, which is downloaded and not installed; reading
it needs tiktoken. `--tokeniser bytes` needs neither: a token is a byte.

OUT gets train.npz and val.npz (ids in three planes of bytes, compressed; where documents begin; of
which domain each is) and manifest.json, which counts files, tokens and licences by distribution.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.config import QWEN_END

__all__ = ["DOMAINS", "Tokens", "prepare", "read_tokens"]

Ids = npt.NDArray[np.int32]
Encode = Callable[[str], list[int]]

DOMAINS = ("python", "tests", "cpp", "docs")
"""Kinds of files: libraries in Python, their tests, C++ and CUDA headers, documentation."""

_SUFFIXES = {
    ".py": "python",
    ".pyi": "python",
    ".h": "cpp",
    ".hpp": "cpp",
    ".cuh": "cpp",
    ".cu": "cpp",
    ".cpp": "cpp",
    ".rst": "docs",
    ".md": "docs",
    ".txt": "docs",
}
_LEAST_BYTES, _MOST_BYTES = 400, 200_000
_LONGEST_LINE = 400  # longer ones are data or minified
_VALIDATION_PARTS = 40  # one file of so many is for validation
# Of the qwen.tiktoken that dashscope ships: how text is cut before pairs are merged.
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES_END = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Token ids of one side of the split.

    Args:
        ids: int32 [n], documents one behind the other, each followed by the end token.
        starts: int64 [documents], where each begins.
        domains: int64 [documents], index into `DOMAINS`.
    """

    ids: Ids
    starts: npt.NDArray[np.int64]
    domains: npt.NDArray[np.int64]


@dataclass(slots=True)
class _Side:
    """One side of the split, growing."""

    ids: list[Ids] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    domains: list[int] = field(default_factory=list)
    size: int = 0

    def add(self, ids: Ids, domain: int) -> None:
        self.starts.append(self.size)
        self.domains.append(domain)
        self.ids.append(ids)
        self.size += len(ids)

    def write(self, path: Path) -> None:
        ids = np.concatenate(self.ids) if self.ids else np.zeros(0, np.int32)
        # A plane of bytes compresses better than whole ids: the high one hardly changes.
        planes = np.stack([(ids >> shift) & 255 for shift in (0, 8, 16)]).astype(np.uint8)
        starts, domains = np.array(self.starts, np.int64), np.array(self.domains, np.int64)
        np.savez_compressed(path, planes=planes, starts=starts, domains=domains)


def read_tokens(path: Path) -> Tokens:
    """Read one side, as `prepare` wrote it."""
    with np.load(path) as file:
        low, middle, high = file["planes"].astype(np.int32)
        ids = low | (middle << 8) | (high << 16)
        return Tokens(ids=ids, starts=file["starts"], domains=file["domains"])


def domain_of(path: Path) -> str | None:
    """The domain of a file, None for one that is not taken."""
    if path.name == "METADATA":
        return "docs"
    domain = _SUFFIXES.get(path.suffix)
    if domain == "python":
        parts = {part.lower() for part in path.parts}
        if parts & {"test", "tests", "testing", "idle_test"} or path.name.startswith("test_"):
            return "tests"
    return domain


def clean_text(path: Path) -> str | None:
    """The text of a file, None where it is too short or too long, or looks like data."""
    size = path.stat().st_size
    if not _LEAST_BYTES <= size <= _MOST_BYTES:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if path.name == "METADATA":
        text = text.partition("\n\n")[2]  # the description only
    lines = text.splitlines()
    if len(text) < _LEAST_BYTES or max(map(len, lines), default=0) > _LONGEST_LINE:
        return None
    letters = sum(map(str.isalpha, text))
    return text if letters > 0.4 * len(text) else None


def _licences(root: Path) -> dict[str, tuple[str, str]]:
    """Distribution and licence of each top-level name below a site-packages folder."""
    found: dict[str, tuple[str, str]] = {}
    for info in sorted(root.glob("*.dist-info")):
        meta = info / "METADATA"
        if not meta.is_file():
            continue
        header = HeaderParser().parsestr(meta.read_text(encoding="utf-8", errors="replace"))
        classifiers = [
            line.split(" :: ")[-1]
            for line in header.get_all("Classifier", [])
            if line.startswith("License ::")
        ]
        licence = header.get("License-Expression") or "; ".join(classifiers)
        licence = licence or (header.get("License") or "not stated").splitlines()[0][:80]
        entry = (f"{header.get('Name', info.stem)} {header.get('Version', '')}".strip(), licence)
        found[info.name] = entry
        record = info / "RECORD"
        if record.is_file():
            for line in record.read_text(encoding="utf-8", errors="replace").splitlines():
                top = line.split("/")[0].split(",")[0]
                found.setdefault(top, entry)
    return found


def _files(roots: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Root and path of every file that may be taken, in an order that repeats."""
    seen: set[Path] = set()
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.is_symlink() or not path.is_file() or domain_of(path) is None:
                continue
            # site-packages below the standard library are a root of their own, or not wanted
            if "site-packages" in path.relative_to(root).parts or path in seen:
                continue
            seen.add(path)
            yield root, path


def default_roots() -> list[Path]:
    """The standard library and the site-packages of this Python."""
    paths = sysconfig.get_paths()
    return list(dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib")))


def byte_encoder() -> tuple[Encode, int]:
    """A token for each byte, and the end token."""
    return (lambda text: list(text.encode("utf-8"))), _BYTES_END


def qwen_encoder(table: Path | None) -> tuple[Encode, int]:
    """The tokens of Qwen, and its end token.

    Args:
        table: the file qwen.tiktoken; taken from the PyPI package dashscope when None.
    """
    import tiktoken

    text = (_downloaded_table() if table is None else table.read_bytes()).decode("ascii")
    ranks = {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in text.splitlines() if line)
    }
    encoding = tiktoken.Encoding(
        "qwen", pat_str=_QWEN_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    return encoding.encode_ordinary, QWEN_END


def _downloaded_table() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        subprocess.run([*command, folder, "dashscope"], check=True)
        (wheel,) = Path(folder).glob("dashscope-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return archive.read("dashscope/resources/qwen.tiktoken")


def prepare(
    out: Path,
    *,
    roots: Sequence[Path],
    encode: Encode,
    end_token: int,
    most_tokens: int,
    most_of_one: float = 0.25,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, object]:
    """Write train.npz, val.npz and manifest.json.

    Files are taken in the order of a hash, so a smaller limit takes a subset; no distribution gives
    more than a share of a domain's tokens, and no domain more than half of all.

    Args:
        out: folder for the three files.
        roots: folders to look below.
        encode: text to ids.
        end_token: written after each document.
        most_tokens: of both sides together.
        most_of_one: largest share of one distribution in all tokens.
        say: told what is going on.

    Returns:
        What manifest.json holds.
    """
    out.mkdir(parents=True, exist_ok=True)
    licences = {root: _licences(root) for root in roots}
    ordered: list[tuple[bytes, Path, Path, str]] = []
    copies: set[bytes] = set()
    for root, path in _files(roots):
        text = clean_text(path)
        if text is None:
            continue
        digest = hashlib.sha256(text.encode("utf-8")).digest()
        if digest not in copies:
            copies.add(digest)
            ordered.append((digest, root, path, text))
    ordered.sort(key=lambda entry: entry[0])
    say(f"{len(ordered)} files")
    train, val = _Side(), _Side()
    by_distribution: Counter[tuple[str, str]] = Counter()
    by_domain: Counter[str] = Counter()
    num_files: Counter[tuple[str, str]] = Counter()
    total = 0
    for _, root, path, text in ordered:
        domain = domain_of(path)
        assert domain is not None
        top = path.relative_to(root).parts[0]
        python = (f"Python {sys.version_info.major}.{sys.version_info.minor}", "PSF-2.0")
        source = licences[root].get(top, python if root == default_roots()[0] else (top, "?"))
        if (
            by_distribution[source] > most_of_one * most_tokens
            or by_domain[domain] > most_tokens / 2
        ):
            continue
        ids = np.array([*encode(text), end_token], np.int32)
        side = val if sum(num_files.values()) % _VALIDATION_PARTS == 0 else train
        side.add(ids, DOMAINS.index(domain))
        by_distribution[source] += len(ids)
        by_domain[domain] += len(ids)
        num_files[source] += 1
        total += len(ids)
        if total >= most_tokens:
            break
    train.write(out / "train.npz")
    val.write(out / "val.npz")
    manifest: dict[str, object] = {
        "end_token": end_token,
        "train_tokens": train.size,
        "val_tokens": val.size,
        "train_files": len(train.starts),
        "val_files": len(val.starts),
        "tokens_by_domain": dict(by_domain.most_common()),
        "distributions": [
            {"name": name, "licence": licence, "tokens": count, "files": num_files[name, licence]}
            for (name, licence), count in by_distribution.most_common()
        ],
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    say(f"{train.size} tokens to train on, {val.size} to validate with")
    return manifest


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.data", description="Text and code as token ids.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--root", type=Path, action="append", help="a folder to look below")
    parser.add_argument("--tokeniser", choices=["qwen", "bytes"], default="qwen")
    parser.add_argument("--table", type=Path, help="qwen.tiktoken, if it is there already")
    parser.add_argument("--tokens", type=int, default=36_000_000, help="at most")
    args = parser.parse_args(argv)
    encoder = byte_encoder() if args.tokeniser == "bytes" else qwen_encoder(args.table)
    prepare(
        args.out,
        roots=args.root or default_roots(),
        encode=encoder[0],
        end_token=encoder[1],
        most_tokens=args.tokens,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )


if __name__ == "__main__":
    main()

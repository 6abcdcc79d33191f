"""Text and code of installed packages as token ids: `python -m lab.data OUT`.

Files are found by their kind below the given roots (by default the standard library and the
site-packages of this Python), cleaned of copies and of what is no text, put in the order of a hash
of their contents, and split by file: of each domain the first of them that are not like others are
for validation. The merge table of Qwen comes with the PyPI package dashscope, which is downloaded
and not installed; reading it needs tiktoken. `--tokeniser bytes` needs neither: a token is a byte.

Wheels hold little documentation as such: descriptions of packages, some readmes. Most of it is
docstrings, which are what its pages are made of. So a Python file with many of them is not taken as
code but as documentation, without its code; and Python's own reference, which the standard library
has in one file for `help()`, is as many documents as it has topics. Licences are left out.

OUT gets train.npz and val.npz (ids in three planes of bytes, compressed; where documents begin; of
which domain each is) and manifest.json, which counts files, tokens and licences by distribution.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import warnings
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
"""Kinds of text: libraries in Python, their tests, C++ and CUDA headers, documentation."""

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
_LONGEST_PARAGRAPH = 2000  # of documentation, which need not be wrapped
_TEST_FOLDERS = {"test", "tests", "testing", "idle_test"}
_BOILERPLATE = re.compile("licen[cs]e|copying|notice|authors|credits|contributors", re.IGNORECASE)
_PROSE = re.compile("readme|news|history|change|todo|guide|howto", re.IGNORECASE)  # among *.txt
# Lines that are no more than images, links or marks.
_BADGE = re.compile(
    r"\s*(\[?!\[|<|\[[^\]]+\]: |\.\. (image|figure|_|\|)|:(target|alt|align|width|height|scale):"
    r"|(\|[^|]+\|\s*)$)"
)
# Comments that a file of code begins with, and the guard that all of torch's headers have.
_HEADER = re.compile(
    r"(\s*(#(?!\s*(if|ifndef|ifdef|include|define|pragma|error)\b)[^\n]*|//[^\n]*"
    r"|/\*(?s:.*?)\*/[^\n\S]*|#if !defined\(TORCH_STABLE_ONLY\)[^\n]*)(\n|$))+"
)
_RIGHTS = re.compile("copyright|licen[cs]e|TORCH_STABLE_ONLY", re.IGNORECASE)
_QUOTED = re.compile(r'"{3}.*?"{3}|\'{3}.*?\'{3}', re.DOTALL)
_LEAST_DOCSTRINGS, _DOCSTRING_SHARE = 1000, 0.4  # characters, and of all, of a file of them
_VALIDATION_DOCUMENTS = 112  # of each domain,
_VALIDATION_PARTS = 8  # but no more than one of so many
_LEAST_LINE = 20  # shorter lines say nothing about whether files are alike
_OWN_BEGINNING = 100  # characters that no two documents of validation begin with
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
    """The domain of a file by its name, None for one that is not taken."""
    domain = "docs" if path.name == "METADATA" else _SUFFIXES.get(path.suffix)
    parts = {part.lower() for part in path.parts}
    if domain == "python" and (parts & _TEST_FOLDERS or path.name.startswith("test_")):
        return "tests"
    if domain == "docs" and path.name != "METADATA":
        boilerplate = "licenses" in parts or _BOILERPLATE.search(path.name) is not None
        data = path.suffix == ".txt" and _PROSE.search(path.name) is None
        return None if boilerplate or data or parts & _TEST_FOLDERS else "docs"
    return domain


def documents_of(path: Path) -> list[tuple[str, str]]:
    """Domain and text of each document that a file is taken as: one, but for `help()`'s topics."""
    domain, size = domain_of(path), path.stat().st_size
    try:
        if path.parts[-2:] == ("pydoc_data", "topics.py"):
            found = [("docs", text) for text in _topics(path.read_text(encoding="utf-8"))]
        elif domain is None or not _LEAST_BYTES <= size <= _MOST_BYTES:
            return []
        else:
            found = [_document(path, domain, path.read_text(encoding="utf-8"))]
    except (OSError, UnicodeDecodeError):
        return []
    return [(kind, text) for kind, text in found if _is_text(kind, text)]


def _document(path: Path, domain: str, text: str) -> tuple[str, str]:
    if path.name == "METADATA":
        text = str(HeaderParser().parsestr(text).get_payload())  # the description only
    if domain == "docs":
        lines = [line.rstrip() for line in text.splitlines() if not _BADGE.match(line)]
        return domain, re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"
    if domain == "python" and path.suffix == ".py":
        docstrings = _docstrings(text)
        if len(docstrings) >= max(_LEAST_DOCSTRINGS, _DOCSTRING_SHARE * len(text)):
            return "docs", docstrings
    header = _HEADER.match(text)
    if header is not None and _RIGHTS.search(header.group()):
        text = text[header.end() :].lstrip("\n")
    return domain, text


def _is_text(domain: str, text: str) -> bool:
    """Whether a text is neither short nor data."""
    longest = max(map(len, text.splitlines()), default=0)
    letters = sum(map(str.isalpha, text))
    return (
        len(text) >= _LEAST_BYTES
        and longest <= (_LONGEST_PARAGRAPH if domain == "docs" else _LONGEST_LINE)
        and letters > 0.4 * len(text)
    )


def _parsed(source: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # a wrong escape, in 3.11
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):
            return None


def _docstrings(source: str) -> str:
    """The docstrings of a module, each below the name and the arguments of what it is about."""
    quoted = sum(len(match.group()) for match in _QUOTED.finditer(source))
    module = _parsed(source) if quoted >= _DOCSTRING_SHARE * len(source) else None
    if module is None:
        return ""
    parts: list[str] = []

    def visit(node: ast.Module | ast.ClassDef, name: str) -> None:
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                add(child, f"{name}{child.name}({ast.unparse(child.args)})")
            elif isinstance(child, ast.ClassDef):
                add(child, name + child.name)
                visit(child, f"{name}{child.name}.")

    def add(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, title: str) -> None:
        if text := ast.get_docstring(node):
            parts.append(f"{title}\n\n{text}\n")

    if text := ast.get_docstring(module):
        parts.append(text + "\n")
    visit(module, "")
    return "\n".join(parts)


def _topics(source: str) -> list[str]:
    """What the dictionary in pydoc_data/topics.py has as texts."""
    module = _parsed(source)
    if module is None:
        return []
    dictionaries = [node for node in ast.walk(module) if isinstance(node, ast.Dict)]
    return [
        value.value.strip("\n") + "\n"
        for dictionary in dictionaries
        for value in dictionary.values
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]


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

    Documents are taken in the order of a hash, so a smaller limit takes a subset; no distribution
    gives more than a share of all tokens, and no domain more than half.

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
    ordered: list[tuple[bytes, Path, Path, str, str]] = []
    copies: set[bytes] = set()
    for root, path in _files(roots):
        for domain, text in documents_of(path):
            digest = hashlib.sha256(text.encode("utf-8")).digest()
            if digest not in copies:
                copies.add(digest)
                ordered.append((digest, root, path, domain, text))
    ordered.sort(key=lambda entry: entry[0])
    say(f"{len(ordered)} documents")
    chosen: list[tuple[str, str, Ids]] = []
    by_distribution: Counter[tuple[str, str]] = Counter()
    by_domain: Counter[str] = Counter()
    num_files: Counter[tuple[str, str]] = Counter()
    for _, root, path, domain, text in ordered:
        top = path.relative_to(root).parts[0]
        python = (f"Python {sys.version_info.major}.{sys.version_info.minor}", "PSF-2.0")
        source = licences[root].get(top, python if root == default_roots()[0] else (top, "?"))
        if (
            by_distribution[source] > most_of_one * most_tokens
            or by_domain[domain] > most_tokens / 2
        ):
            continue
        ids = np.array([*encode(text), end_token], np.int32)
        chosen.append((domain, text, ids))
        by_distribution[source] += len(ids)
        by_domain[domain] += len(ids)
        num_files[source] += 1
        if by_domain.total() >= most_tokens:
            break
    sides = {"train": _Side(), "val": _Side()}
    held_out = _held_out([entry[:2] for entry in chosen])
    for number, (domain, _, ids) in enumerate(chosen):
        sides["val" if number in held_out else "train"].add(ids, DOMAINS.index(domain))
    counts: dict[str, dict[str, int]] = {domain: {} for domain in DOMAINS}
    for name, side in sides.items():
        side.write(out / f"{name}.npz")
        for number, domain in enumerate(DOMAINS):
            sizes = [len(i) for i, of in zip(side.ids, side.domains, strict=True) if of == number]
            counts[domain] |= {f"{name}_files": len(sizes), f"{name}_tokens": sum(sizes)}
    manifest: dict[str, object] = {
        "end_token": end_token,
        "train_tokens": sides["train"].size,
        "val_tokens": sides["val"].size,
        "train_files": len(sides["train"].starts),
        "val_files": len(sides["val"].starts),
        "domains": counts,
        "distributions": [
            {"name": name, "licence": licence, "tokens": count, "files": num_files[name, licence]}
            for (name, licence), count in by_distribution.most_common()
        ],
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    for domain, numbers in counts.items():
        say(f"{domain}: " + ", ".join(f"{key} {count}" for key, count in numbers.items()))
    return manifest


def _held_out(documents: Sequence[tuple[str, str]]) -> set[int]:
    """Which documents, by number, are for validation.

    Of each domain the first `_VALIDATION_DOCUMENTS`, at most one in `_VALIDATION_PARTS` and at
    least one, of those that are not like others: most of their text is in lines that no other
    document has, and no one before begins alike.

    Args:
        documents: domain and text of each.
    """

    def lines_of(text: str) -> set[str]:
        return {line for row in text.splitlines() if len(line := row.strip()) >= _LEAST_LINE}

    files = Counter(domain for domain, _ in documents)
    seen: Counter[str] = Counter()
    for _, text in documents:
        seen.update(lines_of(text))
    taken: Counter[str] = Counter()
    found, beginnings = set(), set()
    for number, (domain, text) in enumerate(documents):
        if taken[domain] >= min(_VALIDATION_DOCUMENTS, max(1, files[domain] // _VALIDATION_PARTS)):
            continue
        lines = lines_of(text)
        own = sum(len(line) for line in lines if seen[line] == 1)
        beginning = text[:_OWN_BEGINNING]
        if 2 * own > sum(map(len, lines)) and beginning not in beginnings:
            taken[domain] += 1
            found.add(number)
            beginnings.add(beginning)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="lab.data", description="Text and code as token ids.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--root", type=Path, action="append", help="a folder to look below")
    parser.add_argument("--tokeniser", choices=["qwen", "bytes"], default="qwen")
    parser.add_argument("--table", type=Path, help="qwen.tiktoken, if it is there already")
    parser.add_argument("--tokens", type=int, default=33_000_000, help="at most")
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

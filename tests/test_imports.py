"""Import direction is one line, and these tests hold it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import wts

SOURCE = Path(wts.__file__).parent

# A room may import rooms of lower ranks, never its neighbours or rooms of higher ones. What is of
# the first rank counts as one room, and so does what is of the last.
LINE: tuple[tuple[str, ...], ...] = (
    ("errors", "dtypes", "progress", "figure"),
    ("hardware", "numerics"),
    ("heads",),
    ("selection",),
    ("kernels",),
    ("walk",),
    ("engines", "fidelity", "bench"),
    ("cli", "__main__"),
)
RANK = {room: rank for rank, rooms in enumerate(LINE) for room in rooms}
TOGETHER = {*LINE[0], *LINE[-1]}


def room_of(module: str) -> str:
    """wts.bench.clock -> bench"""
    return module.split(".")[1]


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Every module of the package that a file imports anywhere, lazily or for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports inside the package are absolute"
            assert all(alias.name != "*" for alias in node.names), "no star imports"
            if node.module == "wts":
                yield from (f"wts.{alias.name}" for alias in node.names)
            elif node.module is not None:
                yield node.module


def violations(files: dict[str, str]) -> list[str]:
    """Compare the imports of modules, given by name and source text, with the line."""
    found = []
    for module, text in files.items():
        room = room_of(module)
        if room not in RANK:
            found.append(f"{module}: has no place in the line")
            continue
        for imported in imported_modules(ast.parse(text)):
            if imported.split(".")[0] != "wts":
                continue
            if imported == "wts":
                found.append(f"{module}: imports the package itself instead of a module")
            elif room_of(imported) not in RANK:
                found.append(f"{module}: imports {imported}, which has no place in the line")
            elif RANK[room_of(imported)] > RANK[room] or (
                RANK[room_of(imported)] == RANK[room]
                and room_of(imported) != room
                and room not in TOGETHER
            ):
                found.append(f"{module}: imports {imported}, which is not to its left")
    return found


def package_files() -> dict[str, str]:
    files = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        if parts == ("wts", "__init__"):
            continue
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        files[module] = path.read_text(encoding="utf-8")
    return files


def test_the_package_keeps_to_the_line() -> None:
    files = package_files()
    assert "wts.heads.markov" in files
    assert violations(files) == []


@pytest.mark.parametrize(
    ("module", "text", "word"),
    [
        ("wts.kernels.planner", "from wts.walk.walker import Walker", "not to its left"),
        ("wts.selection.exact", "def f():\n    import wts.kernels.packed", "not to its left"),
        ("wts.numerics.order", "from wts.heads.base import Head", "not to its left"),
        ("wts.numerics.order", "from wts.hardware import gpu", "not to its left"),
        ("wts.kernels.packed", "from wts import walk", "not to its left"),
        ("wts.bench.clock", "from wts.cli import main", "not to its left"),
        ("wts.bench.clock", "from wts import fidelity", "not to its left"),
        ("wts.errors", "from wts.hardware import gpu", "not to its left"),
        ("wts.walk.walker", "from wts import Walker", "no place"),
        ("wts.walk.walker", "import wts", "package itself"),
        ("wts.utils", "", "no place"),
    ],
)
def test_violations_are_seen(module: str, text: str, word: str) -> None:
    assert [word in line for line in violations({module: text})] == [True]


def test_what_is_allowed_is_not_seen() -> None:
    allowed = {
        "wts.walk.walker": "import torch\nfrom wts.kernels.resident.plan import ResidentPlan",
        "wts.kernels.planner": "from wts.kernels.resident.arrange import arrange",
        "wts.bench.head": "from wts.bench import clock\nfrom wts.walk import walker",
        "wts.figure": "from wts.errors import InputError",
        "wts.__main__": "from wts.cli import main",
    }
    assert violations(allowed) == []


# ---- circles -----------------------------------------------------------------------------------


def circles(files: dict[str, str]) -> list[tuple[str, ...]]:
    """Modules that import each other, directly or through others, lazily and for types too.

    Args:
        files: name -> source text.

    Returns:
        Sorted names of each set of modules that all reach each other.
    """
    arrows: dict[str, set[str]] = {}
    for module, text in files.items():
        named = set(imported_modules(ast.parse(text)))
        named |= set(imported_names(ast.parse(text)))
        arrows[module] = named & files.keys() - {module}

    def reached(start: str) -> set[str]:
        seen, todo = set[str](), [start]
        while todo:
            for module in arrows[todo.pop()] - seen:
                seen.add(module)
                todo.append(module)
        return seen

    after = {module: reached(module) for module in files}
    return sorted(
        {
            tuple(sorted(other for other in after[module] if module in after[other]))
            for module in files
            if module in after[module]
        }
    )


def imported_names(tree: ast.Module) -> Iterator[str]:
    """wts.bench.clock of `from wts.bench import clock`: what a name is if it is a module's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_itself_around_a_corner() -> None:
    assert circles(package_files()) == []


def test_circles_are_seen() -> None:
    files = {
        "wts.a": "from wts.b import thing",
        "wts.b": "def f():\n    from wts import c",
        "wts.c": "if TYPE_CHECKING:\n    import wts.a",
        "wts.d": "import wts.a\nimport wts.e",
        "wts.e": "",
    }
    assert circles(files) == [("wts.a", "wts.b", "wts.c")]
    assert circles(files | {"wts.c": "import wts.e"}) == []


def test_import_of_the_package_is_light(run_python: Callable[[str], int]) -> None:
    code = "import sys; import wts; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert run_python(code) == 0


@pytest.mark.parametrize("options", [["--help"], ["plan", "--help"], ["bench", "--help"]])
def test_help_is_light(options: list[str], run_python: Callable[[str], int]) -> None:
    """It imports nothing heavy, and no command but the one that is named."""
    code = (
        "import contextlib, io, sys; from wts.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main({options})\n"
        "commands = {m for m in sys.modules if m.startswith('wts.cli.')} - {'wts.cli.options'}\n"
        f"wanted = {{'wts.cli.' + word for word in {options} if word == 'plan'}}\n"
        "sys.exit(commands != wanted or any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    assert run_python(code) == 0


@pytest.mark.parametrize("bench", ["head", "all", "serving"])
def test_help_of_a_benchmark_is_light(bench: str, run_python: Callable[[str], int]) -> None:
    code = (
        "import contextlib, io, sys; from wts.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main(['bench', '{bench}', '--help'])\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    assert run_python(code) == 0


def test_what_sglang_names_is_light_to_import(run_python: Callable[[str], int]) -> None:
    heavy = "('torch', 'numpy', 'sglang')"
    code = "import sys; import wts.engines.sglang.plugin; "
    code += f"sys.exit(any(m in sys.modules for m in {heavy}))"
    assert run_python(code) == 0


def test_public_names_are_the_promised_ones() -> None:
    assert sorted(wts.__all__) == [
        "DominoHead",
        "GatedHead",
        "MarkovHead",
        "Noise",
        "ResidencyPlan",
        "ResidentPlan",
        "RnnHead",
        "WalkError",
        "Walker",
        "plan_residency",
        "plan_walk",
    ]
    assert set(wts.__all__) <= set(dir(wts))


@pytest.mark.parametrize("name", wts.__all__)
def test_public_names_resolve(name: str) -> None:
    older = {"ResidencyPlan": "ResidentPlan", "plan_residency": "plan_walk"}
    assert getattr(wts, name).__name__ == older.get(name, name)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Wlaker'"):
        _ = wts.Wlaker

"""The command line: wts demo | plan | walk | fidelity | doctor | bench | plot.

Results go to standard output, progress and errors to standard error. An error that names its cause
(`WalkError`) is one line and exit status 2.

Each command is a module of this room, with `configure` for its options and `run` for what it does;
the benchmarks have a `main` of their own. Only the one that is named is imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module, metadata
from types import MappingProxyType

from wts.errors import WalkError

__all__ = ["main", "parse"]

_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "demo": "the main job on whatever this machine has",
        "plan": "show which weights live where",
        "walk": "draft a block, print its tokens as JSON",
        "fidelity": "what int8 does to a head, its logits and its tokens, as JSON",
        "doctor": "say what this machine can run, and why not",
        "bench": "measure: head, all, serving, table",
        "plot": "draw what was measured, as SVG and PNG",
    }
)

# These parse their options themselves.
_BENCHES: Mapping[str, str] = MappingProxyType(
    {
        "head": "walks of a head beside step-wise execution, compared and then timed",
        "all": "everything that figures need of one GPU, in stages, resumable",
        "serving": "rounds of an SGLang server, with and without walks",
    }
)
_TABLE = "the README's table of a results file"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; those of the process by default.

    Returns:
        Exit status: 0; 1 where a check failed; 2 for an error that names its cause.
    """
    args = parse(sys.argv[1:] if argv is None else argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        code = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has what they wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except WalkError as error:
        print(f"wts {args.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse arguments; those of a benchmark are left to it.

    Args:
        argv: arguments without the program's name.

    Returns:
        What the command that is named asks for; `run` is what it does.
    """
    parser = argparse.ArgumentParser(
        prog="wts",
        description="Weights That Stay: a drafter's serial head walked in one GPU launch. Every "
        "command has --help; demo, doctor, plan, walk with --backend emulator, fidelity and plot "
        "need no GPU.",
    )
    parser.add_argument("--version", action="version", version=f"wts {_version()}")
    parser.set_defaults(run=_list_commands(parser))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    named = [word for word in argv if not word.startswith("-")]
    for command, meant in _COMMANDS.items():
        own = commands.add_parser(command, help=meant)
        if command == "bench":
            _add_benches(own, named[:2])
        elif named[:1] == [command]:
            _add_options(own, command)
    return parser.parse_args(argv)


def _add_options(parser: argparse.ArgumentParser, module: str) -> None:
    """Let a command's module say its options, and what it does."""
    command = import_module(f"{__name__}.{module}")
    command.configure(parser)
    parser.set_defaults(run=command.run)


def _add_benches(parser: argparse.ArgumentParser, named: Sequence[str]) -> None:
    parser.set_defaults(run=_list_commands(parser))
    benches = parser.add_subparsers(dest="what", metavar="WHAT")
    for what, meant in _BENCHES.items():
        # Options are the benchmark's own, which parses them: nothing here is an option's prefix.
        own = benches.add_parser(what, help=meant, add_help=False, prefix_chars="\0")
        own.add_argument("options", nargs="*")
        own.set_defaults(run=_bench)
    table = benches.add_parser("table", help=_TABLE)
    if named == ["bench", "table"]:
        _add_options(table, "bench_table")


def _bench(args: argparse.Namespace) -> int:
    main_of: Callable[[Sequence[str]], int] = import_module(f"{__name__}.bench_{args.what}").main
    return main_of(args.options)


def _list_commands(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """What a command without its subcommand does: it shows them, as misuse."""

    def show(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    return show


def _version() -> str:
    try:
        return metadata.version("weights-that-stay")
    except metadata.PackageNotFoundError:
        return "(not installed)"

"""What the serving benchmark serves: models, arguments of the engine and requests."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wts.bench import serving_greedy
from wts.bench.geometry import (
    DRAFTERS,
    GEOMETRIES,
    Drafter,
    head_of,
    steps_of,
    write_drafter,
    write_target,
)
from wts.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["Setting", "make"]

# Random prompts keep away from the ends of a vocabulary, where special tokens are.
_PROMPT_MARGIN = 1024
# What a request may take of an engine's cache beyond its tokens: drafted blocks, ends of pages.
_TOKENS_TO_SPARE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that the points of a run share; another setting is another run.

    Args:
        model: the target, in words, with what its weights are.
        draft: the drafter, in words, with what its weights are.
        drafter: its kind.
        vocab: V of its head.
        rank: r of its head.
        block: tokens of a block.
        inputs: "random" or "recorded", as in records.
        accept: "simulated", "random" (a verifier of random weights), "checkpoint" or "trained".
        accept_length: simulated tokens a round; 0 where the verifier decides.
        greedy_only: whether engines can serve greedy requests only; see `serving_greedy`.
        engine: arguments of `sglang.Engine`.
        prompts: tokens of each request.
        short: tokens to generate in short runs.
        long: tokens to generate in long runs.
        repeats: measurements of a point in a start, a run of either length each.
    """

    model: str
    draft: str
    drafter: Drafter
    vocab: int
    rank: int
    block: int
    inputs: str
    accept: str
    accept_length: float
    greedy_only: bool
    engine: dict[str, object]
    prompts: list[list[int]]
    short: int
    long: int
    repeats: int

    @property
    def head(self) -> str:
        """The kind of head, as records name it."""
        return head_of(self.drafter)

    @property
    def steps(self) -> int:
        """K, steps of a walk."""
        return steps_of(self.drafter, self.block)

    @property
    def judges_texts(self) -> bool:
        """Whether texts can be compared: simulated acceptance commits unverified tokens."""
        return self.accept_length == 0

    def key(self, *more: object) -> str:
        """A short name of this setting and whatever else tells runs apart."""
        text = json.dumps([asdict(self), *more], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def make(args: argparse.Namespace, scratch: Path, *, device: str | torch.device = "cpu") -> Setting:
    """Make a setting of parsed options; writes the folders of models that have none.

    Args:
        args: of `wts bench serving`.
        scratch: where those folders go, and stay for later runs.
        device: where random weights are drawn.

    Raises:
        InputError: options that do not fit each other, or prompts that cannot be read.
        CheckpointError: a drafter's folder that cannot be read.
    """
    if (args.target is None) != (args.draft is None):
        raise InputError.mismatch(
            "target, draft",
            wanted="both or neither: a drafter belongs to its target",
            found="only one of them",
            fix="pass both folders, or none to serve random weights",
        )
    served = _random_models(args, scratch, device) if args.target is None else _given_models(args)
    most = max(args.concurrency)
    prompts = (
        _random_prompts(served.vocab, most, args.prompt_tokens, args.seed)
        if args.prompts is None
        else _read_prompts(args.prompts, args.target)[:most]
    )
    if len(prompts) < most:
        raise InputError.mismatch(
            "prompts",
            wanted=f"{most}, one for each request of the largest concurrency",
            found=f"{len(prompts)} in {args.prompts}",
            fix="pass more prompts, or a smaller --concurrency",
        )
    serving_greedy.check_temperatures(served.drafter, args.temperature)
    greedy_only = serving_greedy.is_needed(served.drafter)
    short, long = args.tokens
    return Setting(
        model=served.model,
        draft=f"{served.draft}, {serving_greedy.NOTE}" if greedy_only else served.draft,
        drafter=served.drafter,
        vocab=served.vocab,
        rank=served.rank,
        block=served.block,
        inputs="random" if args.target is None else "recorded",
        accept=served.accept,
        accept_length=served.accept_length,
        greedy_only=greedy_only,
        engine=_engine(served, most, max(map(len, prompts)), args),
        prompts=prompts,
        short=short,
        long=long,
        repeats=args.repeats,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    target_folder: Path
    draft_folder: Path
    model: str
    draft: str
    drafter: Drafter
    vocab: int
    rank: int
    block: int
    accept: str
    accept_length: float

    @property
    def is_random(self) -> bool:
        return self.accept in ("simulated", "random")


def _random_models(args: argparse.Namespace, scratch: Path, device: str | torch.device) -> _Served:
    drafter: Drafter = args.drafter
    geometry = GEOMETRIES[args.model]
    most = args.block if drafter == "domino" else args.block + 1
    if args.accept_length != 0 and not 1 <= args.accept_length <= most:
        raise InputError.mismatch(
            "accept-length",
            wanted=f"1..{most} for a block of {args.block}, or 0 to let the verifier decide",
            found=args.accept_length,
            fix="pass a length that a round can have",
        )
    folder = scratch / f"{args.model}-{drafter}-block{args.block}-rank{args.rank}-seed{args.seed}"
    return _Served(
        target_folder=write_target(scratch / args.model, geometry),
        draft_folder=write_drafter(
            folder,
            geometry,
            drafter,
            block=args.block,
            rank=args.rank,
            seed=args.seed,
            device=device,
        ),
        model=f"{args.model} geometry, dummy weights",
        draft=f"{drafter}, block {args.block}, {geometry.draft_layers} layers, random weights",
        drafter=drafter,
        vocab=geometry.vocab,
        rank=args.rank,
        block=args.block,
        accept="simulated" if args.accept_length else "random",
        accept_length=args.accept_length,
    )


def _given_models(args: argparse.Namespace) -> _Served:
    from wts.heads.config import read_config

    config = read_config(args.draft)
    rank = config.markov_rank if config.domino is None else config.domino.emb_dim
    if config.block_size is None or rank is None:
        raise InputError.mismatch(
            f"{args.draft / 'config.json'}",
            wanted="block_size, and the rank of the head",
            found=f"block_size {config.block_size}, rank {rank}",
            fix="add them to the drafter's config",
        )
    kinds: dict[str, Drafter] = {head_of(drafter): drafter for drafter in DRAFTERS}
    kind = {"vanilla": "markov"}.get(config.markov_head_type, config.markov_head_type)
    drafter = kinds["domino" if config.domino is not None else kind]
    return _Served(
        target_folder=args.target,
        draft_folder=args.draft,
        model=args.target.resolve().name,
        draft=args.draft.resolve().name,
        drafter=drafter,
        vocab=config.draft_vocab_size,
        rank=rank,
        block=config.block_size,
        accept=args.accept,
        accept_length=0.0,
    )


def engine_arguments(
    target: Path,
    draft: Path,
    *,
    domino: bool,
    requests: int,
    seed: int,
    longest: int | None = None,
) -> dict[str, object]:
    """Arguments of `sglang.Engine` for a drafter of either algorithm.

    Only kernels of triton and torch, which every machine has.

    Args:
        target: checkpoint folder.
        draft: checkpoint folder of its drafter.
        domino: whether that has a Domino head, which then drafts from the whole vocabulary.
        requests: served at once.
        seed: of the engine.
        longest: tokens of a request with its prompt, for an engine that shares the GPU with others:
            it sizes its cache by the memory that is free, which they take meanwhile; and it sleeps
            while they are measured, where it would poll for requests. None: an engine alone.
    """
    arguments: dict[str, object] = {
        "model_path": str(target),
        "speculative_draft_model_path": str(draft),
        "speculative_algorithm": "DFLASH" if domino else "DSPARK",
        "skip_tokenizer_init": True,
        "attention_backend": "triton",
        "speculative_draft_attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "cuda_graph_backend_prefill": "disabled",
        "cuda_graph_max_bs_decode": requests,
        "max_running_requests": requests,
        "mem_fraction_static": 0.5,
        "log_level": "info",  # its log proves the path
        "disable_radix_cache": True,
        "random_seed": seed,
    }
    if domino:
        arguments["speculative_domino_candidate_pool_size"] = 0
    if longest is not None:
        arguments["max_total_tokens"] = requests * (longest + _TOKENS_TO_SPARE)
        arguments["mem_fraction_static"] = 0.85
        arguments["sleep_on_idle"] = True
    return arguments


def _engine(
    served: _Served, most: int, longest_prompt: int, args: argparse.Namespace
) -> dict[str, object]:
    arguments = engine_arguments(
        served.target_folder,
        served.draft_folder,
        domino=served.drafter == "domino",
        requests=most,
        seed=args.seed,
        longest=longest_prompt + max(args.tokens) if args.together else None,
    )
    arguments |= {
        "load_format": "dummy" if served.is_random else "auto",
        "speculative_draft_load_format": "auto",
        "dtype": "bfloat16",
    }
    return arguments | dict(args.engine)


def _random_prompts(vocab: int, num: int, length: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    margin = min(_PROMPT_MARGIN, vocab // 4)
    return [[draw.randrange(margin, vocab - margin) for _ in range(length)] for _ in range(num)]


def _read_prompts(path: Path, target: Path) -> list[list[int]]:
    """Read JSON lines: a list of tokens, or an object with `tokens`, `text` or `prompt`."""
    try:
        lines = [
            json.loads(line)
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.strip()
        ]
    except (OSError, json.JSONDecodeError) as error:
        raise InputError.mismatch(
            "prompts", wanted="a readable file of JSON lines", found=str(error), fix="correct it"
        ) from error
    prompts: list[list[int]] = []
    texts: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        value = line
        if isinstance(line, dict):
            value = next(
                (line[name] for name in ("tokens", "text", "prompt") if name in line), None
            )
        if isinstance(value, str):
            texts[len(prompts)] = value
            prompts.append([])
        elif isinstance(value, list) and value and all(type(token) is int for token in value):
            prompts.append(value)
        else:
            raise InputError.mismatch(
                f"{path}, line {number}",
                wanted="a list of tokens, or an object with tokens, text or prompt",
                found=json.dumps(line)[:60],
                fix="correct the line",
            )
    for place, tokens in zip(texts, _tokenise(list(texts.values()), target), strict=True):
        prompts[place] = tokens
    return prompts


def _tokenise(texts: Sequence[str], target: Path) -> list[list[int]]:
    if not texts:
        return []
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise InputError.mismatch(
            "prompts",
            wanted="transformers, to make tokens of texts",
            found=str(error),
            fix="install it, or pass tokens",
        ) from error
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(target))
    return [list(tokenizer(text)["input_ids"]) for text in texts]

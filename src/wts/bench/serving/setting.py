"""What the serving benchmark serves: models, arguments of the engine and requests."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wts.bench.serving import greedy_only
from wts.bench.serving.models import (
    DRAFTERS,
    GEOMETRIES,
    Drafter,
    head_of,
    steps_of,
    write_drafter,
    write_target,
)
from wts.bench.serving.prompts import random_prompts, read_prompts
from wts.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["Setting", "Wanted", "engine_arguments", "make"]

# What a request may take of an engine's cache beyond its tokens: drafted blocks, ends of pages.
_TOKENS_TO_SPARE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be served, as the options of `wts bench serving` say it.

    Args:
        target: a target model's folder; None: one of random weights, as its drafter is.
        draft: its drafter's.
        accept: what these are: "checkpoint" or "trained".
        model: geometry of a random target.
        drafter: kind of a random drafter.
        block: tokens of its blocks.
        rank: r of its head.
        accept_length: simulated tokens a round of random models; 0: what the verifier accepts.
        prompts: file of prompts; None: random ones.
        prompt_tokens: of a random prompt.
        concurrency: requests at a time, of each point.
        temperature: of each point.
        tokens: to generate in short and in long runs.
        repeats: measurements of a point in a start.
        together: whether starts of all paths get ready side by side.
        seed: of weights, prompts and the engine.
        engine: more arguments of `sglang.Engine`, by name.
    """

    target: Path | None
    draft: Path | None
    accept: str
    model: str
    drafter: Drafter
    block: int
    rank: int
    accept_length: float
    prompts: Path | None
    prompt_tokens: int
    concurrency: tuple[int, ...]
    temperature: tuple[float, ...]
    tokens: tuple[int, int]
    repeats: int
    together: bool
    seed: int
    engine: tuple[tuple[str, object], ...]


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
        greedy_only: whether engines can serve greedy requests only; see the module `greedy_only`.
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


def make(wanted: Wanted, scratch: Path, *, device: str | torch.device = "cpu") -> Setting:
    """Make a setting; writes the folders of models that have none.

    Args:
        wanted: what is to be served.
        scratch: where those folders go, and stay for later runs.
        device: where random weights are drawn.

    Raises:
        InputError: options that do not fit each other, or prompts that cannot be read.
        CheckpointError: a drafter's folder that cannot be read.
    """
    target, draft = wanted.target, wanted.draft
    if target is not None and draft is not None:
        served = _given_models(target, draft, wanted.accept)
    elif target is None and draft is None:
        served = _random_models(wanted, scratch, device)
    else:
        raise InputError.mismatch(
            "target, draft",
            wanted="both or neither: a drafter belongs to its target",
            found="only one of them",
            fix="pass both folders, or none to serve random weights",
        )
    most = max(wanted.concurrency)
    prompts = (
        random_prompts(served.vocab, most, wanted.prompt_tokens, wanted.seed)
        if wanted.prompts is None
        else read_prompts(wanted.prompts, served.target_folder)[:most]
    )
    if len(prompts) < most:
        raise InputError.mismatch(
            "prompts",
            wanted=f"{most}, one for each request of the largest concurrency",
            found=f"{len(prompts)} in {wanted.prompts}",
            fix="pass more prompts, or a smaller --concurrency",
        )
    greedy_only.check_temperatures(served.drafter, wanted.temperature)
    greedily = greedy_only.is_needed(served.drafter)
    short, long = wanted.tokens
    return Setting(
        model=served.model,
        draft=f"{served.draft}, {greedy_only.NOTE}" if greedily else served.draft,
        drafter=served.drafter,
        vocab=served.vocab,
        rank=served.rank,
        block=served.block,
        inputs="random" if target is None else "recorded",
        accept=served.accept,
        accept_length=served.accept_length,
        greedy_only=greedily,
        engine=_engine(served, most, max(map(len, prompts)), wanted),
        prompts=prompts,
        short=short,
        long=long,
        repeats=wanted.repeats,
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


def _random_models(wanted: Wanted, scratch: Path, device: str | torch.device) -> _Served:
    drafter, geometry = wanted.drafter, GEOMETRIES[wanted.model]
    most = wanted.block if drafter == "domino" else wanted.block + 1
    if wanted.accept_length != 0 and not 1 <= wanted.accept_length <= most:
        raise InputError.mismatch(
            "accept-length",
            wanted=f"1..{most} for a block of {wanted.block}, or 0 to let the verifier decide",
            found=wanted.accept_length,
            fix="pass a length that a round can have",
        )
    sizes = f"block{wanted.block}-rank{wanted.rank}-seed{wanted.seed}"
    folder = scratch / f"{wanted.model}-{drafter}-{sizes}"
    return _Served(
        target_folder=write_target(scratch / wanted.model, geometry),
        draft_folder=write_drafter(
            folder,
            geometry,
            drafter,
            block=wanted.block,
            rank=wanted.rank,
            seed=wanted.seed,
            device=device,
        ),
        model=f"{wanted.model} geometry, dummy weights",
        draft=f"{drafter}, block {wanted.block}, {geometry.draft_layers} layers, random weights",
        drafter=drafter,
        vocab=geometry.vocab,
        rank=wanted.rank,
        block=wanted.block,
        accept="simulated" if wanted.accept_length else "random",
        accept_length=wanted.accept_length,
    )


def _given_models(target: Path, draft: Path, accept: str) -> _Served:
    from wts.heads.config import read_config

    config = read_config(draft)
    rank = config.markov_rank if config.domino is None else config.domino.emb_dim
    if config.block_size is None or rank is None:
        raise InputError.mismatch(
            f"{draft / 'config.json'}",
            wanted="block_size, and the rank of the head",
            found=f"block_size {config.block_size}, rank {rank}",
            fix="add them to the drafter's config",
        )
    kinds: dict[str, Drafter] = {head_of(drafter): drafter for drafter in DRAFTERS}
    kind = {"vanilla": "markov"}.get(config.markov_head_type, config.markov_head_type)
    drafter = kinds["domino" if config.domino is not None else kind]
    return _Served(
        target_folder=target,
        draft_folder=draft,
        model=target.resolve().name,
        draft=draft.resolve().name,
        drafter=drafter,
        vocab=config.draft_vocab_size,
        rank=rank,
        block=config.block_size,
        accept=accept,
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


def _engine(served: _Served, most: int, longest_prompt: int, wanted: Wanted) -> dict[str, object]:
    arguments = engine_arguments(
        served.target_folder,
        served.draft_folder,
        domino=served.drafter == "domino",
        requests=most,
        seed=wanted.seed,
        longest=longest_prompt + max(wanted.tokens) if wanted.together else None,
    )
    arguments |= {
        "load_format": "dummy" if served.is_random else "auto",
        "speculative_draft_load_format": "auto",
        "dtype": "bfloat16",
    }
    return arguments | dict(wanted.engine)

"""SGLang's draft of a block, in its own functions over its own modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import torch

from wts.bench.baselines.inputs import WalkInputs
from wts.bench.record import installed_version
from wts.errors import DeviceError, InputError, describe
from wts.heads.domino import DominoHead
from wts.numerics.limits import LEAST_TEMPERATURE

__all__ = ["SGLANG_VERSION", "Sglang", "load_sglang", "sglang", "sglang_domino", "sglang_greedy"]

SGLANG_VERSION = "0.5.23"
"""The only SGLang whose step functions are known to be the ones described here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sglang:
    """The pieces of SGLang that draft a block, as it exports them."""

    version: str
    draft_markov_block: Callable[..., Any]
    draft_noise: Callable[..., Any]
    vanilla_markov: Callable[..., Any]
    gated_markov: Callable[..., Any]
    rnn: Callable[..., Any]
    domino_rollout: Callable[..., Any]
    tp_sync: Callable[..., Any]


def load_sglang() -> Sglang:
    """Import SGLang's draft functions.

    Raises:
        DeviceError: SGLang is not installed, is another version, or does not import here; the
            message says which.
    """
    version = installed_version("sglang")
    if version != SGLANG_VERSION:
        raise DeviceError.mismatch(
            "sglang",
            wanted=f"SGLang {SGLANG_VERSION}",
            found="none installed" if version is None else f"SGLang {version}",
            fix="put that version on PYTHONPATH, or compare with step_torch alone",
        )
    try:
        draft = importlib.import_module("sglang.srt.speculative.dspark_components.dspark_draft")
        models = importlib.import_module("sglang.srt.models.dspark")
        domino = importlib.import_module("sglang.srt.speculative.domino_utils")
        sync = importlib.import_module("sglang.srt.speculative.spec_tp_sync")
        return Sglang(
            version=version,
            draft_markov_block=draft.draft_markov_block,
            draft_noise=draft.DraftNoise,
            vanilla_markov=models.VanillaMarkov,
            gated_markov=models.GatedMarkovHead,
            rnn=models.RNNHead,
            domino_rollout=domino.domino_greedy_rollout,
            tp_sync=sync.SpecTpSync,
        )
    except Exception as error:
        # Its import pulls in most of a serving engine, and any part of that can be what is missing.
        raise DeviceError.mismatch(
            "sglang",
            wanted=f"draft functions of SGLang {version} that import",
            found=f"{type(error).__name__}: {error}",
            fix="install what it misses, or compare with step_torch alone",
        ) from error


# By kind of head: the piece that is its module, and what its own linear's name begins with.
_MODULES: Mapping[str, tuple[str, str | None]] = MappingProxyType(
    {
        "markov": ("vanilla_markov", None),
        "gated": ("gated_markov", "gate"),
        "rnn": ("rnn", "joint"),
    }
)


def sglang(inputs: WalkInputs, *, library: Sglang) -> Callable[[], torch.Tensor]:
    """SGLang's default draft of a block, in its own functions.

    This is `draft_markov_block` over a `VanillaMarkov`, `GatedMarkovHead` or `RNNHead` module that
    holds our weights, as `DsparkDraftSampler._markov_block` calls it inside the draft CUDA graph on
    one GPU with the default setting (SGLANG_DSPARK_USE_GREEDY_DRAFT off): step logits are kept at
    every temperature, and temperatures are read on the GPU. A step of a Markov head is four
    launches: the embedding `markov_w1`, cuBLAS for the linear `markov_w2`, and the partial and the
    finish kernel of `MarkovSampleStep`; a block adds a stack and the advance of the noise offset.
    What the sampler does around it (the base logits, the copy into its output buffer) is left out.

    Args:
        inputs: logits_out and noise_offset are needed, also for a greedy walk.
        library: from `load_sglang`.
    """
    return _sglang_block(inputs, library=library, greedy_draft=False)


def sglang_greedy(inputs: WalkInputs, *, library: Sglang) -> Callable[[], torch.Tensor]:
    """SGLang's fused greedy kernel, which it uses for one greedy row whose logits nobody keeps.

    The same `draft_markov_block` with greedy_draft on (SGLANG_DSPARK_USE_GREEDY_DRAFT=1). A step
    is three launches: the embedding, then the partial and the combine kernel of `MarkovGreedyStep`.
    Its sums are not rounded to bf16, so near-ties can fall otherwise than in the default path.

    Raises:
        InputError: more than one row, or a sampled walk: SGLang takes its default kernels there.
    """
    if inputs.batch != 1 or inputs.temperatures is not None or inputs.hidden is not None:
        raise InputError.mismatch(
            "inputs",
            wanted="one greedy row of a Markov head",
            found=f"{inputs.batch} rows, {'greedy' if inputs.temperatures is None else 'sampled'}"
            + ("" if inputs.hidden is None else ", with hidden states"),
            fix="time this path at B = 1 and T = 0 only",
        )
    return _sglang_block(inputs, library=library, greedy_draft=True)


def _sglang_block(
    inputs: WalkInputs, *, library: Sglang, greedy_draft: bool
) -> Callable[[], torch.Tensor]:
    device = inputs.base_logits.device
    _check_one_vocabulary(inputs)
    if inputs.noise_offset is None or (inputs.logits_out is None and not greedy_draft):
        raise InputError.mismatch(
            "noise_offset, logits_out",
            wanted="both, at every temperature",
            found="None",
            fix="pass an int64[1] counter and a buffer shaped like base_logits",
        )
    head = _module_of(inputs.head, library)
    noise = library.draft_noise(key=inputs.noise_key, offset=inputs.noise_offset)
    # With one rank it syncs nothing, so a stand-in for its group is all that it asks of.
    tp_sync = library.tp_sync(SimpleNamespace(world_size=1, rank_in_group=0))
    temperatures = (
        torch.zeros(inputs.batch, dtype=torch.float32, device=device)
        if inputs.temperatures is None
        else inputs.temperatures.clamp(min=LEAST_TEMPERATURE)
    )
    logits_out = None if greedy_draft else inputs.logits_out
    base_logits, anchor = inputs.base_logits, inputs.anchor

    @torch.no_grad()
    def walk() -> torch.Tensor:
        tokens, _ = library.draft_markov_block(
            markov_head=head,
            base_logits=base_logits,
            anchor_tokens=anchor,
            draft_hidden=inputs.hidden,
            step_temperatures=temperatures,
            noise=noise,
            tp_sync=tp_sync,
            logits_out=logits_out,
            greedy_draft=greedy_draft,
        )
        assert isinstance(tokens, torch.Tensor)
        return tokens

    return walk


def _check_one_vocabulary(inputs: WalkInputs) -> None:
    """Refuse what SGLang's modules cannot hold: their table and projection have the same rows."""
    rows = inputs.projection.shape[0]
    if inputs.table.shape[0] != rows:
        raise InputError.mismatch(
            "table",
            wanted=f"{rows} rows, as projection: this module has one vocabulary",
            found=describe(inputs.table),
            fix="time reduced vocabularies without this path",
        )


def _module_of(head: Any, library: Sglang) -> Any:
    """SGLang's module of a DSpark head, with our weights.

    Parameters are put in by hand: the module's own initialisation would draw 2 V r fp32 numbers.
    """
    sizes = {"vocab_size": head.projection.shape[0], "markov_rank": head.projection.shape[1]}
    module_of, part = _MODULES[head.kind]
    if part is not None:
        sizes["hidden_size"] = head.hidden_size
    with torch.device("meta"):
        module = getattr(library, module_of)(**sizes)
    module.markov_w1.weight = _parameter(head.table)
    module.markov_w2.weight = _parameter(head.projection)
    if part is not None:
        linear = getattr(module, f"{part}_proj")
        linear.weight = _parameter(getattr(head, f"{part}_weight"))
        linear.bias = _parameter(getattr(head, f"{part}_bias"))
    return module


def _parameter(weight: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(weight, requires_grad=False)


def sglang_domino(inputs: WalkInputs, *, library: Sglang) -> Callable[[], torch.Tensor]:
    """SGLang's Domino rollout over the full vocabulary, in its own function.

    This is `domino_greedy_rollout` with candidate_pool_size = 0 on one GPU, over modules built as
    `DFlashDraftModel` builds them. It begins with the base logits of all steps, the product that
    `lm_head_product` is alone. The hidden position that its labels leave out is zeros.

    Args:
        inputs: hidden and lm_head are needed.
        library: from `load_sglang`.

    Raises:
        InputError: a sampled walk, which SGLang has none of, another head, or no lm_head.
    """
    head, hidden, lm_head = _domino_parts(inputs)
    _check_one_vocabulary(inputs)
    left_out = hidden.new_zeros(inputs.batch, 1, head.hidden_size)
    block = torch.cat([hidden, left_out] if head.shift_label else [left_out, hidden], 1)
    embedding, projector, gru = _domino_modules(head, hidden.dtype)
    rows = head.projection.shape[0]
    anchor, shift_label = inputs.anchor, head.shift_label

    @torch.no_grad()
    def walk() -> torch.Tensor:
        tokens = library.domino_rollout(
            draft_hidden=block,
            bonus_tokens=anchor,
            target_embedding=embedding,
            lm_head_weight=lm_head,
            prefix_gru=gru,
            embed_proj=projector,
            vocab_size=rows,
            shift_label=shift_label,
            candidate_pool_size=0,
            in_cuda_graph=True,
        )
        assert isinstance(tokens, torch.Tensor)
        return tokens

    return walk


def _domino_parts(inputs: WalkInputs) -> tuple[DominoHead, torch.Tensor, torch.Tensor]:
    """Head, hidden states and lm_head of a walk that SGLang's rollout can make.

    Raises:
        InputError: it cannot.
    """
    head, hidden, lm_head = inputs.head, inputs.hidden, inputs.lm_head
    greedy = inputs.temperatures is None
    if head.kind != "domino" or not greedy or hidden is None or lm_head is None:
        raise InputError.mismatch(
            "inputs",
            wanted="a greedy walk of a Domino head with hidden states and lm_head",
            found=f"a {'greedy' if greedy else 'sampled'} walk of a "
            f"{type(head).__name__}{'' if lm_head is not None else ' without lm_head'}",
            fix="time this path at T = 0 only",
        )
    return cast("DominoHead", head), hidden, lm_head


def _domino_modules(
    head: DominoHead, dtype: torch.dtype
) -> tuple[torch.nn.Embedding, torch.nn.Sequential, torch.nn.GRU]:
    """Embedding, projector and GRU as `DFlashDraftModel` builds them, with our weights."""
    rows, rank = head.projection.shape
    size, width, device = head.state_size, head.hidden_size, head.table.device
    with torch.device("meta"):
        embedding = torch.nn.Embedding(head.table_rows, width)
        projector = torch.nn.Sequential(
            torch.nn.Linear(width + size, rank, bias=False),
            torch.nn.SiLU(),
            torch.nn.Linear(rank, rows, bias=False),
        )
    embedding.weight = _parameter(head.table)
    for index, weight in ((0, head.projector_weight), (2, head.projection)):
        linear = projector[index]
        assert isinstance(linear, torch.nn.Linear)
        linear.weight = _parameter(weight)
    # Its weights are copied, not put in: cuDNN wants them in memory of its own.
    gru = torch.nn.GRU(width, size, batch_first=True, bias=False, device=device, dtype=dtype)
    gru.requires_grad_(False)
    for name, weight in (("ih", head.gru_input_weight), ("hh", head.gru_state_weight)):
        gru.get_parameter(f"weight_{name}_l0").copy_(weight)
    return embedding, projector, gru

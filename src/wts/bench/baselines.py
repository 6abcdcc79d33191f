"""The step-wise paths that a walk is compared with, each as a call that a CUDA graph can capture.

Every factory takes the weights and the inputs of one walk and returns a call without arguments that
launches the K steps on the current stream and returns the tokens, int64 [B, K].
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from wts.bench.record import installed_version
from wts.errors import DeviceError, InputError, describe
from wts.noise import LEAST_TEMPERATURE

__all__ = [
    "SGLANG_VERSION",
    "Sglang",
    "WalkInputs",
    "load_sglang",
    "sglang",
    "sglang_greedy",
    "step_torch",
]

SGLANG_VERSION = "0.5.23"
"""The only SGLang whose step functions are known to be the ones described here."""

# Half a unit of a 32-bit uniform: keeps a drawn 0 away from the logarithm of 0.
_LEAST_UNIFORM = 2.0**-33


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkInputs:
    """One walk of a Markov head, on any device.

    Args:
        table: E, [V_table, r].
        projection: W, [V, r].
        base_logits: [B, K, V]; a last dimension without gaps.
        anchor: int64 [B], inside the table.
        temperatures: fp32 [B], all above 0; None for a greedy walk.
        noise_key: 63-bit key of the sampled noise.
        noise_offset: int64 [1], a counter that each sampled walk advances by one.
        logits_out: [B, K, V], where step logits are written by the paths that keep them.

    Raises:
        InputError: shapes that do not fit each other, or an anchor outside the table.
    """

    table: torch.Tensor
    projection: torch.Tensor
    base_logits: torch.Tensor
    anchor: torch.Tensor
    temperatures: torch.Tensor | None = None
    noise_key: int = 0
    noise_offset: torch.Tensor | None = None
    logits_out: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.base_logits.ndim != 3 or self.base_logits.shape[2] != self.projection.shape[0]:
            raise InputError.mismatch(
                "base_logits",
                wanted=f"[B, K, {self.projection.shape[0]}], one column per row of projection",
                found=describe(self.base_logits),
                fix="draw them for this head",
            )
        if self.anchor.dtype != torch.int64 or self.anchor.shape != (self.batch,):
            raise InputError.mismatch(
                "anchor",
                wanted=f"int64[{self.batch}]",
                found=describe(self.anchor),
                fix="pass the token before the first step of each row",
            )
        # The steps look rows up unchecked, as an engine does with tokens it has drawn itself.
        if bool(((self.anchor < 0) | (self.anchor >= self.table.shape[0])).any()):
            raise InputError.mismatch(
                "anchor",
                wanted=f"tokens in 0..{self.table.shape[0] - 1}",
                found=f"{int(self.anchor.min())}..{int(self.anchor.max())}",
                fix="pass tokens of this vocabulary",
            )
        if self.temperatures is not None and not bool((self.temperatures > 0).all()):
            raise InputError.mismatch(
                "temperatures",
                wanted="all above 0, or None for a greedy walk",
                found=f"a least of {float(self.temperatures.min())}",
                fix="time greedy and sampled walks apart",
            )

    @property
    def batch(self) -> int:
        """B, requests walked together."""
        return self.base_logits.shape[0]

    @property
    def steps(self) -> int:
        """K, steps of the walk."""
        return self.base_logits.shape[1]


def step_torch(inputs: WalkInputs) -> Callable[[], torch.Tensor]:
    """Plain torch, one step after the other: embedding, linear in the weights' dtype, add, argmax.

    Greedy, these are the formulas of the bf16 head to the letter. Sampled, the key is
    x / T - ln(-log1p(-u)) with u from torch's own generator: the same work, but not the Philox
    stream of the contract, so sampled tokens of this path can be compared with nobody's. Step
    logits are not kept.

    Args:
        inputs: noise and logits_out are not used.
    """
    table, projection = inputs.table, inputs.projection
    base_logits, anchor = inputs.base_logits, inputs.anchor
    steps = inputs.steps
    divisor = (
        None
        if inputs.temperatures is None
        else inputs.temperatures.clamp(min=LEAST_TEMPERATURE)[:, None]
    )

    @torch.no_grad()
    def walk() -> torch.Tensor:
        token = anchor
        tokens = []
        for step in range(steps):
            latent = functional.embedding(token, table)
            keys = base_logits[:, step] + functional.linear(latent, projection)
            if divisor is not None:
                uniform = torch.rand_like(keys, dtype=torch.float32).add_(_LEAST_UNIFORM)
                keys = keys / divisor - torch.log(-torch.log1p(-uniform))
            token = keys.argmax(dim=-1)
            tokens.append(token)
        return torch.stack(tokens, dim=1)

    return walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Sglang:
    """The pieces of SGLang that draft a block with a vanilla Markov head, as it exports them."""

    version: str
    draft_markov_block: Callable[..., Any]
    draft_noise: Callable[..., Any]
    vanilla_markov: Callable[..., Any]
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
        sync = importlib.import_module("sglang.srt.speculative.spec_tp_sync")
        return Sglang(
            version=version,
            draft_markov_block=draft.draft_markov_block,
            draft_noise=draft.DraftNoise,
            vanilla_markov=models.VanillaMarkov,
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


def sglang(inputs: WalkInputs, *, library: Sglang) -> Callable[[], torch.Tensor]:
    """SGLang's default draft of a block, in its own functions.

    This is `draft_markov_block` over a `VanillaMarkov` module that holds our weights, as
    `DsparkDraftSampler._markov_block` calls it inside the draft CUDA graph on one GPU with the
    default setting (SGLANG_DSPARK_USE_GREEDY_DRAFT off): step logits are kept at every temperature,
    and temperatures are read on the GPU. A step is four launches: the embedding `markov_w1`, cuBLAS
    for the linear `markov_w2`, and the partial and the finish kernel of `MarkovSampleStep`; a
    block adds a stack and the advance of the noise offset. What the sampler does around it (the
    base logits, the copy into its output buffer) is left out.

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
    if inputs.batch != 1 or inputs.temperatures is not None:
        raise InputError.mismatch(
            "inputs",
            wanted="one greedy row",
            found=f"{inputs.batch} rows, {'greedy' if inputs.temperatures is None else 'sampled'}",
            fix="time this path at B = 1 and T = 0 only",
        )
    return _sglang_block(inputs, library=library, greedy_draft=True)


def _sglang_block(
    inputs: WalkInputs, *, library: Sglang, greedy_draft: bool
) -> Callable[[], torch.Tensor]:
    device = inputs.base_logits.device
    rows, rank = inputs.projection.shape
    if inputs.table.shape != inputs.projection.shape:
        raise InputError.mismatch(
            "table",
            wanted=f"[{rows}, {rank}], the shape of projection: this module has one vocabulary",
            found=describe(inputs.table),
            fix="time reduced vocabularies without this path",
        )
    if inputs.noise_offset is None or (inputs.logits_out is None and not greedy_draft):
        raise InputError.mismatch(
            "noise_offset, logits_out",
            wanted="both, at every temperature",
            found="None",
            fix="pass an int64[1] counter and a buffer shaped like base_logits",
        )
    # Parameters are put in by hand: the module's own initialisation would draw 2 V r fp32 numbers.
    with torch.device("meta"):
        head = library.vanilla_markov(vocab_size=rows, markov_rank=rank)
    head.markov_w1.weight = torch.nn.Parameter(inputs.table, requires_grad=False)
    head.markov_w2.weight = torch.nn.Parameter(inputs.projection, requires_grad=False)
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
            draft_hidden=None,
            step_temperatures=temperatures,
            noise=noise,
            tp_sync=tp_sync,
            logits_out=logits_out,
            greedy_draft=greedy_draft,
        )
        assert isinstance(tokens, torch.Tensor)
        return tokens

    return walk

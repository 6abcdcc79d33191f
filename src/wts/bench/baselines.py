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
from wts.heads.base import HeadState
from wts.heads.cells import AnyHead
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.rnn import RnnHead
from wts.numerics.limits import LEAST_TEMPERATURE

__all__ = [
    "SGLANG_VERSION",
    "Sglang",
    "WalkInputs",
    "lm_head_product",
    "load_sglang",
    "sglang",
    "sglang_domino",
    "sglang_greedy",
    "step_torch",
]

SGLANG_VERSION = "0.5.23"
"""The only SGLang whose step functions are known to be the ones described here."""

# Half a unit of a 32-bit uniform: keeps a drawn 0 away from the logarithm of 0.
_LEAST_UNIFORM = 2.0**-33


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkInputs:
    """One walk of a head, on any device.

    Args:
        head: the head, of bf16 weights.
        base_logits: [B, K, V]; a last dimension without gaps.
        anchor: int64 [B], inside the table.
        hidden: bf16 [B, K, H], for a head that reads hidden states.
        lm_head: bf16 [V, H], of which base logits are the product with hidden states; for Domino.
        temperatures: fp32 [B], all above 0; None for a greedy walk.
        noise_key: 63-bit key of the sampled noise.
        noise_offset: int64 [1], a counter that each sampled walk advances by one.
        logits_out: [B, K, V], where step logits are written by the paths that keep them.

    Raises:
        InputError: shapes that do not fit each other, or an anchor outside the table.
    """

    head: AnyHead
    base_logits: torch.Tensor
    anchor: torch.Tensor
    hidden: torch.Tensor | None = None
    lm_head: torch.Tensor | None = None
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
        size = getattr(self.head, "hidden_size", None)
        wanted = None if size is None else (self.batch, self.steps, size)
        if (None if self.hidden is None else tuple(self.hidden.shape)) != wanted:
            raise InputError.mismatch(
                "hidden",
                wanted="None" if wanted is None else list(wanted),
                found="None" if self.hidden is None else describe(self.hidden),
                fix="pass hidden states to the heads that read them, and to no other",
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
    def table(self) -> torch.Tensor:
        """E, [V_table, r]; of Domino [V_table, H]."""
        return self.head.table

    @property
    def projection(self) -> torch.Tensor:
        """W, [V, r]."""
        return self.head.projection

    @property
    def batch(self) -> int:
        """B, requests walked together."""
        return self.base_logits.shape[0]

    @property
    def steps(self) -> int:
        """K, steps of the walk."""
        return self.base_logits.shape[1]


# ---- torch -------------------------------------------------------------------------------------

_Latent = Callable[
    [HeadState, torch.Tensor, torch.Tensor | None], tuple[HeadState, torch.Tensor | None]
]
"""State, rows of the previous tokens, hidden states of the step -> state, latents (None: none)."""


def step_torch(inputs: WalkInputs) -> Callable[[], torch.Tensor]:
    """Plain torch, one step after the other: embedding, latent, linear, add, argmax, all in bf16.

    Greedy, these are the formulas of the bf16 head to the letter (the GRU of Domino is torch's own
    cell, which on a GPU rounds where they do). Sampled, the key is x / T - ln(-log1p(-u)) with u
    from torch's own generator: the same work, but not the Philox stream of the contract, so sampled
    tokens of this path can be compared with nobody's. Step logits are not kept.

    Args:
        inputs: noise, lm_head and logits_out are not used.
    """
    table, projection, hidden = inputs.table, inputs.projection, inputs.hidden
    base_logits, anchor = inputs.base_logits, inputs.anchor
    steps = inputs.steps
    latent_of, initial_state = _latent_in_torch(inputs)
    divisor = (
        None
        if inputs.temperatures is None
        else inputs.temperatures.clamp(min=LEAST_TEMPERATURE)[:, None]
    )

    @torch.no_grad()
    def walk() -> torch.Tensor:
        token, state = anchor, initial_state
        tokens = []
        for step in range(steps):
            row = functional.embedding(token, table)
            state, latent = latent_of(state, row, None if hidden is None else hidden[:, step])
            keys = base_logits[:, step]
            if latent is not None:
                keys = keys + functional.linear(latent, projection)
            if divisor is not None:
                uniform = torch.rand_like(keys, dtype=torch.float32).add_(_LEAST_UNIFORM)
                keys = keys / divisor - torch.log(-torch.log1p(-uniform))
            token = keys.argmax(dim=-1)
            tokens.append(token)
        return torch.stack(tokens, dim=1)

    return walk


def _latent_in_torch(inputs: WalkInputs) -> tuple[_Latent, HeadState]:
    """A head's latent function as few torch operations as it takes, and its first state."""
    head = inputs.head
    if isinstance(head, GatedHead):
        return _gated_in_torch(head), None
    if isinstance(head, RnnHead):
        return _rnn_in_torch(head), head.initial_state(inputs.batch)
    if isinstance(head, DominoHead):
        return _domino_in_torch(head, inputs.batch), None
    return lambda state, row, hidden: (state, row), None


def _gated_in_torch(head: GatedHead) -> _Latent:
    def latent(
        state: HeadState, row: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor]:
        assert hidden is not None
        joined = torch.cat([hidden, row], 1)
        return state, functional.linear(joined, head.gate_weight, head.gate_bias).sigmoid() * row

    return latent


def _rnn_in_torch(head: RnnHead) -> _Latent:
    def latent(
        state: HeadState, row: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor]:
        assert hidden is not None
        assert isinstance(state, torch.Tensor)
        joined = torch.cat([state, row, hidden], 1)
        parts = functional.linear(joined, head.joint_weight, head.joint_bias).chunk(3, 1)
        gate, candidate = parts[0].sigmoid(), parts[1].tanh()
        return gate * state + (1 - gate) * candidate, parts[2].tanh()

    return latent


def _domino_in_torch(head: DominoHead, batch: int) -> _Latent:
    zeros = head.table.new_zeros(batch, head.state_size)

    def latent(
        state: HeadState, row: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[HeadState, torch.Tensor | None]:
        assert hidden is not None
        before = zeros if state is None else state
        assert isinstance(before, torch.Tensor)
        after = torch.gru_cell(row, before, head.gru_input_weight, head.gru_state_weight)
        if state is None:
            return after, None
        joined = torch.cat([hidden, after], 1)
        return after, functional.silu(functional.linear(joined, head.projector_weight))

    return latent


# ---- SGLang ------------------------------------------------------------------------------------


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


def _module_of(head: AnyHead, library: Sglang) -> Any:
    """SGLang's module of a DSpark head, with our weights.

    Parameters are put in by hand: the module's own initialisation would draw 2 V r fp32 numbers.
    """
    sizes = {"vocab_size": head.projection.shape[0], "markov_rank": head.projection.shape[1]}
    with torch.device("meta"):
        if isinstance(head, GatedHead):
            module = library.gated_markov(**sizes, hidden_size=head.hidden_size)
            held = {"gate_proj": (head.gate_weight, head.gate_bias)}
        elif isinstance(head, RnnHead):
            module = library.rnn(**sizes, hidden_size=head.hidden_size)
            held = {"joint_proj": (head.joint_weight, head.joint_bias)}
        else:
            module, held = library.vanilla_markov(**sizes), {}
    module.markov_w1.weight = _parameter(head.table)
    module.markov_w2.weight = _parameter(head.projection)
    for name, (weight, bias) in held.items():
        linear = getattr(module, name)
        linear.weight, linear.bias = _parameter(weight), _parameter(bias)
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
    head, hidden, lm_head = inputs.head, inputs.hidden, inputs.lm_head
    if (
        not isinstance(head, DominoHead)
        or inputs.temperatures is not None
        or hidden is None
        or lm_head is None
    ):
        raise InputError.mismatch(
            "inputs",
            wanted="a greedy walk of a Domino head with hidden states and lm_head",
            found=f"a {'greedy' if inputs.temperatures is None else 'sampled'} walk of a "
            f"{type(head).__name__}{'' if lm_head is not None else ' without lm_head'}",
            fix="time this path at T = 0 only",
        )
    _check_one_vocabulary(inputs)
    rows, rank = head.projection.shape
    size, width, device = head.state_size, head.hidden_size, head.table.device
    left_out = hidden.new_zeros(inputs.batch, 1, width)
    block = torch.cat([hidden, left_out] if head.shift_label else [left_out, hidden], 1)
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
    gru = torch.nn.GRU(width, size, batch_first=True, bias=False, device=device, dtype=hidden.dtype)
    gru.requires_grad_(False)
    for name, weight in (("ih", head.gru_input_weight), ("hh", head.gru_state_weight)):
        gru.get_parameter(f"weight_{name}_l0").copy_(weight)
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


def lm_head_product(hidden: torch.Tensor, lm_head: torch.Tensor) -> torch.Tensor:
    """Base logits [K, B, V] of hidden states [B, K, H], as SGLang's Domino rollout makes them."""
    batch, steps, size = hidden.shape
    rows = hidden.transpose(0, 1).contiguous().view(steps * batch, size)
    return functional.linear(rows, lm_head).view(steps, batch, len(lm_head))

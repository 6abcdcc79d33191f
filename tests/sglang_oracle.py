"""SGLang itself as an oracle: its own draft sampler and Domino rollout beside walks.

A walk has int8 weights, SGLang's steps have bf16 ones, so both are compared under the bound of
numerics.md: exported logits within it, and tokens equal wherever it leaves one winner. A row is
followed as far as both drafted the same tokens before.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bounds import decided
from intervals import Interval, latent_interval, walk_bound
from sglang_draft import Buffers, Draft, module_of
from wts.bench.baselines.sglang_steps import Sglang, load_sglang
from wts.engines.sglang import events
from wts.engines.sglang.hooks import Hooks
from wts.engines.sglang.version import RELEASES
from wts.errors import DeviceError
from wts.hardware.gpu import GpuSpec
from wts.heads.base import Head, with_weights
from wts.heads.markov import MarkovHead
from wts.numerics.gumbel import philox_words
from wts.numerics.step_logits import step_logits
from wts.selection.token_race import sampled_scores
from wts.walk.backends import BackendName

# A state carries a difference of its roundings on, which the interval of one step knows nothing of.
_OF_A_STATE = 4.0
# SGLang's logarithms are the library's, ours are written out (wts.numerics.gumbel).
_OF_NOISE = 1e-4


def sglang_or_skip() -> Sglang:
    """SGLang's functions; the test is skipped where they do not import, and says why."""
    try:
        return load_sglang()
    except DeviceError as error:
        pytest.skip(str(error))


def draft_of(library: Sglang, head: Head, *, hidden_size: int, seed: int = 0) -> Draft:
    """A draft model with SGLang's own module of a head, where the head is."""
    module = module_of(
        head, vanilla=library.vanilla_markov, gated=library.gated_markov, rnn=library.rnn
    )
    return Draft(
        module,
        vocab=head.vocab,
        hidden_size=hidden_size,
        seed=seed,
        device=head.projection.device,
        scale=0.5,
    )


def one_rank(monkeypatch: pytest.MonkeyPatch, gpu: GpuSpec, backend: BackendName) -> None:
    """SGLang's samplers of one rank, asking our hook for a factory that plans for this GPU."""
    from sglang.srt.kernel_plugins.nvidia import binding
    from sglang.srt.layers import dp_attention
    from sglang.srt.speculative.dspark_components import dspark_draft_sampler as samplers

    group = SimpleNamespace(world_size=1, rank_in_group=0, cpu_group=None)
    original = binding.megakernel_draft_sampler
    hooks = Hooks(release=RELEASES[-1], backend=backend, gpu=lambda: gpu)
    if not torch.cuda.is_available():  # torch of a CPU cannot be asked, and SGLang asks
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(dp_attention, "get_dp_tp_group", lambda: group)
    monkeypatch.setattr(samplers, "get_dp_tp_group", lambda: group)
    monkeypatch.setattr(
        samplers,
        "megakernel_draft_sampler",
        lambda model: hooks.around_factory(original, model),
    )
    monkeypatch.setattr(events, "attach", lambda kept, release: None)


def sampler_of(
    library: Sglang, draft: Draft, buffers: Buffers, *, ours: bool, greedy_draft: bool = False
) -> Any:
    """SGLang's DsparkDraftSampler as its worker builds it; without our factory if not `ours`."""
    from sglang.srt.speculative.dspark_components import dspark_draft_sampler as samplers

    arguments = {
        "gamma": buffers.steps,
        "max_bs": buffers.most,
        "device": buffers.tokens.device,
        "noise": library.draft_noise(key=buffers.noise.key, offset=buffers.noise.offset),
        "greedy_draft": greedy_draft,
        "tp_sync": library.tp_sync(SimpleNamespace(world_size=1, rank_in_group=0)),
    }
    if not ours:
        return samplers.DsparkDraftSampler(model=draft, **arguments)
    made = samplers.maybe_build_draft_sampler(draft_model=draft, tp_rank=0, **arguments)
    assert made._megakernel_steps is not None, "the factory was not asked"
    assert all(made._megakernel_steps(batch) for batch in range(1, buffers.most + 1))
    return made


def input_ids(anchor: torch.Tensor, width: int, vocab: int) -> torch.Tensor:
    """The draft's input ids, whose first column are the anchors, flattened."""
    ids = torch.full((len(anchor), width), vocab - 1, dtype=torch.int64, device=anchor.device)
    ids[:, 0] = anchor
    return ids.view(-1)


def same_block(
    head: Head,
    *,
    base_logits: torch.Tensor,
    anchor: torch.Tensor,
    hidden: torch.Tensor | None,
    ours: torch.Tensor,
    theirs: torch.Tensor,
    temperatures: torch.Tensor | None = None,
    key: int = 0,
    offset: int = 0,
    our_logits: torch.Tensor | None = None,
    their_logits: torch.Tensor | None = None,
) -> float:
    """Compare a block of ours with SGLang's; gives the share of steps where the bound decided.

    Args:
        head: the head.
        base_logits: [B, K, V].
        anchor: int64 [B].
        hidden: bf16 [B, K, H], of heads that read it.
        ours: int64 [B, K].
        theirs: int64 [B, K].
        temperatures: fp32 [B]; None where all rows are greedy.
        key: of the noise.
        offset: of the noise, before the block.
        our_logits: [B, K, V], of sampled rows.
        their_logits: [B, K, V], of all rows; the formula's where SGLang keeps none.
    """
    cpu = with_weights(head, lambda weight: weight.cpu())
    base_logits, anchor, ours, theirs = (t.cpu() for t in (base_logits, anchor, ours, theirs))
    hidden = None if hidden is None else hidden.cpu()
    batch, steps, vocab = base_logits.shape
    state, previous = cpu.initial_state(batch), anchor
    together = torch.ones(batch, dtype=torch.bool)
    heat = torch.zeros(batch) if temperatures is None else temperatures.cpu()
    sure_tokens, followed = 0, 0
    for step in range(steps):
        read = None if hidden is None else hidden[:, step]
        base = base_logits[:, step]
        if isinstance(cpu, MarkovHead):
            interval: Interval | None = Interval.exactly(cpu.rows_of(previous))
        else:
            assert read is not None
            _, interval = latent_interval(cpu, state, previous, read)
        bound = walk_bound(cpu, base, interval)
        if cpu.state_size and step > 0:
            bound = bound * _OF_A_STATE
        state, latent = cpu.latent(state, previous, read)
        wanted = step_logits(cpu, base, latent)
        if their_logits is not None:
            their_step = their_logits[:, step].cpu()
            rows = together & (heat > 0)
            if our_logits is not None and rows.any():
                apart = (our_logits[:, step].cpu().double() - their_step.double()).abs()
                assert (apart[rows] <= bound[rows]).all(), f"step {step}: logits past the bound"
            wanted = torch.where(together[:, None], their_step, wanted)
        words = philox_words(vocab, batch, step, key, offset)
        scores = sampled_scores(wanted.float(), heat, words)
        divisor = torch.where(heat > 0, heat.clamp_min(1e-5), torch.ones_like(heat))[:, None]
        slack = torch.where(heat > 0, _OF_NOISE, 0.0)[:, None]
        sure = decided(scores, bound / divisor + slack) & together
        assert torch.equal(ours[sure, step], theirs[sure, step]), f"step {step}: another token"
        sure_tokens += int(sure.sum())
        followed += int(together.sum())
        together &= ours[:, step] == theirs[:, step]
        previous = theirs[:, step]
    return sure_tokens / followed

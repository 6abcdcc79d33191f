"""Speculative generation in plain torch: draft a block, verify it, accept, go on.

All requests of a batch go through a round together, each at its own position. The drafter's block
is walked by whatever is passed as `walk`; the rest is the same for every walk, so two walks can be
compared. Random numbers of the verifier belong to a request and a position of its text, not to a
round, so two runs draw the same ones for the same token.

Acceptance of sampled requests is that of speculative sampling: token d at step k is kept with
probability min(1, p[d] / q[d]), p the target's distribution and q the draft's; after the first that
is not kept a token is drawn from max(p - q, 0), after a block that is kept whole one from p.

Source:
    Leviathan et al., "Fast inference from transformers via speculative decoding", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from lab.drafter import Drafter
from lab.target import Cache, Target
from wts.noise import Noise

__all__ = ["Block", "Generated", "Walk", "generate"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """What a walk is given.

    Args:
        base_logits: bf16 [B, K, V].
        anchor: int64 [B].
        hidden: bf16 [B, K, H].
    """

    base_logits: torch.Tensor
    anchor: torch.Tensor
    hidden: torch.Tensor


class Walk(Protocol):
    """A walk of a block."""

    def __call__(
        self,
        block: Block,
        temperatures: torch.Tensor | None,
        noise: Noise | None,
        logits_out: torch.Tensor | None,
    ) -> torch.Tensor:
        """Tokens int64 [B, K]; where sampled, step logits go to `logits_out`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What came of one request.

    Args:
        tokens: what was generated, cut to the wanted length.
        rounds: blocks drafted for them.
        committed: tokens that these rounds gave, with those behind the cut.
        shadowed: tokens that they would have given with the other walk at the same positions; None
            where there was none.
    """

    tokens: tuple[int, ...]
    rounds: int
    committed: int
    shadowed: int | None


@dataclass(slots=True, kw_only=True)
class _Batch:
    """Requests on their way.

    Args:
        ids: int64 [B, L]; known up to `known`.
        known: int64 [B], tokens known; the last one is the next anchor.
        prompts: int64 [B], lengths of the prompts.
        uniforms: fp32 [B, L, 2], the verifier's random numbers for each position.
    """

    ids: torch.Tensor
    known: torch.Tensor
    prompts: torch.Tensor
    uniforms: torch.Tensor


@torch.no_grad()
def generate(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    walk: Walk,
    *,
    new_tokens: int,
    temperature: float,
    seed: int,
    shadow: Walk | None = None,
) -> list[Generated]:
    """Generate behind prompts, which are all one batch.

    Args:
        target: in bf16 (or fp32, on a CPU).
        drafter: of it, on the same device.
        prompts: token ids, at least two of each.
        walk: makes the drafted tokens.
        new_tokens: of each request.
        temperature: 0 is greedy.
        seed: of the noise, and of the verifier's random numbers.
        shadow: another walk over the same greedy blocks; what it drafts is only judged.

    Returns:
        One for each prompt.
    """
    steps, device = drafter.shape.steps, target.embed_tokens.weight.device
    count, longest = len(prompts), max(map(len, prompts))
    length = longest + new_tokens + 2 * steps + 2
    batch = _start(prompts, length, seed, device)
    cache, context = target.new_cache(count, length), drafter.new_cache(count, length)
    # Prompts but for their last token, which is the first anchor.
    positions = torch.arange(longest - 1, device=device).expand(count, -1)
    _, read = target(
        batch.ids[:, : longest - 1],
        read=drafter.shape.target_layers,
        positions=positions,
        cache=cache,
    )
    assert read is not None
    _commit(drafter, context, read, positions)
    sampled = temperature > 0
    temperatures = torch.full((count,), temperature, device=device) if sampled else None
    noise = Noise(key=seed, offset=torch.zeros(1, dtype=torch.int64, device=device))
    vocab = target.shape.vocab
    logits = None
    if sampled:
        kind = target.embed_tokens.weight.dtype
        logits = torch.zeros(count, steps, vocab, dtype=kind, device=device)
    rounds, shadowed = torch.zeros_like(batch.known), torch.zeros_like(batch.known)
    wanted = batch.prompts + new_tokens
    while bool((active := batch.known < wanted).any()):
        block = _draft(target, drafter, batch, context)
        drafts = walk(block, temperatures, noise if sampled else None, logits)
        positions = batch.known[:, None] - 1 + torch.arange(steps + 1, device=device)
        if shadow is not None:
            # First, so that what it leaves in the target's cache is overwritten.
            other = shadow(block, None, None, None)
            judged, _ = _verify(target, drafter, block.anchor, other, positions, cache)
            shadowed += torch.where(active, _accept_greedy(other, judged)[0] + 1, 0)
        judged, read = _verify(target, drafter, block.anchor, drafts, positions, cache)
        _commit(drafter, context, read, positions)
        if logits is not None:
            uniforms = batch.uniforms.gather(1, positions[..., None].expand(-1, -1, 2))
            kept, last = _accept_sampled(drafts, logits, judged, temperature, uniforms)
        else:
            kept, last = _accept_greedy(drafts, judged)
        rounds += active
        # What is drafted and not kept is overwritten by the next round.
        tokens = torch.cat([drafts, drafts[:, :1]], 1).scatter(1, kept[:, None], last[:, None])
        unread = length - 1 - torch.arange(steps + 1, device=device)
        index = torch.where(active[:, None], positions + 1, unread)
        batch.ids.scatter_(1, index, tokens)
        batch.known += torch.where(active, kept + 1, 0)
    return _results(batch, rounds, None if shadow is None else shadowed, new_tokens)


def _start(
    prompts: Sequence[Sequence[int]], length: int, seed: int, device: torch.device
) -> _Batch:
    ids = torch.zeros(len(prompts), length, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(list(prompt))
    known = torch.tensor([len(prompt) for prompt in prompts], device=device)
    generator = torch.Generator().manual_seed(seed)
    # By request first, so that a longer room leaves those of a shorter one as they are.
    uniforms = torch.stack(
        [
            torch.rand(length, 2, generator=generator.manual_seed(seed * 1_000_003 + row))
            for row in range(len(prompts))
        ]
    )
    return _Batch(
        ids=ids.to(device), known=known, prompts=known.clone(), uniforms=uniforms.to(device)
    )


def _commit(drafter: Drafter, context: Cache, read: torch.Tensor, positions: torch.Tensor) -> None:
    """Let the drafter take in the target's hidden states at positions [B, T]."""
    for layer, (key, value) in enumerate(drafter.context(read, positions)):
        context.write(layer, positions, key, value)


def _draft(target: Target, drafter: Drafter, batch: _Batch, context: Cache) -> Block:
    """Run the backbone at the anchors; gives what a walk reads."""
    embedding = target.embed_tokens.weight
    place = batch.known - 1
    anchor = batch.ids.gather(1, place[:, None])[:, 0]
    hidden = drafter.draft_hidden(
        embedding[anchor][:, None],
        embedding[drafter.shape.mask_token],
        place[:, None],
        list(zip(context.keys, context.values, strict=True)),
    )[:, 0]
    return Block(base_logits=hidden @ embedding.T, anchor=anchor, hidden=hidden)


def _verify(
    target: Target,
    drafter: Drafter,
    anchor: torch.Tensor,
    drafts: torch.Tensor,
    positions: torch.Tensor,
    cache: Cache,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's logits [B, K + 1, V] behind the anchor and each draft, and what it lets read."""
    final, read = target(
        torch.cat([anchor[:, None], drafts], 1),
        read=drafter.shape.target_layers,
        positions=positions,
        cache=cache,
    )
    assert read is not None
    return final @ target.embed_tokens.weight.T, read


def _accept_greedy(drafts: torch.Tensor, judged: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Kept drafts and the token behind them, int64 [B] each, of greedy requests."""
    best = judged.argmax(2)
    kept = (drafts == best[:, :-1]).long().cumprod(1).sum(1)
    return kept, best.gather(1, kept[:, None])[:, 0]


def _accept_sampled(
    drafts: torch.Tensor,
    step_logits: torch.Tensor,
    judged: torch.Tensor,
    temperature: float,
    uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Kept drafts and the token behind them, of sampled requests.

    Args:
        drafts: int64 [B, K].
        step_logits: [B, K, V], what they were sampled from.
        judged: [B, K + 1, V], logits of the target.
        temperature: of all.
        uniforms: fp32 [B, K + 1, 2].

    Returns:
        int64 [B] and int64 [B].
    """
    p = (judged.float() / temperature).softmax(2)
    q = (step_logits.float() / temperature).softmax(2)
    p_draft = p[:, :-1].gather(2, drafts[..., None])[..., 0]
    q_draft = q.gather(2, drafts[..., None])[..., 0]
    keep = uniforms[:, :-1, 0] * q_draft < p_draft
    kept = keep.long().cumprod(1).sum(1)
    row = torch.arange(len(drafts), device=drafts.device)
    rest = p[row, kept]
    refused = kept < drafts.shape[1]
    other = q[row, kept.clamp_max(drafts.shape[1] - 1)]
    left = torch.where(refused[:, None], (rest - other).clamp_min(0), rest)
    # Where rounding leaves nothing, p itself.
    left = torch.where(left.sum(1, keepdim=True) > 0, left, rest)
    sums = left.double().cumsum(1)
    point = uniforms[row, kept, 1].double()[:, None] * sums[:, -1:]
    last = torch.searchsorted(sums, point, right=True)[:, 0].clamp_max(sums.shape[1] - 1)
    return kept, last


def _results(
    batch: _Batch, rounds: torch.Tensor, shadowed: torch.Tensor | None, new_tokens: int
) -> list[Generated]:
    found = []
    for row, prompt in enumerate(batch.prompts.tolist()):
        found.append(
            Generated(
                tokens=tuple(batch.ids[row, prompt : prompt + new_tokens].tolist()),
                rounds=int(rounds[row]),
                committed=int(batch.known[row]) - prompt,
                shadowed=None if shadowed is None else int(shadowed[row]),
            )
        )
    return found

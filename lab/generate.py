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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, TypeAlias

import torch

from lab.drafter import Drafter
from lab.target import Cache, Target
from wts.numerics.gumbel import Noise

__all__ = ["Block", "Generated", "Walk", "generate"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """What a walk is given.

    Args:
        base_logits: bf16 [B, K, V].
        anchor: int64 [B].
        hidden: bf16 [B, K, H].
        active: bool [B], requests that are not done; None: all.
    """

    base_logits: torch.Tensor
    anchor: torch.Tensor
    hidden: torch.Tensor
    active: torch.Tensor | None = None


Walk: TypeAlias = Callable[
    [Block, torch.Tensor | None, Noise | None, torch.Tensor | None], torch.Tensor
]
"""A walk of a block: of it, temperatures fp32 [B], noise and `logits_out` the tokens int64 [B, K].

Greedy walks get None for the last three; sampled ones leave step logits in the last.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What came of one request.

    Args:
        tokens: what was generated, cut to the wanted length.
        rounds: blocks drafted for them.
        committed: tokens that these rounds gave, with those behind the cut.
        shadowed: of each shadow, tokens that they would have given with that walk at the same
            positions.
        unlike: of each shadow, rounds in which it drafted other tokens.
    """

    tokens: tuple[int, ...]
    rounds: int
    committed: int
    shadowed: tuple[int, ...]
    unlike: tuple[int, ...]


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
    shadows: Sequence[Walk] = (),
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
        shadows: other walks over the same blocks, with the same random numbers; what they draft is
            only judged.

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
    start = partial(_Randomness.start, target, count, steps, seed)
    own = start() if sampled else None
    others = [start() if sampled else None for _ in shadows]
    rounds = torch.zeros_like(batch.known)
    shadowed = torch.zeros(count, len(shadows), dtype=torch.int64, device=device)
    unlike = torch.zeros_like(shadowed)
    wanted = batch.prompts + new_tokens
    while bool((active := batch.known < wanted).any()):
        block = replace(_draft(target, drafter, batch, context), active=active)
        positions = batch.known[:, None] - 1 + torch.arange(steps + 1, device=device)
        this = _Round(
            target=target,
            drafter=drafter,
            cache=cache,
            block=block,
            positions=positions,
            temperature=temperature,
            uniforms=batch.uniforms.gather(1, positions[..., None].expand(-1, -1, 2)),
        )
        drafted = [this.draft(*one) for one in zip(shadows, others, strict=True)]
        drafts = this.draft(walk, own)
        # Shadows first, so that what they leave in the target's cache is overwritten.
        kept: list[torch.Tensor | None] = []
        for number, (theirs, other) in enumerate(zip(drafted, others, strict=True)):
            unlike[:, number] += active & (theirs != drafts).any(1)
            same = not sampled and torch.equal(theirs, drafts)  # then so is what is kept
            kept.append(None if same else this.judge(theirs, other).kept)
        found = this.judge(drafts, own)
        for number, one in enumerate(kept):
            shadowed[:, number] += torch.where(active, (found.kept if one is None else one) + 1, 0)
        _commit(drafter, context, found.read, positions)
        rounds += active
        # What is drafted and not kept is overwritten by the next round, or lies behind the end.
        room = torch.cat([found.drafts, found.drafts[:, :1]], 1)
        tokens = room.scatter(1, found.kept[:, None], found.last[:, None])
        batch.ids.scatter_(1, positions + 1, tokens)
        batch.known += torch.where(active, found.kept + 1, 0)
    return _results(batch, rounds, shadowed, unlike, new_tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Randomness:
    """What a sampled walk draws from and leaves behind.

    Args:
        noise: of all rounds; two that start alike draw the same.
        logits: [B, K, V], step logits of the last round.
    """

    noise: Noise
    logits: torch.Tensor

    @classmethod
    def start(cls, target: Target, count: int, steps: int, seed: int) -> Self:
        weight = target.embed_tokens.weight
        offset = torch.zeros(1, dtype=torch.int64, device=weight.device)
        return cls(
            noise=Noise(key=seed, offset=offset),
            logits=torch.zeros(
                count, steps, target.shape.vocab, dtype=weight.dtype, device=weight.device
            ),
        )


def _start(
    prompts: Sequence[Sequence[int]], length: int, seed: int, device: torch.device
) -> _Batch:
    ids = torch.zeros(len(prompts), length, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(list(prompt))
    known = torch.tensor([len(prompt) for prompt in prompts], device=device)
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(len(prompts), length, 2, generator=generator)
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Judged:
    """What the target makes of a draft.

    Args:
        drafts: int64 [B, K].
        kept: int64 [B], leading drafts that are accepted.
        last: int64 [B], the token behind them.
        read: [B, K + 1, hidden layers], what the target lets the drafter read.
    """

    drafts: torch.Tensor
    kept: torch.Tensor
    last: torch.Tensor
    read: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Round:
    """One round of all requests, up to what is drafted: any walk can be tried in it.

    Args:
        target, drafter, cache: of the generation.
        block: what a walk is given.
        positions: int64 [B, K + 1], of the anchor and the drafts.
        temperature: of all.
        uniforms: fp32 [B, K + 1, 2], the verifier's random numbers at these positions.
    """

    target: Target
    drafter: Drafter
    cache: Cache
    block: Block
    positions: torch.Tensor
    temperature: float
    uniforms: torch.Tensor

    def draft(self, walk: Walk, randomness: _Randomness | None) -> torch.Tensor:
        """What a walk drafts, int64 [B, K]; randomness is None where all is greedy."""
        if randomness is None:
            return walk(self.block, None, None, None)
        anchor = self.block.anchor
        temperatures = torch.full(anchor.shape, self.temperature, device=anchor.device)
        return walk(self.block, temperatures, randomness.noise, randomness.logits)

    def judge(self, drafts: torch.Tensor, randomness: _Randomness | None) -> _Judged:
        """Verify what a walk has drafted with the same randomness."""
        final, read = self.target(
            torch.cat([self.block.anchor[:, None], drafts], 1),
            read=self.drafter.shape.target_layers,
            positions=self.positions,
            cache=self.cache,
        )
        assert read is not None
        judged = final @ self.target.embed_tokens.weight.T
        if randomness is None:
            kept, last = _accept_greedy(drafts, judged)
        else:
            kept, last = _accept_sampled(
                drafts, randomness.logits, judged, self.temperature, self.uniforms
            )
        return _Judged(drafts=drafts, kept=kept, last=last, read=read)


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
    batch: _Batch,
    rounds: torch.Tensor,
    shadowed: torch.Tensor,
    unlike: torch.Tensor,
    new_tokens: int,
) -> list[Generated]:
    found = []
    for row, prompt in enumerate(batch.prompts.tolist()):
        found.append(
            Generated(
                tokens=tuple(batch.ids[row, prompt : prompt + new_tokens].tolist()),
                rounds=int(rounds[row]),
                committed=int(batch.known[row]) - prompt,
                shadowed=tuple(shadowed[row].tolist()),
                unlike=tuple(unlike[row].tolist()),
            )
        )
    return found

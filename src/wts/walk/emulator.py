"""The walk as the device does it, on the CPU: packed bytes, the plan's blocks, the same roundings.

With int8 weights every number here is exact or rounded once, in the order the kernel rounds it, so
tokens equal the device's bit for bit, for any plan. An exact walk has the exact logits of all rows
here; which of them the device need not compute changes no token. With bf16 weights sums of products
are the hardware's, whose order and roundings are its own: `bf16_interval` says how far from
these its step logits may be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from wts.errors import InputError
from wts.kernels.packed import PackedHead, nonfinite_rows
from wts.kernels.resident.plan import ResidentPlan
from wts.kernels.resident.shard import TILE_ROWS
from wts.kernels.resident.tiles import load_rows
from wts.numerics.exact_bounds import exact_logits
from wts.numerics.gumbel import Noise, philox_words
from wts.numerics.order import ordered_key
from wts.numerics.quantise import Latents
from wts.numerics.step_logits import bf16_logits, int8_logits
from wts.numerics.torch_dtypes import DTYPE_OF
from wts.selection.token_race import sampled_scores

__all__ = ["Emulator"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Emulator:
    """Executes a plan on the CPU.

    Args:
        plan: the plan.
        packed: the head, packed for it, on the CPU.
    """

    plan: ResidentPlan
    packed: PackedHead

    def __call__(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        hidden_term: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Noise | None = None,
        logits_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The tokens of `walk`, int64 [B, K], and nothing else: as a Walker is called."""
        tokens, _ = self.walk(
            base_logits,
            anchor,
            hidden_term=hidden_term,
            temperatures=temperatures,
            noise=noise,
            logits_out=logits_out,
        )
        return tokens

    def walk(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        hidden_term: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: Noise | None = None,
        logits_out: torch.Tensor | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[torch.Tensor, int]:
        """Draft a block.

        Args:
            base_logits: [B, K, V] in the plan's base type, CPU.
            anchor: int64 [B], CPU.
            hidden_term: fp32 [B, K, P], CPU, `packed.hidden_term` of the hidden states, for heads
                that read them.
            temperatures: fp32 [B], CPU, in a sampled plan.
            noise: where its noise comes from; the offset is advanced by one.
            logits_out: [B, K, V] in the step's type: step logits of sampled rows go there.
            progress: called with the number of steps done.

        Returns:
            Tokens int64 [B, K] (target ids), and how many anchors lay outside the table.
        """
        plan = self.plan
        reads_hidden = self.packed.steps.reads_hidden
        if (hidden_term is not None) != reads_hidden:
            raise InputError.mismatch(
                "hidden_term",
                wanted="what packed.hidden_term gives" if reads_hidden else "None",
                found=type(hidden_term).__name__,
                fix="pass it" if reads_hidden else "leave it out",
            )
        rows = load_rows(self.packed.tiles, plan)
        levels = rows.float() if plan.request.quantised else rows  # integers up to 127: exact
        batch, steps, _ = base_logits.shape
        state = self.packed.initial_state(batch)
        last_row = plan.request.table_rows - 1
        previous = anchor.clamp(0, last_row)
        clamped = int((previous != anchor).sum())
        tokens = torch.empty(batch, steps, dtype=torch.int64)
        for step in range(steps):
            part = None if hidden_term is None else hidden_term[:, step]
            if plan.request.exact:
                state, latent = self.packed.exact_latent(state, previous, part)
                logits = self._exact_logits(base_logits[:, step], latent)
            else:
                state, latents = self.packed.latent(state, previous, part)
                logits = self._step_logits(levels, base_logits[:, step], latents)
            if temperatures is not None and noise is not None:
                if logits_out is not None:
                    sampled = temperatures > 0
                    exported = logits[sampled, : plan.request.shape.vocab].to(logits_out)
                    logits_out[sampled.to(logits_out.device), step, : plan.request.shape.vocab] = (
                        exported
                    )
                words = philox_words(
                    plan.shard.padded_vocab, batch, step, noise.key, int(noise.offset.item())
                )
                logits = sampled_scores(logits, temperatures, words)
            drafted = self._select(logits)
            mapping = self.packed.draft_to_target
            previous = drafted if mapping is None else mapping[drafted].long()
            tokens[:, step] = previous
            if progress is not None:
                progress(step + 1)
        if noise is not None:
            noise.offset.add_(1)
        return tokens, clamped

    def _step_logits(
        self, levels: torch.Tensor, base: torch.Tensor, latents: Latents | None
    ) -> torch.Tensor:
        """x of every row of the padded vocabulary, fp32 [B, padded_vocab]."""
        plan = self.plan
        padded = torch.full((len(base), plan.shard.padded_vocab), float("-inf"))
        padded[:, : plan.request.shape.vocab] = base[:, : plan.request.shape.vocab].float()
        dtype = DTYPE_OF[plan.request.step_type]
        if not isinstance(latents, torch.Tensor):
            return int8_logits(levels, self.packed.row_scale, padded, latents, dtype).float()
        logits = bf16_logits(levels, nonfinite_rows(self.packed), padded, latents, dtype).float()
        logits[:, plan.request.shape.vocab :] = float("-inf")  # not NaN, whatever the latent
        return logits

    def _exact_logits(self, base: torch.Tensor, latent: torch.Tensor | None) -> torch.Tensor:
        """Exact logits of every row of the padded vocabulary, fp32 [B, padded_vocab]."""
        plan, exact = self.plan, self.packed.exact
        assert exact is not None
        padded = torch.full((len(base), plan.shard.padded_vocab), float("-inf"))
        logits = exact_logits(
            exact.projection[: plan.request.shape.vocab],
            base[:, : plan.request.shape.vocab],
            latent,
        )
        padded[:, : plan.request.shape.vocab] = logits.float()
        return padded

    def _select(self, scores: torch.Tensor) -> torch.Tensor:
        """Draft id of each request: best of a warp, of a block, of all blocks."""
        plan = self.plan
        batch = len(scores)
        warp_rows = plan.shard.warp_tiles * TILE_ROWS
        keys = ordered_key(scores).long()
        rows = torch.arange(plan.shard.padded_vocab) % plan.shard.rows
        # One integer in the order (key, lowest row): what the kernel's candidates compare as.
        candidates = keys * (1 << 20) + ((1 << 20) - 1 - rows)
        by_warp = candidates.view(
            batch, plan.shard.num_blocks, plan.shard.sweep_warps, warp_rows
        ).amax(3)
        by_block = by_warp.amax(2)
        block_keys = by_block >> 20
        block_rows = ((1 << 20) - 1) - (by_block & ((1 << 20) - 1))
        best = block_keys.amax(1, keepdim=True)
        winner = (block_keys == best).to(torch.uint8).argmax(1)  # lowest block among equals
        row = block_rows.gather(1, winner[:, None])[:, 0]
        return (winner * plan.shard.rows + row).clamp(0, plan.request.shape.vocab - 1)

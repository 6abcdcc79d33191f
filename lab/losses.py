"""Losses over the whole vocabulary, some rows of logits at a time.

Logits of all rows at once would need gigabytes, so a chunk of rows is projected, judged and turned
into gradients before the next one is made; nothing of the size of the vocabulary is kept but the
gradient of a trained projection.

With W the target's output projection, base logits are b = W h and step logits x = b + P u (no u:
the target itself). With p = softmax(x), q the target's distribution, y the text and w the weight of
a row, its loss is

    w (ce_final -ln p[y] + ce_base -ln softmax(b)[y] + l1 sum |p - q|)

and d(sum |p - q|)/dx = p (s - sum p s), s = sign(p - q). A drafted token is accepted with
probability sum min(p, q) = 1 - sum |p - q| / 2.

Source:
    DeepSpec (DSpark): cross-entropy and L1 with weights exp(-k / decay). Huang et al., "Domino",
    2026, arXiv:2605.29707: the weight of the base logits' cross-entropy falls from 1 to 0 in a
    straight line while that of the final logits rises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lab.config import BlockLoss

__all__ = ["RowStats", "Terms", "judge", "projected_loss", "step_weights", "terms_at"]


_LEAST_P = 1e-37  # of a token of the text: the logarithm of 0 is nobody's loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Weights of the terms of a row's loss."""

    ce_final: float = 1.0
    ce_base: float = 0.0
    l1: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStats:
    """What is known of each row besides its loss, all fp32 [N].

    Args:
        ce: -ln p[y].
        accept: probability that a token drawn from p is accepted; None where no q was given.
        hit: 1 where the largest logit is that of the target's largest, or of the text without q.
    """

    ce: torch.Tensor
    accept: torch.Tensor | None
    hit: torch.Tensor


def terms_at(loss: BlockLoss, progress: float) -> Terms:
    """The terms after a fraction of the training, 0..1."""
    if not loss.anchored:
        return Terms(ce_final=loss.ce, l1=loss.l1)
    base = max(0.0, 1.0 - progress)
    return Terms(ce_final=loss.ce * (1 - base), ce_base=loss.ce * base, l1=loss.l1)


def step_weights(steps: int, decay: float, device: torch.device | None = None) -> torch.Tensor:
    """exp(-k / decay) for k = 0.. steps - 1, fp32."""
    return torch.exp(-torch.arange(steps, device=device).float() / decay)


def judge(
    final: torch.Tensor,
    base: torch.Tensor | None,
    target: torch.Tensor | None,
    labels: torch.Tensor,
    weights: torch.Tensor,
    ce_final: torch.Tensor,
    ce_base: torch.Tensor,
    l1: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients and statistics of a chunk of logits [n, V].

    It reads and writes as little as can be without a kernel of its own: what is of the size of the
    logits is changed in place.

    Returns:
        Gradient of the final logits, and of the base logits' own term (None without `base`), in the
        dtype of the logits; loss, ce and accept, fp32 [n].
    """
    picked = labels[:, None]
    p = final.softmax(1, dtype=torch.float32)
    ce = -p.gather(1, picked)[:, 0].clamp_min(_LEAST_P).log()
    loss = ce_final * ce
    accept = torch.zeros_like(ce)
    if target is None:
        gradient = p.mul_((weights * ce_final)[:, None])
    else:
        # The sign of q - p, then w (ce_final + l1 (its mean under p - itself)), then p times that.
        sign = target.softmax(1, dtype=torch.float32).sub_(p)
        l1_distance = torch.linalg.vector_norm(sign, 1, dim=1)
        accept = 1 - l1_distance / 2
        loss = loss + l1 * l1_distance
        sign.sign_()
        mean = torch.bmm(p[:, None], sign[:, :, None])[:, 0, 0]
        sign.mul_((-weights * l1)[:, None]).add_((weights * (ce_final + l1 * mean))[:, None])
        gradient = sign.mul_(p)
    gradient.scatter_add_(1, picked, -(weights * ce_final)[:, None])
    own = None
    if base is not None:
        p_base = base.softmax(1, dtype=torch.float32)
        loss = loss - ce_base * p_base.gather(1, picked)[:, 0].clamp_min(_LEAST_P).log()
        p_base.mul_((weights * ce_base)[:, None])
        p_base.scatter_add_(1, picked, -(weights * ce_base)[:, None])
        own = p_base.to(base.dtype)
    return gradient.to(final.dtype), own, loss * weights, ce, accept


class _Projected(torch.autograd.Function):
    """Sum of the rows' losses; all gradients are made in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        latent: torch.Tensor | None,
        projection: torch.Tensor | None,
        output: torch.Tensor,
        target_hidden: torch.Tensor | None,
        labels: torch.Tensor,
        weights: torch.Tensor,
        terms: Terms,
        chunk: int,
        judged: Callable[..., Any],
        learning: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        kind = hidden.dtype
        wide_output = output.to(kind)
        wide_projection = None if projection is None else projection.to(kind)
        hidden_grad = torch.empty_like(hidden)
        latent_grad = None if latent is None else torch.empty_like(latent)
        projection_grad = output_grad = None
        if learning and projection is not None and projection.requires_grad:
            projection_grad = torch.zeros_like(projection)
        if learning and output.requires_grad:
            output_grad = torch.zeros_like(output)
        losses, ces, accepts, hits = [], [], [], []
        # As tensors, so that a compiled `judge` is not compiled again when they change.
        scalars = [hidden.new_tensor(v, dtype=torch.float32) for v in
                   (terms.ce_final, terms.ce_base, terms.l1)]  # fmt: skip
        for first in range(0, len(hidden), chunk):
            rows = slice(first, first + chunk)
            base = hidden[rows] @ wide_output.T
            final = base
            if latent is not None and wide_projection is not None:
                final = base + latent[rows] @ wide_projection.T
            wanted = None if target_hidden is None else target_hidden[rows] @ wide_output.T
            gradient, own, loss, ce, accept = judged(
                final,
                base if terms.ce_base else None,
                wanted,
                labels[rows],
                weights[rows],
                *scalars,
            )
            losses.append(loss.sum())
            ces.append(ce)
            accepts.append(accept)
            right = labels[rows] if wanted is None else wanted.argmax(1)
            hits.append((final.argmax(1) == right).float())
            if not learning:
                continue
            both = gradient if own is None else gradient + own
            hidden_grad[rows] = both @ wide_output
            if output_grad is not None:
                output_grad += both.T @ hidden[rows]
            if latent is not None and wide_projection is not None:
                assert latent_grad is not None
                latent_grad[rows] = gradient @ wide_projection
                if projection_grad is not None:
                    projection_grad += gradient.T @ latent[rows]
        ctx.grads = (hidden_grad, latent_grad, projection_grad, output_grad)
        stats = (torch.cat(ces), torch.cat(accepts), torch.cat(hits))
        ctx.mark_non_differentiable(*stats)
        return (torch.stack(losses).sum(), *stats)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Any:
        scaled = [None if grad is None else grad * outer[0].to(grad.dtype) for grad in ctx.grads]
        return (*scaled, None, None, None, None, None, None, None)


def projected_loss(
    hidden: torch.Tensor,
    *,
    output: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor,
    terms: Terms,
    chunk: int,
    latent: torch.Tensor | None = None,
    projection: torch.Tensor | None = None,
    target_hidden: torch.Tensor | None = None,
    judged: Callable[..., Any] = judge,
) -> tuple[torch.Tensor, RowStats]:
    """The weighted mean of the rows' losses.

    Args:
        hidden: h, [N, H]; its dtype is that of all products.
        output: W, [V, H]; gets a gradient if it requires one.
        labels: y, int64 [N].
        weights: w, fp32 [N]; rows of weight 0 do not count.
        terms: weights of the terms.
        chunk: rows at once.
        latent: u, [N, r].
        projection: P, [V, r].
        target_hidden: of the target at the same positions, [N, H]; for L1.
        judged: `judge`, or the same compiled.

    Returns:
        The loss and what is known of each row.
    """
    total = weights.sum().clamp_min(1e-6)
    loss, ce, accept, hit = _Projected.apply(  # type: ignore[no-untyped-call]
        hidden, latent, projection, output, target_hidden, labels, weights / total, terms, chunk,
        judged, torch.is_grad_enabled(),
    )  # fmt: skip
    return loss, RowStats(ce=ce, accept=None if target_hidden is None else accept, hit=hit)

"""What tests draw: GPUs, shapes, plans, heads, base logits. All of it valid."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from hypothesis import assume
from hypothesis import strategies as st

from wts.dtypes import NUMBER_TYPES
from wts.errors import PlanError
from wts.hardware.gpu import GPUS, GpuSpec
from wts.hardware.tensor_memory import has_product
from wts.heads.base import Head
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.kinds import KINDS as HEADS
from wts.heads.kinds import RANKS, Shape
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.kernels.planner import plan_residency
from wts.kernels.resident.plan import ResidentPlan

PUBLISHED_VOCABS = (32_000, 129_280, 151_936, 154_880, 163_840, 200_058, 248_320, 262_144)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def hopper(max_blocks: int = 132) -> GpuSpec:
    """An H200, or what is left of one."""
    return GPUS["h200"].with_blocks(max_blocks)


def gpus(*, hopper_only: bool = False) -> st.SearchStrategy[GpuSpec]:
    """GPUs with 1 to all of their blocks co-resident, whole ones as likely as parts."""
    names = sorted(name for name, gpu in GPUS.items() if gpu.is_hopper or not hopper_only)

    def limited(name: str, blocks: int) -> GpuSpec:
        return GPUS[name].with_blocks(min(blocks, GPUS[name].num_sms))

    most = max(GPUS[name].num_sms for name in names)
    blocks = st.one_of(st.just(most), st.integers(1, most))
    return st.builds(limited, st.sampled_from(names), blocks)


def shapes(max_vocab: int = 300_000) -> st.SearchStrategy[Shape]:
    """Shapes of heads: tiny vocabularies, published ones, and any."""
    published = [v for v in PUBLISHED_VOCABS if v <= max_vocab] or [max_vocab]
    vocab = st.one_of(
        st.integers(1, min(80, max_vocab)),
        st.sampled_from(published),
        st.integers(max_vocab // 10 + 1, max_vocab),
    )

    def shape(
        vocab: int, more_rows: int, mapped: bool, kind: str, rank: int, **fields: Any
    ) -> Shape:
        rows = vocab + more_rows
        return Shape(
            vocab=vocab,
            rank=rank,
            table_rows=rows,
            mapped=mapped,
            kind=kind,
            state=HEADS[kind].state_size(rank, 2 * rank),
            hidden=40 * rank if HEADS[kind].reads_hidden else 0,
            **fields,
        )

    return st.builds(
        shape,
        vocab=vocab,
        more_rows=st.one_of(st.just(0), st.integers(1, 1000)),
        mapped=st.booleans(),
        kind=st.one_of(st.just("markov"), st.sampled_from(list(HEADS))),
        rank=st.sampled_from(RANKS),
        table_type=st.sampled_from(NUMBER_TYPES),
    )


@st.composite
def plans(
    draw: st.DrawFn,
    *,
    max_vocab: int = 300_000,
    hopper_only: bool = False,
    streamed: bool = False,
) -> ResidentPlan:
    """Plans of any shape, GPU and batch; what does not fit a GPU is left out.

    With `streamed`, of shapes so large for their GPU that a part streams.
    """
    shape, gpu = draw(shapes(max_vocab)), draw(gpus(hopper_only=hopper_only))
    if streamed:
        rows_per_block = draw(st.integers(1500, 5000))
        gpu = gpu.with_blocks(min(gpu.num_sms, draw(st.integers(2, 60))))
        vocab = rows_per_block * gpu.max_blocks
        rank = draw(st.sampled_from((256, 512)))
        shape = replace(shape, vocab=vocab, table_rows=vocab, rank=rank)
    bf16 = gpu.walks and draw(st.booleans())
    if bf16:
        shape = replace(shape, table_type="bf16")
    try:
        plan = plan_residency(
            shape,
            gpu,
            batch=draw(st.one_of(st.integers(1, 4), st.integers(1, 64))),
            steps=draw(st.integers(1, 32)),
            sampled=draw(st.booleans()),
            base_type=draw(st.sampled_from(NUMBER_TYPES)),
            weights="bf16" if bf16 else "int8",
            tensor_memory=has_product(gpu.arch, "bf16" if bf16 else "int8") and draw(st.booleans()),
        )
    except PlanError:
        assume(False)
        raise
    assume(not streamed or plan.placement.streamed_fragments > 0)
    return plan


@st.composite
def heads(
    draw: st.DrawFn,
    *,
    max_vocab: int = 300,
    ranks: tuple[int, ...] = (64, 64, 128),
    mapped: bool | None = None,
    tied: bool | None = None,
) -> MarkovHead:
    """Small heads: well spread ones, and ones of few distinct values whose logits often tie."""
    vocab = draw(st.integers(1, max_vocab))
    rank = draw(st.sampled_from(ranks))
    dtype = DTYPES[draw(st.sampled_from(NUMBER_TYPES))]
    seed = draw(st.integers(0, 1 << 16))
    with_map = draw(st.booleans()) if mapped is None else mapped
    target_vocab = vocab + draw(st.integers(0, 50)) if with_map else vocab
    head = MarkovHead.random(
        vocab=target_vocab,
        rank=rank,
        seed=seed,
        dtype=dtype,
        table_rows=target_vocab + draw(st.integers(0, 3)),
        draft_vocab=vocab if with_map else None,
    )
    if not (draw(st.booleans()) if tied is None else tied):
        return head
    generator = torch.Generator().manual_seed(seed)

    def few_values(matrix: torch.Tensor) -> torch.Tensor:
        return torch.randint(-1, 2, matrix.shape, generator=generator).to(dtype)

    return MarkovHead(
        table=few_values(head.table),
        projection=few_values(head.projection),
        draft_to_target=head.draft_to_target,
    )


def base_logits(
    head: Head,
    *,
    batch: int,
    steps: int,
    seed: int,
    base_type: str = "bf16",
    tied: bool = False,
    row_stride: int | None = None,
) -> torch.Tensor:
    """Base logits [B, K, V], of few distinct values if `tied`; a crop where the stride is wider.

    What lies between the rows of a crop is NaN: whoever reads it is found out.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, steps, head.vocab)
    if tied:
        values = torch.randint(-2, 3, shape, generator=generator).float()
    else:
        values = torch.randn(shape, generator=generator)
    stride = head.vocab if row_stride is None else row_stride
    padded = torch.full((batch, steps, stride), float("nan"))
    padded[:, :, : head.vocab] = values
    return padded.to(DTYPES[base_type])[:, :, : head.vocab]


def anchors(head: Head, batch: int, seed: int) -> torch.Tensor:
    """One token of the table for each request."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, head.table_rows, (batch,), generator=generator)


def successor_head(
    successors: list[int], *, rank: int = 64, dtype: torch.dtype = torch.float32, gain: float = 8.0
) -> MarkovHead:
    """A head of at most `rank` tokens whose bias is `gain` for one successor and 0 elsewhere."""
    vocab = len(successors)
    assert vocab <= rank
    table = torch.eye(vocab, rank)
    projection = torch.zeros(vocab, rank)
    for token, successor in enumerate(successors):
        projection[successor, token] = gain
    return MarkovHead(table=table.to(dtype), projection=projection.to(dtype))


def silent_head(
    vocab: int,
    *,
    rank: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    table_rows: int | None = None,
) -> MarkovHead:
    """A head that adds nothing to the base logits: W = 0."""
    table = torch.ones(vocab if table_rows is None else table_rows, rank, dtype=dtype)
    return MarkovHead(table=table, projection=torch.zeros(vocab, rank, dtype=dtype))


RecurrentHead: TypeAlias = GatedHead | RnnHead | DominoHead
"""A head that reads hidden states."""

KINDS: tuple[type[RecurrentHead], ...] = (GatedHead, RnnHead, DominoHead)


def recurrent_head(kind: type[RecurrentHead], **changes: Any) -> RecurrentHead:
    """A small random head of a kind that reads hidden states."""
    sizes: dict[str, Any] = {"vocab": 517, "rank": 64, "hidden_size": 40, "seed": 7}
    if kind is DominoHead:
        sizes["state_size"] = 32
    return kind.random(**(sizes | changes))


@st.composite
def recurrent_heads(
    draw: st.DrawFn,
    *,
    max_vocab: int = 200,
    ranks: tuple[int, ...] = (64, 64, 128),
    kinds: tuple[type[RecurrentHead], ...] = KINDS,
) -> RecurrentHead:
    """Small random heads that read hidden states, of all kinds and sizes."""
    kind = draw(st.sampled_from(kinds))
    vocab = draw(st.integers(1, max_vocab))
    mapped = draw(st.booleans())
    target_vocab = vocab + draw(st.integers(0, 50)) if mapped else vocab
    sizes: dict[str, Any] = {"state_size": 32 * draw(st.integers(1, 3))}
    return recurrent_head(
        kind,
        vocab=target_vocab,
        rank=draw(st.sampled_from(ranks)),
        hidden_size=draw(st.integers(1, 90)),
        table_rows=target_vocab + draw(st.integers(0, 3)),
        draft_vocab=vocab if mapped else None,
        seed=draw(st.integers(0, 1 << 16)),
        **(sizes if kind is DominoHead else {}),
    )


def hidden_states(head: Head, *, batch: int, steps: int, seed: int) -> torch.Tensor:
    """Hidden states of deviation 1, bf16 [B, K, H]."""
    assert head.hidden_size is not None
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, steps, head.hidden_size, generator=generator).bfloat16()


def noise_head(vocab: int, rank: int, seed: int, *, bias: float = 1.0) -> MarkovHead:
    """A head in bf16 of noise: no successor is favoured, so near-ties are many.

    Args:
        bias: deviation of a row's bias.
    """
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(vocab, rank, generator=generator)
    rows = torch.randn(vocab, rank, generator=generator) * (bias / math.sqrt(rank))
    return MarkovHead(table=table.bfloat16(), projection=rows.bfloat16())

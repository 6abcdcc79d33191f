"""Draft models as SGLang gives them to a sampler's factory: its own heads, or stand-ins for them.

The stand-ins have the parts and the formulas of sglang/srt/models/dspark.py (0.5.23), so that most
tests need no SGLang.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from wts.heads.base import Head
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.rnn import RnnHead


def parameter(weight: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(weight.clone(), requires_grad=False)


class Vanilla(nn.Module):
    """A DSpark head without hidden states."""

    vocab_shard: Any = None

    def __init__(self, vocab_size: int, markov_rank: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.markov_rank = markov_rank
        self.markov_w1 = nn.Embedding(vocab_size, markov_rank)
        self.markov_w2 = nn.Linear(markov_rank, vocab_size, bias=False)

    def init_state(self, hidden_states: torch.Tensor | None) -> torch.Tensor | None:
        return None

    def step_logits_dtype(self, base_dtype: torch.dtype) -> torch.dtype:
        return torch.promote_types(base_dtype, self.markov_w1.weight.dtype)

    def latent(
        self, row: torch.Tensor, hidden: torch.Tensor | None, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return row, state

    def step_bias(
        self,
        prev_tokens: torch.Tensor,
        *,
        hidden_states: torch.Tensor | None,
        state: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        latent, state = self.latent(self.markov_w1(prev_tokens), hidden_states, state)
        return self.markov_w2(latent), state


class Gated(Vanilla):
    """A DSpark head with a gate."""

    def __init__(self, vocab_size: int, markov_rank: int, hidden_size: int) -> None:
        super().__init__(vocab_size, markov_rank)
        self.gate_proj = nn.Linear(hidden_size + markov_rank, markov_rank)

    def latent(
        self, row: torch.Tensor, hidden: torch.Tensor | None, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert hidden is not None
        return self.gate_proj(torch.cat([hidden, row], -1)).sigmoid() * row, state


class Rnn(Vanilla):
    """A DSpark head with a state."""

    def __init__(self, vocab_size: int, markov_rank: int, hidden_size: int) -> None:
        super().__init__(vocab_size, markov_rank)
        self.joint_proj = nn.Linear(2 * markov_rank + hidden_size, 3 * markov_rank)

    def init_state(self, hidden_states: torch.Tensor | None) -> torch.Tensor | None:
        assert hidden_states is not None
        return hidden_states.new_zeros(len(hidden_states), self.markov_rank)

    def latent(
        self, row: torch.Tensor, hidden: torch.Tensor | None, state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert hidden is not None
        assert state is not None
        gate, candidate, output = self.joint_proj(torch.cat([state, row, hidden], -1)).chunk(3, -1)
        gate = gate.sigmoid()
        return output.tanh(), gate * state + (1.0 - gate) * candidate.tanh()


def stand_in(head: Head) -> Any:
    """A stand-in for SGLang's module of a head."""
    return module_of(head, vanilla=Vanilla, gated=Gated, rnn=Rnn)


def module_of(head: Head, *, vanilla: Any, gated: Any, rnn: Any) -> Any:
    """A module of these classes with the weights of a head."""
    sizes: dict[str, Any] = {"vocab_size": head.vocab, "markov_rank": head.rank}
    device = head.projection.device
    with torch.device("meta"):
        if isinstance(head, GatedHead):
            module = gated(**sizes, hidden_size=head.hidden_size)
        elif isinstance(head, RnnHead):
            module = rnn(**sizes, hidden_size=head.hidden_size)
        else:
            module = vanilla(**sizes)
    fill(module, head)
    assert all(weight.device == device for weight in module.parameters())
    return module


def fill(module: Any, head: Head) -> None:
    """Give a module the weights of a head, in new memory."""
    module.markov_w1.weight = parameter(head.table)
    module.markov_w2.weight = parameter(head.projection)
    if isinstance(head, GatedHead):
        module.gate_proj.weight = parameter(head.gate_weight)
        module.gate_proj.bias = parameter(head.gate_bias)
    if isinstance(head, RnnHead):
        module.joint_proj.weight = parameter(head.joint_weight)
        module.joint_proj.bias = parameter(head.joint_bias)


class Draft(nn.Module):
    """A draft model: a head under an lm_head whose rows are padded, as a served one's often are.

    Args:
        markov_head: the head.
        vocab: its tokens.
        hidden_size: H.
        scale: of the base logits: small enough that the head's bias decides most tokens.
    """

    sample_from_anchor = True
    confidence_head = None

    def __init__(
        self,
        markov_head: Any,
        *,
        vocab: int,
        hidden_size: int,
        seed: int = 0,
        device: str | torch.device = "cpu",
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.markov_head = markov_head
        self.config = SimpleNamespace(hidden_size=hidden_size)
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(vocab + 27, hidden_size, generator=generator) * scale / hidden_size**0.5
        self.lm_head = nn.Linear(hidden_size, vocab + 27, bias=False, device="meta")
        self.lm_head.weight = parameter(rows.bfloat16().to(device))
        self.lm_head.org_vocab_size = vocab  # type: ignore[assignment]
        self.vocab = vocab

    def compute_base_logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return functional.linear(hidden, self.lm_head.weight)[:, : self.vocab], hidden


class Buffers:
    """What a sampler gives its factory, with greedy and sampled rows."""

    def __init__(
        self, head: Head, *, most: int, steps: int, device: str | torch.device = "cpu"
    ) -> None:
        self.steps = steps
        self.most = most
        self.noise = SimpleNamespace(
            key=0x2D2A9C317E44B1F3 & (2**63 - 1),
            offset=torch.zeros(1, dtype=torch.int64, device=device),
        )
        self.tokens = torch.full((most * steps,), -1, dtype=torch.int64, device=device)
        self.logits = torch.zeros(
            most, steps, head.vocab, dtype=head.projection.dtype, device=device
        )
        self.temperatures = torch.zeros(most, device=device)

    def arguments(self, *, greedy_draft: bool = False) -> dict[str, Any]:
        """The arguments of a factory."""
        return {
            "gamma": self.steps,
            "max_bs": self.most,
            "greedy_draft": greedy_draft,
            "noise": self.noise,
            "draft_tokens": self.tokens,
            "step_logits": None if greedy_draft else self.logits,
            "step_temperatures": self.temperatures,
        }


def strided_anchor(tokens: torch.Tensor, width: int = 5) -> torch.Tensor:
    """Anchors as a column of the draft's input ids, whose other columns are no tokens."""
    ids = torch.full((len(tokens), width), 1 << 40, device=tokens.device)
    ids[:, 0] = tokens
    return ids[:, 0]


def domino_arguments(
    head: DominoHead,
    *,
    block_hidden: torch.Tensor,
    anchor: torch.Tensor,
    in_cuda_graph: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """The arguments of SGLang's Domino rollout, with modules as `DFlashDraftModel` builds them."""
    device = head.table.device
    vocab, width, size = head.vocab, head.hidden_size, head.state_size
    with torch.device("meta"):
        embedding = nn.Embedding(head.table_rows, width)
        projector = nn.Sequential(
            nn.Linear(width + size, head.rank, bias=False),
            nn.SiLU(),
            nn.Linear(head.rank, vocab, bias=False),
        )
    embedding.weight = parameter(head.table)
    projector[0].weight = parameter(head.projector_weight)
    projector[2].weight = parameter(head.projection)
    gru = nn.GRU(width, size, batch_first=True, bias=False, device=device, dtype=torch.bfloat16)
    gru.requires_grad_(False)
    gru.weight_ih_l0.copy_(head.gru_input_weight)
    gru.weight_hh_l0.copy_(head.gru_state_weight)
    rows = torch.randn(vocab + 3, width, generator=torch.Generator().manual_seed(seed))
    return {
        "draft_hidden": block_hidden,
        "bonus_tokens": anchor,
        "target_embedding": embedding,
        "lm_head_weight": (rows / width**0.5).bfloat16().to(device),
        "prefix_gru": gru,
        "embed_proj": projector,
        "vocab_size": vocab,
        "shift_label": head.shift_label,
        "candidate_pool_size": 0,
        "tp_group": None,
        "lm_head_org_vocab_start": 0,
        "lm_head_num_org": None,
        "lm_head_num_org_padded": None,
        "in_cuda_graph": in_cuda_graph,
    }

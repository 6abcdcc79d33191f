"""What is trained, and for how long: sizes of models, settings of phases, named recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

__all__ = [
    "RECIPES",
    "BlockLoss",
    "DrafterShape",
    "Phase",
    "Recipe",
    "TargetShape",
]

QWEN_VOCAB = 151_936
QWEN_END = 151_643  # <|endoftext|>
QWEN_MASK = 151_669  # the first id that no Qwen3 token has


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """Sizes of a Qwen3 model with tied embeddings.

    Args:
        vocab, hidden, layers, heads, kv_heads, head_dim, intermediate: as in its config.json.
        rope_theta: base of the rotary angles.
        max_positions: the longest text.
    """

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float = 10_000.0
    max_positions: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLoss:
    """Weights of the terms of a drafter's loss.

    Args:
        ce: of the cross-entropy of step logits with the text.
        l1: of the L1 distance of draft and target distributions.
        decay: step k counts exp(-k / decay).
        anchored: whether the cross-entropy of base logits comes first and fades out.
    """

    ce: float
    l1: float
    decay: float
    anchored: bool = False


# DeepSpec's published weights for Qwen3 drafters.
DSPARK_LOSS = BlockLoss(ce=0.1, l1=0.9, decay=4.0)
# Domino: cross-entropy alone, with the decay that DFlash uses for blocks of 16.
DOMINO_LOSS = BlockLoss(ce=1.0, l1=0.0, decay=7.0, anchored=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """Sizes of a parallel block drafter and its serial head.

    Args:
        kind: of the head.
        steps: K, tokens of a block.
        layers: of the backbone.
        target_layers: whose outputs it reads, from 0.
        rank: of the latent.
        state: G, elements of a Domino head's state.
        shift_label: of a Domino head: whether step k reads hidden position k, or else k + 1.
        mask_token: what stands for a token that is not known yet.
    """

    kind: str
    steps: int
    layers: int
    target_layers: tuple[int, ...]
    rank: int
    mask_token: int
    state: int = 0
    shift_label: bool = True

    @property
    def queries(self) -> int:
        """Positions that the backbone is run on: Domino counts the anchor, DSpark does not."""
        return self.steps + 1 if self.kind == "domino" else self.steps

    @property
    def first(self) -> int:
        """The first hidden position that a walk reads."""
        return 1 if self.kind == "domino" and not self.shift_label else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """How one model is trained.

    Args:
        budget_s: seconds, evaluation and saving left out.
        sequences: of a step.
        length: tokens of a sequence.
        anchors: blocks of a sequence, for drafters.
        lr: highest learning rate.
        warmup: fraction of the budget in which it rises.
        weight_decay: of matrices.
        chunk: rows of logits made at once.
    """

    budget_s: float
    sequences: int
    length: int
    lr: float
    anchors: int = 0
    warmup: float = 0.04
    weight_decay: float = 0.0
    chunk: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that `lab.run` trains.

    Args:
        target: sizes of the target.
        target_phase: how it is trained.
        drafters: sizes of each drafter, by name, in the order of training.
        phases: how each is trained.
        starts: which drafter's weights another one starts from, where both have them.
        end_token: between documents.
        precision: number type of products, "bf16" or "fp32".
    """

    target: TargetShape
    target_phase: Phase
    drafters: Mapping[str, DrafterShape]
    phases: Mapping[str, Phase]
    starts: Mapping[str, str]
    end_token: int
    precision: str


_SMOKE_DRAFTER = DrafterShape(
    kind="markov", steps=3, layers=1, target_layers=(0, 1), rank=64, mask_token=257
)
_SMOKE_PHASE = Phase(budget_s=2.0, sequences=4, length=48, lr=3e-3, anchors=6, chunk=64)

_SMOKE = Recipe(
    target=TargetShape(
        vocab=264, hidden=32, layers=3, heads=2, kv_heads=1, head_dim=16, intermediate=64,
        max_positions=256,
    ),
    target_phase=_SMOKE_PHASE,
    drafters=MappingProxyType(
        {
            "vanilla-3": _SMOKE_DRAFTER,
            "gated-3": replace(_SMOKE_DRAFTER, kind="gated"),
            "rnn-3": replace(_SMOKE_DRAFTER, kind="rnn"),
            "domino-3": replace(_SMOKE_DRAFTER, kind="domino", state=32),
        }
    ),
    phases=MappingProxyType(
        dict.fromkeys(("vanilla-3", "gated-3", "rnn-3", "domino-3"), _SMOKE_PHASE)
    ),
    starts=MappingProxyType({"gated-3": "vanilla-3", "rnn-3": "vanilla-3"}),
    end_token=256,
    precision="fp32",
)  # fmt: skip

_H200_DRAFTER = DrafterShape(
    kind="markov", steps=16, layers=3, target_layers=(1, 5, 9), rank=256, mask_token=QWEN_MASK
)
# 24 sequences of 40 blocks of 16, or of 90 blocks of 7: 15,000 rows of logits a step.
_LONG = Phase(budget_s=40.0, sequences=24, length=512, lr=1e-3, anchors=40)
_SHORT = replace(_LONG, budget_s=25.0, anchors=90)

_H200 = Recipe(
    target=TargetShape(
        vocab=QWEN_VOCAB, hidden=512, layers=12, heads=8, kv_heads=4, head_dim=64,
        intermediate=1536,
    ),
    target_phase=Phase(
        budget_s=100.0, sequences=64, length=512, lr=1.5e-3, weight_decay=0.05, chunk=8192
    ),
    drafters=MappingProxyType(
        {
            "vanilla-16": _H200_DRAFTER,
            "vanilla-7": replace(_H200_DRAFTER, steps=7),
            "gated-16": replace(_H200_DRAFTER, kind="gated"),
            "gated-7": replace(_H200_DRAFTER, kind="gated", steps=7),
            "rnn-16": replace(_H200_DRAFTER, kind="rnn"),
            "rnn-7": replace(_H200_DRAFTER, kind="rnn", steps=7),
            "domino-15": replace(_H200_DRAFTER, kind="domino", steps=15, state=512),
            "domino-7": replace(_H200_DRAFTER, kind="domino", steps=7, state=512),
        }
    ),
    phases=MappingProxyType(
        {
            "vanilla-16": _LONG,
            "vanilla-7": _SHORT,
            "gated-16": replace(_LONG, budget_s=20.0),
            "gated-7": replace(_SHORT, budget_s=20.0),
            "rnn-16": replace(_LONG, budget_s=20.0),
            "rnn-7": replace(_SHORT, budget_s=20.0),
            "domino-15": replace(_LONG, budget_s=35.0),
            "domino-7": replace(_SHORT, budget_s=20.0),
        }
    ),
    starts=MappingProxyType(
        {
            "vanilla-7": "vanilla-16",
            "gated-16": "vanilla-16",
            "gated-7": "vanilla-7",
            "rnn-16": "vanilla-16",
            "rnn-7": "vanilla-7",
            "domino-15": "vanilla-16",
            "domino-7": "domino-15",
        }
    ),
    end_token=QWEN_END,
    precision="bf16",
)  # fmt: skip

RECIPES: Mapping[str, Recipe] = MappingProxyType({"smoke": _SMOKE, "h200": _H200})
"""By name: "smoke" runs on a CPU in seconds; "h200" takes one H200 about seven minutes."""


def with_budgets(recipe: Recipe, share: float) -> Recipe:
    """The same recipe with a share of its seconds."""

    def less(phase: Phase) -> Phase:
        return replace(phase, budget_s=share * phase.budget_s)

    phases = {name: less(phase) for name, phase in recipe.phases.items()}
    return replace(recipe, target_phase=less(recipe.target_phase), phases=MappingProxyType(phases))


def loss_of(shape: DrafterShape) -> BlockLoss:
    """The published loss of a drafter of this kind."""
    return DOMINO_LOSS if shape.kind == "domino" else DSPARK_LOSS

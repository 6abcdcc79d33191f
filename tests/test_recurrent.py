"""Gated, RNN and Domino heads: what is refused, walks by hand, checkpoints, Walkers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracle_cells
from drafters import (
    DOMINO_W,
    EMBEDDING,
    GATE,
    GRU_INPUT,
    JOINT,
    W1,
    W2,
    domino_fields,
    head_tensors,
    write_drafter,
    write_target,
)
from strategies import (
    KINDS,
    RecurrentHead,
    anchors,
    base_logits,
    hidden_states,
    hopper,
    recurrent_head,
    recurrent_heads,
    silent_head,
)
from wts.errors import CheckpointError, HeadError, InputError, PlanError
from wts.heads.base import Head, VocabularyWeights, weights_of
from wts.heads.domino import DominoHead
from wts.heads.gated import GatedHead
from wts.heads.kinds import RANKS
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead
from wts.kernels.planner import plan_residency
from wts.numerics.gumbel import Noise
from wts.numerics.step_logits import step_logits
from wts.walk.backends import BackendName
from wts.walk.reference import reference_walk
from wts.walk.walker import Walker

BF16 = torch.bfloat16
NAN = math.nan
CPU_BACKENDS: tuple[BackendName, ...] = ("emulator", "reference")

each_kind = pytest.mark.parametrize("kind", KINDS)
each_backend = pytest.mark.parametrize("backend", CPU_BACKENDS)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=BF16)


def arguments(kind: type[RecurrentHead]) -> dict[str, Any]:
    """Weights of zeros that form a head: 8 tokens, r = 64, H = 40, G = 32."""
    dspark = {"table": zeros(8, 64), "projection": zeros(8, 64)}
    if kind is GatedHead:
        return dspark | {"gate_weight": zeros(64, 40 + 64), "gate_bias": zeros(64)}
    if kind is RnnHead:
        return dspark | {"joint_weight": zeros(192, 128 + 40), "joint_bias": zeros(192)}
    return {
        "table": zeros(8, 40),
        "projection": zeros(8, 64),
        "gru_input_weight": zeros(96, 40),
        "gru_state_weight": zeros(96, 32),
        "projector_weight": zeros(64, 40 + 32),
        "shift_label": True,
    }


def same_weights(one: VocabularyWeights, other: VocabularyWeights) -> bool:
    mine, theirs = weights_of(one), weights_of(other)
    return (
        type(one) is type(other)
        and one.vocab == other.vocab
        and mine.keys() == theirs.keys()
        and all(torch.equal(mine[name], theirs[name]) for name in mine)
    )


class TestHeads:
    @each_kind
    def test_sizes(self, kind: type[RecurrentHead]) -> None:
        head: Head = kind(**arguments(kind) | {"logical_vocab": 5})
        assert (head.rank, head.vocab, head.table_rows, head.hidden_size) == (64, 5, 8, 40)
        assert (head.kind, head.table_type) == (kind.kind, "bf16")

    def test_kinds_and_state_size(self) -> None:
        assert [kind.kind for kind in KINDS] == ["gated", "rnn", "domino"]
        assert DominoHead(**arguments(DominoHead)).state_size == 32

    @each_kind
    def test_weights_are_detached_without_a_copy(self, kind: type[RecurrentHead]) -> None:
        given = {
            name: torch.nn.Parameter(value) if isinstance(value, torch.Tensor) else value
            for name, value in arguments(kind).items()
        }
        for name, weight in weights_of(kind(**given)).items():
            assert not weight.requires_grad
            assert weight.data_ptr() == given[name].data_ptr()

    @each_kind
    def test_is_frozen_and_compares_by_identity(self, kind: type[RecurrentHead]) -> None:
        head = recurrent_head(kind)
        with pytest.raises(AttributeError):
            head.table = head.projection  # type: ignore[misc]
        assert head == head
        assert head != recurrent_head(kind)
        assert len({head, recurrent_head(kind)}) == 2

    @each_kind
    def test_repr_shows_sizes_and_no_weights(self, kind: type[RecurrentHead]) -> None:
        text = repr(recurrent_head(kind, draft_vocab=99))
        for word in (kind.__name__, "hidden_size=40", "bfloat16[99, 64]", "draft_to_target"):
            assert word in text
        assert ("shift_label=False" in text) == (kind is DominoHead)
        assert "tensor(" not in text

    @each_kind
    @pytest.mark.parametrize("rank", RANKS)
    def test_supported_ranks(self, kind: type[RecurrentHead], rank: int) -> None:
        head = recurrent_head(kind, vocab=20, rank=rank)
        hidden = hidden_states(head, batch=2, steps=3, seed=1)
        base = base_logits(head, batch=2, steps=3, seed=1)
        assert head.rank == rank
        assert reference_walk(head, base, torch.tensor([1, 2]), hidden=hidden).shape == (2, 3)

    @each_kind
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"table": [1.0]}, ["table", "torch tensor", "list"]),
            ({"projection": torch.zeros(8, 64)}, ["projection", "bfloat16", "float32"]),
            ({"table": torch.zeros(8, 64, dtype=torch.int8)}, ["table", "bfloat16", "int8"]),
            ({"projection": zeros(64, 8).T}, ["projection", "contiguous"]),
            ({"projection": zeros(8, 128)}, ["projection", "[V_rows, 64]", "[8, 128]"]),
            ({"projection": zeros(9, 64)}, ["table", "at least 9 rows", "8 rows"]),
            ({"logical_vocab": 9}, ["logical_vocab", "1..8", "9"]),
            ({"draft_to_target": torch.arange(8) + 1}, ["draft_to_target", "0..7", "id 8"]),
        ],
    )
    def test_refuses_what_a_markov_head_refuses(
        self, kind: type[RecurrentHead], changes: dict[str, Any], words: list[str]
    ) -> None:
        self.expect(kind, changes, words)

    @pytest.mark.parametrize(
        ("kind", "changes", "words"),
        [
            (GatedHead, {"table": zeros(8, 96)}, ["table", "64, 128, 256, 512", "96"]),
            (GatedHead, {"gate_weight": zeros(64, 64)}, ["gate_weight", "[64, at least 65]"]),
            (GatedHead, {"gate_weight": zeros(104, 64)}, ["gate_weight", "[104, 64]"]),
            (GatedHead, {"gate_weight": zeros(64)}, ["gate_weight", "a matrix", "[64]"]),
            (GatedHead, {"gate_bias": zeros(63)}, ["gate_bias", "[64]", "[63]"]),
            (GatedHead, {"gate_bias": zeros(1, 64)}, ["gate_bias", "a vector", "[1, 64]"]),
            (GatedHead, {"gate_bias": torch.zeros(64)}, ["gate_bias", "bfloat16", "float32"]),
            (GatedHead, {"gate_bias": None}, ["gate_bias", "torch tensor", "NoneType"]),
            (RnnHead, {"joint_weight": zeros(192, 128)}, ["joint_weight", "[192, at least 129]"]),
            (RnnHead, {"joint_weight": zeros(64, 168)}, ["joint_weight", "[64, 168]"]),
            (RnnHead, {"joint_bias": zeros(64)}, ["joint_bias", "[192]", "[64]"]),
            (RnnHead, {"table": zeros(8, 96)}, ["table", "64, 128, 256, 512", "96"]),
            (DominoHead, {"gru_input_weight": zeros(96, 41)}, ["gru_input_weight", "[96, 40]"]),
            (DominoHead, {"gru_input_weight": zeros(32, 40)}, ["gru_input_weight", "[96, 40]"]),
            (DominoHead, {"gru_state_weight": zeros(32, 32)}, ["gru_state_weight", "[96, 32]"]),
            (DominoHead, {"gru_state_weight": zeros(90, 30)}, ["gru_state_weight", "of 32"]),
            (DominoHead, {"projector_weight": zeros(64, 71)}, ["projector_weight", "[64, 72]"]),
            (DominoHead, {"projector_weight": zeros(96, 72)}, ["projector_weight", "rank 96"]),
            (DominoHead, {"projector_weight": torch.zeros(64, 72)}, ["projector_weight", "bfloat"]),
            (DominoHead, {"table": zeros(8, 41)}, ["gru_input_weight", "[96, 41]"]),
            (DominoHead, {"shift_label": 1}, ["shift_label", "True or False", "1"]),
            (DominoHead, {"shift_label": None}, ["shift_label", "True or False", "None"]),
        ],
    )
    def test_refuses(
        self, kind: type[RecurrentHead], changes: dict[str, Any], words: list[str]
    ) -> None:
        self.expect(kind, changes, words)

    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            (kind, name)
            for kind in KINDS
            for name in arguments(kind)
            if name not in ("shift_label",)
        ],
    )
    def test_refuses_weights_without_memory(self, kind: type[RecurrentHead], name: str) -> None:
        self.expect(kind, {name: arguments(kind)[name].to("meta")}, [name, "with memory", "meta"])

    @staticmethod
    def expect(kind: type[RecurrentHead], changes: dict[str, Any], words: list[str]) -> None:
        with pytest.raises(HeadError) as caught:
            kind(**arguments(kind) | changes)
        for word in [*words, "wanted", "found", ";"]:
            assert word in str(caught.value)

    @each_kind
    def test_latents_need_hidden_states(self, kind: type[RecurrentHead]) -> None:
        head = recurrent_head(kind)
        with pytest.raises(InputError, match=r"^hidden: wanted .*\[\.\., 40\], found None; "):
            reference_walk(head, base_logits(head, batch=1, steps=2, seed=1), torch.tensor([0]))

    @given(recurrent_heads(), st.integers(0, 99))
    def test_tokens_outside_the_table_are_clamped(self, head: RecurrentHead, seed: int) -> None:
        hidden = hidden_states(head, batch=4, steps=1, seed=seed)[:, 0]
        last = head.table_rows - 1
        outside = head.latent(head.initial_state(4), torch.tensor([-1, last + 1, 0, 2**40]), hidden)
        inside = head.latent(head.initial_state(4), torch.tensor([0, last, 0, last]), hidden)
        for one, other in zip(outside, inside, strict=True):
            assert (one is None) == (other is None)
            if isinstance(one, torch.Tensor):
                assert torch.equal(one, other)  # type: ignore[arg-type]


class TestRandomHeads:
    @each_kind
    def test_are_reproducible(self, kind: type[RecurrentHead]) -> None:
        assert same_weights(recurrent_head(kind), recurrent_head(kind))
        assert not same_weights(recurrent_head(kind), recurrent_head(kind, seed=8))

    @each_kind
    def test_reduced_vocabulary(self, kind: type[RecurrentHead]) -> None:
        head = recurrent_head(kind, draft_vocab=99)
        assert head.draft_to_target is not None
        assert (head.vocab, head.table_rows) == (99, 517)
        assert bool((head.draft_to_target.diff() > 0).all())

    @each_kind
    def test_logits_are_well_spread(self, kind: type[RecurrentHead]) -> None:
        head = recurrent_head(kind, vocab=997, rank=256, hidden_size=64)
        hidden = hidden_states(head, batch=32, steps=4, seed=1)
        state, previous, gaps = head.initial_state(32), anchors(head, 32, 1), []
        for step in range(4):
            state, latent = head.latent(state, previous, hidden[:, step])
            logits = step_logits(
                head, base_logits(head, batch=32, steps=1, seed=step)[:, 0], latent
            )
            top = logits.float().topk(2, 1)
            gaps += [] if latent is None else [top.values[:, 0] - top.values[:, 1]]
            previous = top.indices[:, 0]
        assert float(torch.cat(gaps).median()) > 2
        assert len(previous.unique()) > 25

    @each_kind
    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"vocab": 0}, "vocab"),
            ({"table_rows": 516}, "table_rows"),
            ({"draft_vocab": 518}, "draft_vocab"),
            ({"rank": 100}, "rank"),
        ],
    )
    def test_refuses(self, kind: type[RecurrentHead], changes: dict[str, Any], word: str) -> None:
        with pytest.raises(HeadError, match=f"^{word}: wanted"):
            recurrent_head(kind, **changes)


# ---- walks by hand -----------------------------------------------------------------------------


def one_hot_head(kind: type[RecurrentHead], successors: list[int], gain: float = 8.0) -> Any:
    """Weights of zeros but for a table of unit vectors, and W: `gain` for one successor of each."""
    given = arguments(kind) | {"table": torch.eye(8, arguments(kind)["table"].shape[1]).bfloat16()}
    given["projection"] = zeros(8, 64)
    for token, successor in enumerate(successors):
        given["projection"][successor, token] = gain
    return given


def walks(
    head: RecurrentHead, base: list[list[float]], anchor: int, hidden: list[float]
) -> list[int]:
    """Tokens of one request, the same on both backends; `hidden` is element 0 of each step's."""
    states = zeros(1, len(base), 40)
    states[0, :, 0] = torch.tensor(hidden).bfloat16()
    plan = plan_residency(head, hopper(3), batch=1, steps=8)
    found = [
        Walker(head, plan, backend=backend)(
            torch.tensor([base]).bfloat16(), torch.tensor([anchor]), hidden=states
        )[0].tolist()
        for backend in CPU_BACKENDS
    ]
    assert found[0] == found[1]
    return found[0]


NOTHING = [0.0] * 8


def at(token: int, value: float) -> list[float]:
    """Base logits of 0 but one."""
    return [value if other == token else 0.0 for other in range(8)]


class TestGatedByHand:
    def test_hidden_states_open_and_shut_the_gate(self) -> None:
        """W gives 8 for the successor: 4 at half a gate, all of it or nothing at 100 and -100."""
        given = one_hot_head(GatedHead, [1, 2, 3, 4, 5, 6, 7, 0])
        given["gate_weight"][:, 0] = 100.0
        head = GatedHead(**given)
        assert walks(head, [NOTHING] * 3, 2, [0.0, 1.0, 0.5]) == [3, 4, 5]
        # 3 -> 4 is worth 4 at half a gate: a base of 5 is more, one of 3 is not.
        assert walks(head, [at(6, 5.0)], 3, [0.0]) == [6]
        assert walks(head, [at(6, 3.0)], 3, [0.0]) == [4]
        assert walks(head, [at(6, 7.0), at(1, 7.0)], 3, [1.0, -1.0]) == [4, 1]
        assert walks(head, [at(6, 0.125), NOTHING], 3, [-1.0, -1.0]) == [6, 0]

    def test_the_gate_reads_the_table_row_and_the_bias(self) -> None:
        given = one_hot_head(GatedHead, [1, 2, 3, 4, 5, 6, 7, 0])
        given["gate_bias"][:] = -100.0  # shut,
        given["gate_weight"][:, 40 + 3] = 200.0  # but after token 3
        head = GatedHead(**given)
        assert walks(head, [at(6, 1.0)], 3, [0.0]) == [4]
        assert walks(head, [at(6, 1.0)], 2, [0.0]) == [6]

    def test_roundings(self) -> None:
        """sigmoid(R(0.01)) = 0.50250, as bf16 129 / 256; times 1.5 it is 193.5 / 256, a tie."""
        given = arguments(GatedHead)
        given["gate_bias"][:] = 0.01
        given["table"][:] = 1.5
        latent = GatedHead(**given).latent(None, torch.tensor([0]), zeros(1, 40))[1]
        assert latent.float().unique().tolist() == [194 / 256]


class TestRnnByHand:
    def head(self) -> RnnHead:
        """The state keeps half of itself and takes half of the token; the output reads the state.

        Gate 0 is a half. Candidate 100 e is the token's unit vector. Output 4 state: of the token
        before the previous one tanh(2), of the one before that tanh(1), and so on.
        """
        given = one_hot_head(RnnHead, [1, 2, 3, 4, 5, 6, 7, 0])
        weight, one = given["joint_weight"], torch.eye(64, dtype=BF16)
        weight[64:128, 64:128] = 100 * one
        weight[128:, :64] = 4 * one
        return RnnHead(**given)

    def test_the_state_is_of_the_tokens_before_the_previous_one(self) -> None:
        head = self.head()
        # Step 0: no state, base decides: 5. Step 1: of the anchor 2: 3. Step 2: of 5, ahead of
        # 2: 6. Step 3: of 3 (ahead of 5 and 2): 4.
        assert walks(head, [at(5, 1.0), NOTHING, NOTHING, NOTHING], 2, [0.0] * 4) == [5, 3, 6, 4]

    def test_older_tokens_are_worth_less(self) -> None:
        """8 tanh(2) = 7.7 for the newest, 8 tanh(1) = 6.1 for the one before it."""
        head = self.head()
        # Step 2: 6 (of 5) has 7.7, and 3 (of the anchor 2) has 6.1 and its base.
        for extra, token in ((1.0, 6), (2.0, 3)):
            base = [at(5, 1.0), NOTHING, at(3, extra)]
            assert walks(head, base, 2, [0.0] * 3) == [5, 3, token]

    def test_states_by_hand(self) -> None:
        head = self.head()
        state, latent = head.latent(head.initial_state(1), torch.tensor([2]), zeros(1, 40))
        assert state[0, :4].tolist() == [0.0, 0.0, 0.5, 0.0]
        assert not latent.any()
        state, latent = head.latent(state, torch.tensor([3]), zeros(1, 40))
        assert state[0, :4].tolist() == [0.0, 0.0, 0.25, 0.5]
        assert latent[0, 2].item() == torch.tensor(math.tanh(2.0)).bfloat16().item()

    def test_the_hidden_state_drives_output_and_gate(self) -> None:
        given = one_hot_head(RnnHead, [1, 2, 3, 4, 5, 6, 7, 0])
        given["joint_weight"][128 + 6, 128] = 100.0  # output of element 6: the sign of hidden[0]
        given["joint_bias"][128 + 1] = 0.25
        head = RnnHead(**given)
        # Element 6 favours token 7; element 1 favours token 2 by 8 tanh(0.25) = 1.96.
        assert walks(head, [NOTHING] * 3, 0, [1.0, -1.0, 0.0]) == [7, 2, 2]


class TestDominoByHand:
    def given(self) -> dict[str, Any]:
        """z = 0, so h is the unit vector of the last token; the latent is SiLU(8 h)."""
        given = one_hot_head(DominoHead, [1, 2, 3, 4, 5, 6, 7, 0], gain=1.0)
        given["gru_input_weight"][32:64, :8] = -100.0
        given["gru_input_weight"][64:, :32] = 100 * torch.eye(32, dtype=BF16)
        given["projector_weight"][:32, 40:] = 8 * torch.eye(32, dtype=BF16)
        return given

    def test_the_first_token_is_of_the_base_logits_alone(self) -> None:
        """Whatever the anchor favours (2 -> 3, by 8), the first is 5; then 5 -> 6 -> 7 -> 0."""
        head = DominoHead(**self.given())
        base = [at(5, 0.25), NOTHING, NOTHING, NOTHING]
        assert walks(head, base, 2, [0.0] * 4) == [5, 6, 7, 0]
        assert walks(head, [NOTHING, NOTHING], 2, [0.0] * 2) == [0, 1]

    def test_no_weight_reaches_the_first_token(self) -> None:
        given = self.given()
        given["projection"][3, 9] = NAN
        assert walks(DominoHead(**given), [at(5, 1.0), NOTHING], 2, [0.0, 0.0]) == [5, 3]

    def test_the_state_is_primed_with_the_anchor_and_the_first_token(self) -> None:
        """z = 1 after token 5: h stays what it was before, the unit vector of the anchor."""
        given = self.given()
        given["gru_input_weight"][32:64, 5] = 100.0
        head = DominoHead(**given)
        # 5 is taken for its base and leaves h at 2; 3 follows; then 4.
        assert walks(head, [at(5, 1.0), NOTHING, NOTHING], 2, [0.0] * 3) == [5, 3, 4]
        # An anchor of 5 leaves h at 0: after a first token 6 it is that of 6.
        assert walks(head, [at(6, 1.0), NOTHING], 5, [0.0] * 2) == [6, 7]

    def test_the_projector_reads_the_hidden_state_of_its_step(self) -> None:
        given = self.given()
        given["projector_weight"][10, 0] = 1.0
        given["projection"][4, 10] = 1.0
        head = DominoHead(**given)
        # SiLU(16) = 16 for token 4, ahead of 8 for the successor; in the first step nothing.
        assert walks(head, [NOTHING] * 4, 0, [16.0, 0.0, 16.0, 0.0]) == [0, 1, 4, 5]

    def test_the_reset_gate_holds_back_the_state(self) -> None:
        """n reads W_hn h where r is 1: the anchor's successor in a row, held back after token 6."""
        given = self.given()
        given["gru_state_weight"][64:, :] = 100 * torch.eye(32, dtype=BF16)
        given["gru_input_weight"][:32, 6] = -100.0  # r = 0 after token 6
        given["gru_input_weight"][:32, 5] = 100.0  # r = 1 after token 5
        given["gru_input_weight"][64:, :32] = torch.eye(32, dtype=BF16)
        head = DominoHead(**given)
        base = [at(5, 1.0), NOTHING]
        # After anchor 2 h is tanh(1) there. 5 with r = 1 makes it 1 at 2, ahead of tanh(1) at 5.
        assert walks(head, base, 2, [0.0] * 2) == [5, 3]
        assert walks(head, [at(6, 1.0), NOTHING], 2, [0.0] * 2) == [6, 7]

    @pytest.mark.parametrize("shift_label", [False, True])
    def test_shift_label_chooses_the_hidden_positions(self, shift_label: bool) -> None:
        given = self.given() | {"shift_label": shift_label}
        given["projector_weight"][10, 0] = 1.0
        given["projection"][4, 10] = 1.0
        head = DominoHead(**given)
        block = zeros(1, 5, 40)
        block[0, :, 0] = torch.tensor([0.0, 16.0, 0.0, 0.0, 16.0])
        chosen = head.drafting_hidden(block)
        assert chosen.shape == (1, 4, 40)
        assert chosen.untyped_storage().data_ptr() == block.untyped_storage().data_ptr()
        seen = chosen[0, :, 0].tolist()
        assert seen == ([0.0, 16.0, 0.0, 0.0] if shift_label else [16.0, 0.0, 0.0, 16.0])
        # Tokens 4 where a step reads a 16, the first step excepted.
        wanted = [0, 4, 5, 6] if shift_label else [0, 1, 2, 4]
        assert walks(head, [NOTHING] * 4, 0, seen) == wanted

    def test_sampled_the_first_token_is_drawn_of_the_base_logits(self) -> None:
        head = DominoHead(**self.given())
        plan = plan_residency(head, hopper(3), batch=1, steps=8, sampled=True)
        base = torch.tensor([[at(5, 2.0), NOTHING, NOTHING]]).bfloat16()
        for backend in CPU_BACKENDS:
            logits = torch.zeros_like(base)
            tokens = Walker(head, plan, backend=backend)(
                base,
                torch.tensor([2]),
                hidden=zeros(1, 3, 40),
                temperatures=torch.tensor([1.0]),
                noise=Noise(key=5, offset=torch.tensor([0])),
                logits_out=logits,
            )
            assert torch.equal(logits[0, 0], base[0, 0])
            assert int(logits[0, 1].argmax()) == (int(tokens[0, 0]) + 1) % 8
            assert logits[0, 1].max() == 8.0


class TestFormula:
    """The reference against loops in numpy, and its GRU against torch's."""

    @each_kind
    @pytest.mark.parametrize("draft_vocab", [None, 40])
    def test_walks_are_those_of_plain_loops(
        self, kind: type[RecurrentHead], draft_vocab: int | None
    ) -> None:
        head = recurrent_head(kind, vocab=70, draft_vocab=draft_vocab)
        base = base_logits(head, batch=2, steps=5, seed=1)
        anchor = torch.tensor([3, -5])
        hidden = hidden_states(head, batch=2, steps=5, seed=2)
        found = reference_walk(head, base, anchor, hidden=hidden)
        assert torch.equal(found, oracle_cells.formula_walk(head, base, anchor, hidden))
        assert len(found.unique()) > 5

    def test_the_gru_is_torchs(self) -> None:
        """In fp32, so that only the roundings of ours to bf16 are between them."""
        head = recurrent_head(DominoHead, hidden_size=64, state_size=96)
        assert isinstance(head, DominoHead)
        gru = torch.nn.GRUCell(64, 96, bias=False)
        gru.weight_ih.data = head.gru_input_weight.float()
        gru.weight_hh.data = head.gru_state_weight.float()
        tokens = torch.randint(0, 517, (6, 50), generator=torch.Generator().manual_seed(1))
        state, wanted = head.initial_state(50), torch.zeros(50, 96)
        for previous in tokens:
            wanted = gru(head.table[previous].float(), wanted).detach()
            state, _ = head.latent(state, previous, zeros(50, 64))
            assert isinstance(state, torch.Tensor)
            off = (state.float() - wanted).abs()
            assert off.max() < 0.04
            assert off.mean() < 2.0**-9
            wanted = state.float()


# ---- checkpoints -------------------------------------------------------------------------------


def write(folder: Path, head: RecurrentHead, **changes: Any) -> Path:
    """A drafter's folder, and its target's within."""
    write_target(folder / "target", head)
    return write_drafter(folder, head, **changes)


def read(kind: type[RecurrentHead], folder: Path, **more: Any) -> RecurrentHead:
    if kind is DominoHead:
        more = {"target": folder / "target"} | more
    found: RecurrentHead = kind.from_checkpoint(folder, **more)
    return found


class TestFromCheckpoint:
    @each_kind
    @pytest.mark.parametrize("shards", [1, 2, 5])
    def test_round_trip(self, kind: type[RecurrentHead], shards: int, tmp_path: Path) -> None:
        head = recurrent_head(kind)
        assert same_weights(read(kind, write(tmp_path, head, shards=shards)), head)

    @each_kind
    def test_reduced_padded_and_behind_model(
        self, kind: type[RecurrentHead], tmp_path: Path
    ) -> None:
        head = recurrent_head(kind, draft_vocab=99)
        tensors = head_tensors(head, prefix="model.")
        name = f"model.{DOMINO_W if kind is DominoHead else W2}"
        tensors[name] = torch.cat([tensors[name], torch.ones(5, 64, dtype=BF16)])
        found = read(kind, write(tmp_path, head, tensors=tensors))
        assert (found.vocab, found.projection.shape[0]) == (99, 104)
        assert found.draft_to_target is not None
        assert torch.equal(found.draft_to_target[:99], head.draft_to_target)  # type: ignore[arg-type]

    @pytest.mark.parametrize("shift_label", [False, True])
    @pytest.mark.parametrize("nested", [False, True])
    def test_domino_fields_may_stand_beside_or_inside(
        self, shift_label: bool, nested: bool, tmp_path: Path
    ) -> None:
        head = recurrent_head(DominoHead, shift_label=shift_label)
        fields = domino_fields(head)
        write(tmp_path, head, **({} if nested else fields | {"dflash_config": None}))
        found = read(DominoHead, tmp_path)
        assert isinstance(found, DominoHead)
        assert found.shift_label is shift_label
        assert same_weights(found, head)

    @pytest.mark.parametrize(
        "prefix",
        ["", "model.", "language_model.", "language_model.model.", "model.language_model."],
    )
    def test_where_a_targets_embedding_may_be(self, prefix: str, tmp_path: Path) -> None:
        head = recurrent_head(DominoHead)
        write(tmp_path, head)
        write_target(tmp_path / "other", head, prefix=prefix)
        assert same_weights(read(DominoHead, tmp_path, target=str(tmp_path / "other")), head)

    @pytest.mark.parametrize(
        ("kind", "config", "words"),
        [
            (GatedHead, {"hidden_size": None}, ["hidden_size", "positive integer", "nothing"]),
            (GatedHead, {"hidden_size": 41}, [f"{GATE}.weight", "[64, 105]", "[64, 104]"]),
            (GatedHead, {"hidden_size": "40"}, ["hidden_size", "positive integer", "'40'"]),
            (GatedHead, {"markov_rank": 96}, ["markov_rank", "64, 128, 256, 512", "96"]),
            (GatedHead, {"markov_rank": None}, ["markov_rank", "positive integer", "nothing"]),
            (GatedHead, {"markov_head_type": "vanilla"}, ["'gated'", "'vanilla'", "MarkovHead"]),
            (GatedHead, {"markov_head_type": "rnn"}, ["'gated'", "'rnn'", "RnnHead"]),
            (GatedHead, {"markov_head_type": "lstm"}, ["'gated'", "'lstm'", "no other"]),
            (GatedHead, {"projector_type": "domino"}, ["shift_label", "true or false", "nothing"]),
            (RnnHead, {"hidden_size": 39}, [f"{JOINT}.weight", "[192, 167]", "[192, 168]"]),
            (RnnHead, {"hidden_size": None}, ["hidden_size", "positive integer", "nothing"]),
            (RnnHead, {"markov_head_type": "gated"}, ["'rnn'", "'gated'", "GatedHead"]),
            (RnnHead, {"draft_vocab_size": 99}, ["tensor d2t", "99 draft ids", "none"]),
            (DominoHead, {"hidden_size": None}, ["hidden_size", "positive integer", "nothing"]),
            (DominoHead, {"hidden_size": 41}, [GRU_INPUT, "[96, 41]", "[96, 40]"]),
            (DominoHead, {"emb_dim": 128}, ["emb_dim", "128", "64"]),
            (DominoHead, {"vocab_size": 518}, [DOMINO_W, "[518, 64]", "[517, 64]", "padding"]),
        ],
    )
    def test_refuses_config(
        self, kind: type[RecurrentHead], config: dict[str, Any], words: list[str], tmp_path: Path
    ) -> None:
        write(tmp_path, recurrent_head(kind), **config)
        self.expect(kind, tmp_path, words)

    @pytest.mark.parametrize(
        ("field", "value", "words"),
        [
            ("projector_type", "none", ["markov_rank", "nothing"]),
            ("emb_dim", 96, ["emb_dim", "64, 128, 256, 512", "96"]),
            ("emb_dim", None, ["emb_dim", "positive integer", "None"]),
            ("emb_dim", 128, [DOMINO_W, "[517, 128]", "[517, 64]"]),
            ("gru_hidden_dim", 0, ["gru_hidden_dim", "positive integer", "0"]),
            ("gru_hidden_dim", 64, [GRU_INPUT, "[192, 40]", "[96, 40]"]),
            ("shift_label", None, ["shift_label", "true or false", "None"]),
            ("shift_label", 1, ["shift_label", "true or false", "1"]),
            ("pure_draft_prefix_len", 2, ["pure_draft_prefix_len", "1", "2"]),
        ],
    )
    def test_refuses_domino_fields(
        self, field: str, value: object, words: list[str], tmp_path: Path
    ) -> None:
        head = recurrent_head(DominoHead)
        write(tmp_path, head, dflash_config=domino_fields(head) | {field: value})
        self.expect(DominoHead, tmp_path, words)

    @pytest.mark.parametrize("missing", ["shift_label", "pure_draft_prefix_len", "emb_dim"])
    def test_refuses_missing_domino_fields(self, missing: str, tmp_path: Path) -> None:
        head = recurrent_head(DominoHead)
        fields = domino_fields(head)
        del fields[missing]
        write(tmp_path, head, dflash_config=fields)
        self.expect(DominoHead, tmp_path, [missing, "nothing"])

    @pytest.mark.parametrize(
        ("kind", "name"),
        [(kind, name) for kind in KINDS for name in head_tensors(recurrent_head(kind))],
    )
    def test_refuses_missing_misshapen_and_quantised_tensors(
        self, kind: type[RecurrentHead], name: str, tmp_path: Path
    ) -> None:
        head = recurrent_head(kind)
        whole = head_tensors(head)
        value = whole[name]
        without = {other: tensor for other, tensor in whole.items() if other != name}
        room = name.split(".")[0]
        rest = [other for other in without if other.startswith(room)][:1]
        write(tmp_path, head, tensors=without)
        self.expect(kind, tmp_path, [name, "none of that name", str(list(value.shape)), *rest])
        for wrong in (value[:-1], torch.cat([value, value[:1], value]), value[None]):
            if not (name in (W1, W2, DOMINO_W) and wrong.ndim == 2 and len(wrong) > len(value)):
                write(tmp_path, head, tensors=whole | {name: wrong.contiguous()})
                found = str(list(wrong.shape))
                self.expect(kind, tmp_path, [name, str(list(value.shape)), found])
        for dtype in (torch.int8, torch.float8_e4m3fn, torch.float32, torch.float16):
            write(tmp_path, head, tensors=whole | {name: value.to(dtype)})
            kept = str(dtype).removeprefix("torch.")
            self.expect(kind, tmp_path, [name, "bfloat16", kept, "dequantise"])

    @each_kind
    def test_refuses_an_adapter(self, kind: type[RecurrentHead], tmp_path: Path) -> None:
        head = recurrent_head(kind)
        adapted = {}
        for name in head_tensors(head):
            stem = name.removesuffix(".weight")
            adapted[f"{stem}.lora_A.weight"] = torch.zeros(4, 64)
            adapted[f"{stem}.lora_B.weight"] = torch.zeros(64, 4)
        write(tmp_path, head, tensors=adapted)
        self.expect(kind, tmp_path, ["lora_A", "no adapter"])

    def test_names_what_a_target_lacks(self, tmp_path: Path) -> None:
        head = recurrent_head(DominoHead)
        write(tmp_path, head)
        self.expect(DominoHead, tmp_path, ["0 *.safetensors"], target=tmp_path / "nowhere")
        write_drafter(tmp_path / "bare", head)
        self.expect(DominoHead, tmp_path, [EMBEDDING, "[517, 40]"], target=tmp_path / "bare")
        other = recurrent_head(DominoHead, hidden_size=41)
        write_target(tmp_path / "wide", other)
        self.expect(
            DominoHead, tmp_path, [EMBEDDING, "[517, 40]", "[520, 41]"], target=tmp_path / "wide"
        )
        write_target(tmp_path / "few", recurrent_head(DominoHead, vocab=100))
        self.expect(DominoHead, tmp_path, [EMBEDDING, "[103, 40]"], target=tmp_path / "few")

    def test_one_kind_is_not_read_as_another(self, tmp_path: Path) -> None:
        for kind in KINDS:
            write(tmp_path / kind.kind, recurrent_head(kind))
        markov: list[tuple[Callable[[Path], object], str, str]] = [
            (MarkovHead.from_checkpoint, "gated", "GatedHead"),
            (MarkovHead.from_checkpoint, "rnn", "RnnHead"),
            (MarkovHead.from_checkpoint, "domino", "DominoHead"),
            (GatedHead.from_checkpoint, "domino", "DominoHead"),
            (RnnHead.from_checkpoint, "domino", "DominoHead"),
        ]
        for reading, written, named in markov:
            with pytest.raises(CheckpointError, match=f"{named}.from_checkpoint"):
                reading(tmp_path / written)
        with pytest.raises(CheckpointError, match=r"projector_type.*GatedHead or RnnHead"):
            DominoHead.from_checkpoint(tmp_path / "rnn", target=tmp_path / "rnn" / "target")

    def test_a_config_that_is_an_odd_object_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path, recurrent_head(DominoHead), dflash_config=["projector_type"])
        self.expect(DominoHead, tmp_path, ["markov_rank", "nothing"])
        assert json.loads((tmp_path / "config.json").read_text())["hidden_size"] == 40

    @staticmethod
    def expect(
        kind: type[RecurrentHead], folder: Path, words: list[str], target: Path | None = None
    ) -> None:
        with pytest.raises(CheckpointError) as caught:
            read(kind, folder, **({} if target is None else {"target": target}))
        for word in [*words, str(folder), "wanted", "found", ";"]:
            assert word in str(caught.value)


# ---- Walkers -----------------------------------------------------------------------------------


def walker(head: RecurrentHead | MarkovHead, backend: Any, **more: Any) -> Walker:
    plan = plan_residency(head, hopper(3), batch=4, steps=8, sampled=more.pop("sampled", False))
    return Walker(head, plan, backend=backend, **more)


def call_inputs(head: Head, batch: int = 2, steps: int = 5) -> dict[str, Any]:
    base = base_logits(head, batch=batch, steps=steps, seed=1)
    return {
        "base_logits": (base.float() / 4).bfloat16(),
        "anchor": anchors(head, batch, 1),
        "hidden": hidden_states(head, batch=batch, steps=steps, seed=2),
    }


class TestWalker:
    @each_kind
    @each_backend
    def test_a_plan_for_another_kind_or_state_is_refused(
        self, kind: type[RecurrentHead], backend: BackendName
    ) -> None:
        head = recurrent_head(kind)
        others = [recurrent_head(other) for other in KINDS if other is not kind]
        others += [recurrent_head(kind, state_size=64)] if kind is DominoHead else []
        for other in others:
            with pytest.raises(PlanError, match=r"^plan: wanted one for .*found"):
                Walker(head, plan_residency(other, hopper(3)), backend=backend)

    @each_kind
    @each_backend
    def test_out_strides_and_gradients(
        self, kind: type[RecurrentHead], backend: BackendName
    ) -> None:
        head = recurrent_head(kind)
        walk, given = walker(head, backend), call_inputs(head)
        tokens = walk(**given)
        out = torch.full((2, 5), -7)
        assert walk(**given, out=out) is out
        assert torch.equal(out, tokens)
        wide = torch.full((2, 6, 50), NAN, dtype=BF16)
        wide[:, 1:, :40] = given["hidden"]
        for hidden in (wide[:, 1:, :40], given["hidden"].clone().requires_grad_()):
            found = walk(**given | {"hidden": hidden})
            assert torch.equal(found, tokens)
            assert not found.requires_grad

    @each_kind
    @each_backend
    def test_clamped_anchors_are_counted(
        self, kind: type[RecurrentHead], backend: BackendName
    ) -> None:
        head = recurrent_head(kind)
        walk = walker(head, backend)
        walk(**call_inputs(head) | {"anchor": torch.tensor([-1, 2**40])})
        walk(**call_inputs(head))
        assert walk.report().clamped_anchors == 2

    @each_kind
    @each_backend
    @pytest.mark.parametrize(
        ("hidden", "words"),
        [
            (None, "None|NoneType"),
            ([[0.0]], "list"),
            (torch.zeros(2, 5, 40), "float32"),
            (zeros(2, 5, 41), r"\[2, 5, 40\].*\[2, 5, 41\]"),
            (zeros(2, 6, 40), r"\[2, 5, 40\].*\[2, 6, 40\]"),
            (zeros(1, 5, 40), r"\[2, 5, 40\].*\[1, 5, 40\]"),
            (zeros(10, 40), r"\[2, 5, 40\].*\[10, 40\]"),
            (zeros(2, 5, 40).to("meta"), "meta"),
        ],
    )
    def test_hidden_states_that_do_not_fit_are_refused(
        self, kind: type[RecurrentHead], backend: BackendName, hidden: Any, words: str
    ) -> None:
        head = recurrent_head(kind)
        with pytest.raises(InputError, match=rf"^hidden: wanted .*({words}).*; "):
            walker(head, backend)(**call_inputs(head) | {"hidden": hidden})

    @each_kind
    @each_backend
    def test_weights_are_served_from_the_refresh_on(
        self, kind: type[RecurrentHead], backend: BackendName
    ) -> None:
        head, other = recurrent_head(kind), recurrent_head(kind, seed=99)
        walk, given = walker(head, backend), call_inputs(head)
        before = walk(**given)
        wanted = walker(other, backend)(**given)
        assert not torch.equal(before, wanted)
        for name, weight in weights_of(head).items():
            weight.copy_(weights_of(other)[name])
        assert torch.equal(walk(**given), before)
        walk.refresh(head)
        assert torch.equal(walk(**given), wanted)

    @each_kind
    @each_backend
    def test_refresh_refuses_another_kind_or_size_and_serves_on(
        self, kind: type[RecurrentHead], backend: BackendName
    ) -> None:
        head = recurrent_head(kind)
        walk, given = walker(head, backend), call_inputs(head)
        before = walk(**given)
        kinds: list[Any] = [other for other in KINDS if other is not kind]
        for changed in [recurrent_head(other) for other in kinds] + [silent_head(517)]:
            with pytest.raises(HeadError, match=rf"^head: wanted a {kind.__name__}, .*found"):
                walk.refresh(changed)
        sizes = [{"hidden_size": 41}] + ([{"state_size": 64}] if kind is DominoHead else [])
        for size in sizes:
            with pytest.raises(PlanError, match=r"^(head\.|plan: ).* .*found"):
                walk.refresh(recurrent_head(kind, **size))
        with pytest.raises(PlanError, match=r"^plan: wanted one for"):
            walk.refresh(recurrent_head(kind, vocab=516))
        assert walk.head is head
        assert torch.equal(walk(**given), before)

    @each_backend
    def test_a_markov_walker_refuses_other_kinds(self, backend: BackendName) -> None:
        walk = walker(MarkovHead.random(vocab=517, rank=64, seed=1), backend)
        with pytest.raises(HeadError, match=r"wanted a MarkovHead, .*found GatedHead"):
            walk.refresh(recurrent_head(GatedHead))

    @each_kind
    def test_says_what_it_holds(self, kind: type[RecurrentHead]) -> None:
        head = recurrent_head(kind)
        weights = sum(weight.nbytes for weight in weights_of(head).values())
        assert walker(head, "reference").memory_bytes == weights
        emulator = walker(head, "emulator")
        assert emulator.memory_bytes > emulator.plan.shard.padded_vocab * 68

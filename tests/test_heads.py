"""Heads: what is accepted, what is refused and in which words, and how checkpoints are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from drafters import W1, W2, head_tensors, write_config, write_drafter
from wts.errors import CheckpointError, HeadError
from wts.heads.base import Head
from wts.heads.config import read_config
from wts.heads.draft_ids import D2tReading, draft_map
from wts.heads.kinds import RANKS
from wts.heads.markov import MarkovHead

BF16 = torch.bfloat16


def small_head(**changes: Any) -> MarkovHead:
    arguments: dict[str, Any] = {"vocab": 37, "rank": 64, "seed": 1} | changes
    return MarkovHead.random(**arguments)


def same_weights(one: MarkovHead, other: MarkovHead) -> bool:
    maps = (one.draft_to_target, other.draft_to_target)
    same_map = maps == (None, None) or (
        maps[0] is not None and maps[1] is not None and torch.equal(maps[0], maps[1])
    )
    return (
        same_map
        and one.vocab == other.vocab
        and torch.equal(one.table, other.table)
        and torch.equal(one.projection, other.projection)
    )


class TestMarkovHead:
    def test_sizes(self) -> None:
        head = MarkovHead(table=torch.zeros(50, 128, dtype=BF16), projection=torch.zeros(40, 128))
        assert (head.kind, head.rank, head.vocab, head.table_rows) == ("markov", 128, 40, 50)

    def test_logical_vocab_is_the_vocabulary(self) -> None:
        head = MarkovHead(
            table=torch.zeros(40, 64), projection=torch.zeros(48, 64), logical_vocab=40
        )
        assert head.vocab == 40

    def test_is_a_head(self) -> None:
        head: Head = small_head()
        assert head.initial_state(3) is None

    def test_latent_is_the_row_of_the_previous_token(self) -> None:
        head = small_head()
        state, latent = head.latent(None, torch.tensor([5, 0, 36]), None)
        assert state is None
        assert latent.dtype == BF16
        assert torch.equal(latent, torch.stack([head.table[5], head.table[0], head.table[36]]))

    def test_latent_clamps_tokens_outside_the_table(self) -> None:
        head = small_head()
        _, latent = head.latent(None, torch.tensor([-1, 37, 2**40, -(2**62)]))
        assert torch.equal(latent, head.table[torch.tensor([0, 36, 36, 0])])

    def test_weights_that_require_grad_are_detached_without_a_copy(self) -> None:
        weight = torch.nn.Parameter(torch.zeros(8, 64))
        head = MarkovHead(table=weight, projection=weight)
        assert not head.table.requires_grad
        assert not head.projection.requires_grad
        assert head.table.data_ptr() == weight.data_ptr()

    def test_is_frozen_and_compares_by_identity(self) -> None:
        head = small_head()
        with pytest.raises(AttributeError):
            head.table = head.projection  # type: ignore[misc]
        assert head == head
        assert head != small_head()
        assert len({head, small_head()}) == 2

    def test_repr_shows_sizes_and_no_weights(self) -> None:
        text = repr(small_head(draft_vocab=9, vocab=37))
        assert "bfloat16[9, 64]" in text
        assert "draft_to_target" in text
        assert "tensor(" not in text

    @pytest.mark.parametrize("rank", RANKS)
    def test_supported_ranks(self, rank: int) -> None:
        assert MarkovHead(table=torch.zeros(3, rank), projection=torch.zeros(3, rank)).rank == rank

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"table": [1.0]}, ["table", "torch tensor", "list"]),
            ({"projection": torch.nn.Linear(64, 8)}, ["projection", "torch tensor", "Linear"]),
            ({"table": torch.zeros(64)}, ["table", "float32[64]"]),
            ({"table": torch.zeros(0, 64)}, ["table", "at least one row"]),
            ({"table": torch.zeros(8, 64, dtype=torch.int8)}, ["table", "bfloat16", "int8"]),
            ({"projection": torch.zeros(8, 64).double()}, ["projection", "float64"]),
            ({"table": torch.zeros(8, 64, device="meta")}, ["table", "with memory", "meta"]),
            ({"table": torch.zeros(64, 8).T}, ["table", "contiguous", "[1, 8]"]),
            ({"table": torch.zeros(8, 96)}, ["table", "64, 128, 256, 512", "rank 96"]),
            ({"projection": torch.zeros(8, 128)}, ["projection", "[V_rows, 64]", "[8, 128]"]),
            ({"table": torch.zeros(7, 64)}, ["table", "at least 8 rows", "7 rows"]),
            ({"logical_vocab": 0}, ["logical_vocab", "1..8", "0"]),
            ({"logical_vocab": 9}, ["logical_vocab", "1..8", "9"]),
            ({"logical_vocab": True}, ["logical_vocab", "True"]),
            ({"logical_vocab": 8.0}, ["logical_vocab", "8.0"]),
            ({"draft_to_target": [1]}, ["draft_to_target", "int64[8]", "list"]),
            ({"draft_to_target": torch.arange(7)}, ["draft_to_target", "int64[8]", "int64[7]"]),
            ({"draft_to_target": torch.arange(8).int()}, ["draft_to_target", "int32[8]"]),
            ({"draft_to_target": torch.arange(16)[::2]}, ["draft_to_target", "strides [2]"]),
            ({"draft_to_target": torch.arange(8) + 1}, ["draft_to_target", "0..7", "id 8"]),
            ({"draft_to_target": torch.arange(8) - 1}, ["draft_to_target", "0..7", "id -1"]),
            ({"draft_to_target": torch.zeros(8).long()}, ["draft_to_target", "distinct", "d2t"]),
        ],
    )
    def test_refuses(self, changes: dict[str, Any], words: list[str]) -> None:
        arguments = {"table": torch.zeros(8, 64), "projection": torch.zeros(8, 64)} | changes
        with pytest.raises(HeadError) as caught:
            MarkovHead(**arguments)
        for word in [*words, "wanted", "found", ";"]:
            assert word in str(caught.value)

    def test_padding_of_the_map_is_not_read(self) -> None:
        head = MarkovHead(
            table=torch.zeros(20, 64),
            projection=torch.zeros(8, 64),
            draft_to_target=torch.tensor([3, 5, 19, 0, -7, -7, 99, 99]),
            logical_vocab=4,
        )
        assert head.vocab == 4


class TestRandomHead:
    def test_is_reproducible(self) -> None:
        assert same_weights(small_head(), small_head())
        assert not same_weights(small_head(), small_head(seed=2))

    def test_reduced_vocabulary(self) -> None:
        head = small_head(draft_vocab=11)
        assert head.draft_to_target is not None
        assert (head.vocab, head.table_rows) == (11, 37)
        assert bool((head.draft_to_target.diff() > 0).all())

    @pytest.mark.parametrize(
        ("dtype", "number_type"),
        [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")],
    )
    def test_dtype(self, dtype: torch.dtype, number_type: str) -> None:
        head = small_head(dtype=dtype)
        assert head.table.dtype == head.projection.dtype == dtype
        assert head.table_type == number_type

    def test_logits_are_well_spread(self) -> None:
        head = small_head(vocab=997, rank=256)
        logits = head.table.float() @ head.projection.float().T
        top = logits.topk(2, dim=1).values
        assert float((top[:, 0] - top[:, 1]).median()) > 3
        assert len(set(logits.argmax(dim=1).tolist())) > 900

    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"vocab": 0}, "vocab"),
            ({"table_rows": 36}, "table_rows"),
            ({"draft_vocab": 38}, "draft_vocab"),
            ({"draft_vocab": 0}, "draft_vocab"),
            ({"rank": 100}, "rank"),
            ({"dtype": torch.int8}, "dtype"),
        ],
    )
    def test_refuses(self, changes: dict[str, Any], word: str) -> None:
        with pytest.raises(HeadError, match=f"^{word}: wanted"):
            small_head(**changes)


class TestFromCheckpoint:
    @pytest.mark.parametrize("shards", [1, 2, 3])
    def test_round_trip(self, tmp_path: Path, shards: int) -> None:
        head = small_head()
        write_drafter(tmp_path, head, shards=shards)
        assert same_weights(MarkovHead.from_checkpoint(tmp_path), head)

    def test_names_behind_model(self, tmp_path: Path) -> None:
        head = small_head(draft_vocab=11)
        write_drafter(tmp_path, head, tensors=head_tensors(head, prefix="model."))
        assert same_weights(MarkovHead.from_checkpoint(str(tmp_path)), head)

    def test_one_file_of_another_name(self, tmp_path: Path) -> None:
        head = small_head()
        write_drafter(tmp_path, head)
        (tmp_path / "model.safetensors").rename(tmp_path / "drafter.safetensors")
        assert same_weights(MarkovHead.from_checkpoint(tmp_path), head)

    def test_model_safetensors_goes_before_other_files(self, tmp_path: Path) -> None:
        head = small_head()
        write_drafter(tmp_path, head)
        save_file({"other": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
        assert same_weights(MarkovHead.from_checkpoint(tmp_path), head)

    def test_dtypes_are_kept(self, tmp_path: Path) -> None:
        head = small_head()
        tensors = {W1: head.table.half(), W2: head.projection.float()}
        write_drafter(tmp_path, head, tensors=tensors)
        read = MarkovHead.from_checkpoint(tmp_path)
        assert (read.table.dtype, read.projection.dtype) == (torch.float16, torch.float32)

    def test_padded_projection(self, tmp_path: Path) -> None:
        head = small_head()
        padded = torch.cat([head.projection, torch.full((11, 64), 9.0, dtype=BF16)])
        write_drafter(tmp_path, head, tensors={W1: head.table, W2: padded})
        read = MarkovHead.from_checkpoint(tmp_path)
        assert (read.vocab, read.projection.shape[0], read.table_rows) == (37, 48, 37)

    def test_drafter_that_keeps_the_padding_in_its_config(self, tmp_path: Path) -> None:
        head = small_head(vocab=48)
        write_drafter(tmp_path, head, vocab_size=37, draft_vocab_size=48)
        read = MarkovHead.from_checkpoint(tmp_path)
        assert (read.vocab, read.table_rows, read.draft_to_target) == (37, 37, None)

    def test_reduced_and_padded(self, tmp_path: Path) -> None:
        head = small_head(draft_vocab=11)
        tensors = head_tensors(head)
        tensors[W2] = torch.cat([head.projection, torch.zeros(5, 64, dtype=BF16)])
        write_drafter(tmp_path, head, tensors=tensors)
        read = MarkovHead.from_checkpoint(tmp_path)
        assert (read.vocab, read.projection.shape[0]) == (11, 16)
        assert read.draft_to_target is not None
        assert head.draft_to_target is not None
        assert torch.equal(read.draft_to_target[:11], head.draft_to_target)

    def test_map_of_zero_offsets_is_no_map(self, tmp_path: Path) -> None:
        head = small_head()
        tensors = head_tensors(head) | {"d2t": torch.zeros(37, dtype=torch.int64)}
        write_drafter(tmp_path, head, tensors=tensors)
        assert MarkovHead.from_checkpoint(tmp_path).draft_to_target is None

    def test_reduced_map_of_zero_offsets_is_a_map(self, tmp_path: Path) -> None:
        head = small_head(draft_vocab=11)
        tensors = head_tensors(head) | {"d2t": torch.zeros(11, dtype=torch.int64)}
        write_drafter(tmp_path, head, tensors=tensors)
        read = MarkovHead.from_checkpoint(tmp_path)
        assert read.draft_to_target is not None
        assert read.draft_to_target.tolist() == list(range(11))

    def test_ambiguous_map_is_settled_by_the_caller(self, tmp_path: Path) -> None:
        head = small_head(draft_vocab=4)
        tensors = head_tensors(head) | {"d2t": torch.tensor([0, 1, 3, 5])}
        write_drafter(tmp_path, head, tensors=tensors)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: d2t.*d2t_reading"):
            MarkovHead.from_checkpoint(tmp_path)
        read = MarkovHead.from_checkpoint(tmp_path, d2t_reading="ids")
        assert read.draft_to_target is not None
        assert read.draft_to_target.tolist() == [0, 1, 3, 5]

    def test_mask_settles_the_map(self, tmp_path: Path) -> None:
        head = small_head(draft_vocab=4)
        mask = torch.zeros(37, dtype=torch.bool)
        mask[torch.tensor([0, 2, 5, 8])] = True
        tensors = head_tensors(head) | {"d2t": torch.tensor([0, 1, 3, 5]), "t2d": mask}
        write_drafter(tmp_path, head, tensors=tensors)
        read = MarkovHead.from_checkpoint(tmp_path)
        assert read.draft_to_target is not None
        assert read.draft_to_target.tolist() == [0, 2, 5, 8]

    def test_nested_config(self, tmp_path: Path) -> None:
        head = small_head()
        write_drafter(tmp_path, head, vocab_size=None, transformer_layer_config={"vocab_size": 37})
        assert same_weights(MarkovHead.from_checkpoint(tmp_path), head)

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ({"markov_rank": None}, ["markov_rank", "positive integer", "nothing"]),
            ({"markov_rank": 0}, ["markov_rank", "positive integer", "0"]),
            ({"markov_rank": True}, ["markov_rank", "positive integer", "True"]),
            ({"markov_rank": 96}, ["markov_rank", "64, 128, 256, 512", "96"]),
            ({"markov_rank": 128}, [W1, "[37, 128]", "bfloat16[37, 64]"]),
            ({"markov_head_type": "gated"}, ["markov_head_type", "'vanilla'", "'gated'"]),
            ({"markov_head_type": 3}, ["markov_head_type", "a string", "3"]),
            ({"vocab_size": None}, ["vocab_size", "positive integer", "nothing"]),
            ({"vocab_size": "37"}, ["vocab_size", "positive integer", "'37'"]),
            ({"vocab_size": 38}, [W1, "[38, 64]", "bfloat16[37, 64]"]),
            ({"block_size": -1}, ["block_size", "positive integer", "-1"]),
            ({"draft_vocab_size": 11}, ["tensor d2t", "11 draft ids", "none"]),
        ],
    )
    def test_refuses_config(self, tmp_path: Path, config: dict[str, Any], words: list[str]) -> None:
        write_drafter(tmp_path, small_head(), **config)
        self.expect(tmp_path, words)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({W1: None}, ["model.safetensors", W1, "[37, 64]", W2]),
            ({W2: None}, ["model.safetensors", W2, "[37, 64]", W1]),
            ({W1: torch.zeros(37)}, [W1, "[37, 64]", "float32[37]"]),
            ({W2: torch.zeros(64, 37)}, [W2, "[37, 64]", "float32[64, 37]"]),
            ({W2: torch.zeros(36, 64)}, [W2, "[37, 64]", "float32[36, 64]"]),
            ({W2: torch.zeros(37 + 1025, 64)}, [W2, "padding", "float32[1062, 64]"]),
            ({W2: torch.zeros(37, 64, dtype=torch.int8)}, [W2, "bfloat16", "int8[37, 64]"]),
            ({f"model.{W1}": torch.zeros(37, 64)}, [W1, "wanted one", f"model.{W1}"]),
            ({"d2t": torch.zeros(36).long()}, ["d2t", "[37]", "int64[36]"]),
            ({"d2t": torch.zeros(37)}, ["d2t", "integers", "float32[37]"]),
            ({"d2t": torch.full((37,), 99)}, ["d2t", "offsets: id 99", "ids: id 99"]),
        ],
    )
    def test_refuses_tensors(
        self, tmp_path: Path, change: dict[str, torch.Tensor | None], words: list[str]
    ) -> None:
        head = small_head()
        tensors = head_tensors(head) | change
        write_drafter(tmp_path, head, tensors={k: v for k, v in tensors.items() if v is not None})
        self.expect(tmp_path, words)

    def test_refuses_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        self.expect(tmp_path / "nowhere", ["config.json", "no such file"])

    def test_refuses_a_folder_without_weights(self, tmp_path: Path) -> None:
        write_config(tmp_path, small_head())
        self.expect(tmp_path, ["model.safetensors", "0 *.safetensors and 0 indices"])

    def test_refuses_several_files_without_an_index(self, tmp_path: Path) -> None:
        head = small_head()
        write_drafter(tmp_path, head, shards=2)
        (tmp_path / "model.safetensors.index.json").unlink()
        self.expect(tmp_path, ["index.json", "2 *.safetensors"])

    @pytest.mark.parametrize("text", ["", "{", "[1]", '{"weight_map": 3}'])
    def test_refuses_a_damaged_index(self, tmp_path: Path, text: str) -> None:
        write_drafter(tmp_path, small_head(), shards=2)
        (tmp_path / "model.safetensors.index.json").write_text(text)
        self.expect(tmp_path, ["model.safetensors.index.json"])

    def test_refuses_an_index_that_leaves_its_folder(self, tmp_path: Path) -> None:
        write_drafter(tmp_path, small_head(), shards=2)
        index = json.dumps({"weight_map": {W1: "../secret.safetensors"}})
        (tmp_path / "model.safetensors.index.json").write_text(index)
        self.expect(tmp_path, ["weight_map", "same folder"])

    def test_names_the_shard_that_is_missing(self, tmp_path: Path) -> None:
        write_drafter(tmp_path, small_head(), shards=2)
        (tmp_path / "model-00002-of-00002.safetensors").unlink()
        self.expect(tmp_path, ["model-00002-of-00002.safetensors", W2])

    def test_names_the_shard_that_lacks_its_tensor(self, tmp_path: Path) -> None:
        write_drafter(tmp_path, small_head(), shards=2)
        save_file({"other": torch.zeros(1)}, tmp_path / "model-00002-of-00002.safetensors")
        self.expect(tmp_path, ["model-00002-of-00002.safetensors", W2])

    def test_names_a_damaged_file(self, tmp_path: Path) -> None:
        write_drafter(tmp_path, small_head())
        (tmp_path / "model.safetensors").write_bytes(b"not a header")
        self.expect(tmp_path, ["model.safetensors", "a safetensors file"])

    @pytest.mark.parametrize("text", ["{", "[]", "\x00"])
    def test_refuses_a_damaged_config(self, tmp_path: Path, text: str) -> None:
        write_drafter(tmp_path, small_head())
        (tmp_path / "config.json").write_text(text)
        self.expect(tmp_path, ["config.json", "JSON object"])

    @staticmethod
    def expect(folder: Path, words: list[str]) -> None:
        with pytest.raises(CheckpointError) as caught:
            MarkovHead.from_checkpoint(folder)
        for word in [*words, str(folder)]:
            assert word in str(caught.value)


def test_config_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 10, "markov_rank": 64, "draft_vocab_size": None})
    )
    config = read_config(tmp_path)
    assert (config.markov_head_type, config.draft_vocab_size) == ("vanilla", 10)
    assert config.block_size is None


class TestDraftMap:
    @given(data=st.data())
    def test_true_map_is_found_or_refused(self, data: st.DataObject) -> None:
        num_targets = data.draw(st.integers(1, 60))
        ids = torch.tensor(sorted(data.draw(st.sets(st.integers(0, num_targets - 1), min_size=1))))
        offsets = ids - torch.arange(ids.numel())
        mask = torch.zeros(num_targets, dtype=torch.bool)
        mask[ids] = True
        for reading, stored in (("offsets", offsets), ("ids", ids)):
            told: D2tReading = "offsets" if reading == "offsets" else "ids"
            assert torch.equal(draft_map(stored, num_targets=num_targets, reading=told), ids)
            try:
                found = draft_map(stored, num_targets=num_targets, t2d=mask)
            except CheckpointError:
                continue
            assert torch.equal(found, ids)

    @given(
        ids=st.sets(st.integers(0, 499), min_size=2, max_size=200).map(sorted),
        dtype=st.sampled_from([torch.int16, torch.int32, torch.int64]),
    )
    def test_neighbours_make_offsets_plain(self, ids: list[int], dtype: torch.dtype) -> None:
        kept = torch.tensor(sorted({*ids, 0, 1}))
        offsets = (kept - torch.arange(kept.numel())).to(dtype)
        found = draft_map(offsets, num_targets=500)
        assert found.dtype == torch.int64
        assert torch.equal(found, kept)

    def test_ids_that_run_to_the_end_are_plain(self) -> None:
        ids = torch.tensor([3, 7, 99])
        found = draft_map(ids.int(), num_targets=100)
        assert found.dtype == torch.int64
        assert torch.equal(found, ids)

    def test_unsorted_ids(self) -> None:
        ids = torch.tensor([99, 3, 7])
        offsets = ids - torch.arange(3)
        assert torch.equal(draft_map(offsets, num_targets=100, reading="offsets"), ids)

    def test_both_readings_fit(self) -> None:
        with pytest.raises(CheckpointError, match="both as offsets"):
            draft_map(torch.tensor([0, 2, 5]), num_targets=100)

    def test_mask_must_be_met_exactly(self) -> None:
        mask = torch.zeros(100, dtype=torch.bool)
        mask[torch.tensor([0, 1, 2, 3])] = True
        with pytest.raises(CheckpointError, match="among the 4 that t2d marks"):
            draft_map(torch.tensor([0, 0, 0]), num_targets=100, t2d=mask)

    def test_mask_of_another_size(self) -> None:
        with pytest.raises(CheckpointError, match=r"t2d: wanted bool\[100\], found bool\[99\]"):
            draft_map(torch.tensor([0]), num_targets=100, t2d=torch.ones(99, dtype=torch.bool))

    def test_unknown_reading(self) -> None:
        with pytest.raises(CheckpointError, match="d2t_reading"):
            draft_map(torch.tensor([0]), num_targets=9, reading="guess")  # type: ignore[arg-type]

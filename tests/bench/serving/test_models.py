"""Folders of random models are those of drafters, with logits of the right size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from wts.bench.serving.models import GEOMETRIES, Drafter, steps_of, write_drafter
from wts.heads.checkpoint import TensorFolder
from wts.heads.config import read_config
from wts.heads.gated import GatedHead
from wts.heads.markov import MarkovHead
from wts.heads.rnn import RnnHead


class TestGeometry:
    def test_published_layers_are_read(self) -> None:
        assert GEOMETRIES["qwen3-4b"].target_layers == (1, 9, 17, 25, 33)
        assert GEOMETRIES["tiny"].target_layers == (1, 5)

    def test_a_block_has_as_many_steps_as_its_drafter_walks(self) -> None:
        assert (steps_of("dspark", 16), steps_of("domino", 16)) == (16, 15)

    @pytest.mark.parametrize(
        ("drafter", "kind"),
        [("dspark", MarkovHead), ("dspark-gated", GatedHead), ("dspark-rnn", RnnHead)],
    )
    def test_a_dspark_folder_is_a_head(self, tmp_path: Path, drafter: Drafter, kind: Any) -> None:
        tiny = GEOMETRIES["tiny"]
        write_drafter(tmp_path, tiny, drafter, block=7, rank=64, seed=3)
        head = kind.from_checkpoint(tmp_path)
        assert (head.vocab, head.rank) == (tiny.vocab, 64)
        assert not torch.equal(head.table, head.projection)
        assert read_config(tmp_path).block_size == 7
        norm = TensorFolder.open(tmp_path).load("norm.weight").float()
        # Hidden states of that size, through a dummy lm_head, have base logits of deviation 2.
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(tiny.hidden, generator=generator) * norm
        lm_head = torch.empty(4096, tiny.hidden).uniform_(-1e-3, 1e-3, generator=generator)
        assert (lm_head @ hidden).std().item() == pytest.approx(2.0, rel=0.15)
        # What a head makes of them is what it would of hidden states of deviation 1.
        if isinstance(head, GatedHead):
            made = head.gate_weight[:, : tiny.hidden].float() @ hidden
            assert made.std().item() == pytest.approx(1.0, rel=0.3)
        if isinstance(head, RnnHead):
            made = head.joint_weight[:, 2 * 64 :].float() @ hidden
            assert made.std().item() == pytest.approx(0.5, rel=0.3)

    def test_a_domino_folder_has_its_projector(self, tmp_path: Path) -> None:
        tiny = GEOMETRIES["tiny"]
        write_drafter(tmp_path, tiny, "domino", block=16, rank=64, seed=3)
        config = read_config(tmp_path)
        assert config.domino is not None
        assert (config.domino.emb_dim, config.domino.gru_hidden_dim) == (64, 1024)
        folder = TensorFolder.open(tmp_path)
        shapes = {
            name: tuple(folder.load(name).shape)
            for name in ("prefix_gru.weight_ih_l0", "embed_proj.0.weight", "embed_proj.2.weight")
        }
        assert shapes == {
            "prefix_gru.weight_ih_l0": (3072, 256),
            "embed_proj.0.weight": (64, 256 + 1024),
            "embed_proj.2.weight": (8192, 64),
        }

    def test_what_is_there_is_not_written_again(self, tmp_path: Path) -> None:
        tiny = GEOMETRIES["tiny"]
        write_drafter(tmp_path, tiny, "dspark", block=7, rank=64, seed=3)
        before = (tmp_path / "model.safetensors").stat().st_mtime_ns
        write_drafter(tmp_path, tiny, "dspark", block=7, rank=64, seed=3)
        assert (tmp_path / "model.safetensors").stat().st_mtime_ns == before

"""Which kind of head a folder has: each kind is asked, and one that is odd says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drafters import write_config, write_drafter, write_target
from strategies import recurrent_head
from wts.errors import CheckpointError, InputError
from wts.heads.base import Claim, Head
from wts.heads.config import read_config
from wts.heads.kinds import KINDS
from wts.heads.load import head_class, head_classes, read_head
from wts.heads.markov import MarkovHead

MINE, NOT_MINE, ODD = Claim.MINE, Claim.NOT_MINE, Claim.ODD


def head_of(kind: str) -> Head:
    """A small head of any kind."""
    if kind == "markov":
        return MarkovHead.random(vocab=37, rank=64, seed=1)
    return recurrent_head(head_class(kind))


def test_every_kind_has_its_class() -> None:
    assert [one.__name__ for one in head_classes()] == [
        "MarkovHead",
        "GatedHead",
        "RnnHead",
        "DominoHead",
    ]
    assert [head_class(kind).kind for kind in KINDS] == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_claimed_and_read_by_its_kind_alone(kind: str, tmp_path: Path) -> None:
    head = head_of(kind)
    write_drafter(tmp_path, head)
    claims = {name: head_class(name).claims(read_config(tmp_path)) for name in KINDS}
    assert claims == {name: MINE if name == kind else NOT_MINE for name in KINDS}
    target = write_target(tmp_path / "target", head) if KINDS[kind].reads_target else None
    assert type(read_head(tmp_path, target=target)) is head_class(kind)


@pytest.mark.parametrize(
    ("kind", "changes", "odd", "words"),
    [
        ("gated", {"markov_head_type": "lstm"}, "markov", ["'vanilla'", "'lstm'", "no other head"]),
        ("gated", {"markov_rank": None}, "gated", ["markov_rank", "a positive integer", "nothing"]),
        ("rnn", {"markov_rank": None}, "rnn", ["markov_rank", "a positive integer", "nothing"]),
        ("domino", {"dflash_config": {}}, "markov", ["markov_rank", "found nothing"]),
    ],
)
def test_an_odd_folder_is_nobodys_and_one_kind_says_why(
    kind: str, changes: dict[str, Any], odd: str, words: list[str], tmp_path: Path
) -> None:
    write_drafter(tmp_path, head_of(kind), **changes)
    claims = {name: head_class(name).claims(read_config(tmp_path)) for name in KINDS}
    assert claims == {name: ODD if name == odd else NOT_MINE for name in KINDS}
    with pytest.raises(CheckpointError) as caught:
        read_head(tmp_path)
    for word in words:
        assert word in str(caught.value)


def test_a_target_is_wanted_by_those_that_read_it_and_by_no_other(tmp_path: Path) -> None:
    write_drafter(tmp_path / "domino", head_of("domino"))
    with pytest.raises(InputError, match=r"embedding a Domino head reads, found none; pass"):
        read_head(tmp_path / "domino")
    write_drafter(tmp_path / "rnn", head_of("rnn"))
    with pytest.raises(InputError, match="none: only a Domino head reads its target's embedding"):
        read_head(tmp_path / "rnn", target=tmp_path)


def test_a_config_says_all_its_fields_and_its_rank(tmp_path: Path) -> None:
    write_config(tmp_path, head_of("rnn"), taste="sweet", text_config={"colour": "red"})
    config = read_config(tmp_path)
    assert (config.fields["taste"], config.fields["colour"]) == ("sweet", "red")
    assert (config.rank, config.path) == (64, tmp_path / "config.json")
    write_config(tmp_path, head_of("domino"))
    assert read_config(tmp_path).rank == 64

"""Options of `wts bench head` become cases, caches and rounds."""

from __future__ import annotations

import argparse

import pytest
import torch

from wts.bench.head.cases import Point
from wts.cli import bench_head


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_head.configure(parser)
    return parser.parse_args(arguments)


def test_default_cases() -> None:
    cases = bench_head.cases_of(parse())
    assert [(case.vocab, case.batch, case.steps, case.temperature) for case in cases] == [
        (151_936, 4, (1, 7, 16), 0.0),
        (151_936, 1, (1, 7, 16), 0.0),
    ]
    assert bench_head.caches_of(parse()) == ("cold", "warm")
    assert bench_head.rounds_of(parse()) == 60


def test_options_are_lists() -> None:
    args = parse("--vocab", "1000,2000", "--batch=8,2,8", "--steps", "7,1", "--temperature", "0,.5")
    cases = bench_head.cases_of(args)
    assert len(cases) == 2 * 2 * 2
    assert all(case.steps == (1, 7) for case in cases)
    assert [case.batch for case in cases[:2]] == [8, 2]
    assert bench_head.caches_of(parse("--cache", "warm,cold_read")) == ("warm", "cold_read")


def test_quick_takes_fewer_samples_unless_told() -> None:
    assert bench_head.rounds_of(parse("--quick")) == 20
    assert bench_head.rounds_of(parse("--quick", "--rounds", "5")) == 5
    assert bench_head.caches_of(parse("--quick")) == ("cold",)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--batch", "0"),
        ("--batch", "1.5"),
        ("--steps", ""),
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--cache", "hot"),
        ("--paths", "wts,rival"),
        ("--gate", "none"),
        ("--head", "markov,lstm"),
        ("--hidden-size", "0"),
        ("--state-size", "many"),
    ],
)
def test_bad_options_are_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(*arguments)
    assert arguments[0] in capsys.readouterr().err


def test_the_grid_can_be_filtered() -> None:
    cases = bench_head.cases_of(parse("--grid", "--vocab", "248320", "--temperature", "1"))
    assert [(case.batch, case.steps) for case in cases] == [(64, (1, 7)), (8, (1, 7)), (1, (1, 7))]
    assert bench_head.cases_of(parse("--grid", "--batch", "3")) == ()
    assert {case.head for case in bench_head.cases_of(parse("--grid"))} == {"markov"}
    cases = bench_head.cases_of(parse("--grid", "--head", "rnn,domino"))
    assert [(case.head, case.batch, case.steps) for case in cases] == [
        ("rnn", 1, (1, 7, 15)),
        ("domino", 1, (1, 7, 15)),
    ]


def test_heads_and_their_sizes_are_options() -> None:
    (markov,) = bench_head.cases_of(parse("--batch", "1"))
    assert (markov.head, markov.hidden_size, markov.state_size) == ("markov", 2560, 1024)
    args = parse("--head", "domino,gated", "--hidden-size", "4096", "--state-size", "512")
    cases = bench_head.cases_of(args)
    assert [(case.head, case.batch) for case in cases] == [
        ("gated", 4),
        ("gated", 1),
        ("domino", 4),
        ("domino", 1),
    ]
    assert str(cases[-1]) == "domino H=4096 G=512 V=151936 r=256 B=1 K=1,7,16 T=0"
    assert str(cases[0]) == "gated H=4096 V=151936 r=256 B=4 K=1,7,16 T=0"
    assert cases[0].point(7) == Point(
        head="gated", vocab=151_936, batch=4, steps=7, temperature=0.0
    )


def test_without_a_gpu_the_benchmark_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_head.main(["--quick"]) == 2
    assert "wanted an NVIDIA GPU" in capsys.readouterr().err

"""Records keep to their schema, those that are committed too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.records import head_record, serving_record
from wts.bench import record
from wts.errors import InputError

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    first, second = head_record(), head_record(path="sglang", weights="bf16", plan="")
    path = record.append(tmp_path, first)
    assert record.append(tmp_path, second) == path == tmp_path / "h200" / "head.jsonl"
    assert record.read(path) == [first, second]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", 2),
        ("bench", "speed"),
        ("run_id", ""),
        ("path", "rival"),
        ("V", 0),
        ("V", 151_936.0),
        ("B", True),
        ("T", -1.0),
        ("T", float("inf")),
        ("T", "0"),
        ("H", 0),
        ("G", 1024.0),
        ("excluded_us", -1.0),
        ("cache", "hot"),
        ("p50_us", float("nan")),
        ("p50_us", 48.0),
        ("p95_us", None),
        ("n", 0),
        ("resident_share", 1.5),
        ("plan", None),
        ("sms", "132"),
        ("dirty", 0),
        ("dirty", "no"),
    ],
)
def test_a_bad_field_is_named(field: str, value: object) -> None:
    bad = head_record() | {field: value}
    with pytest.raises(InputError, match=field):
        record.validate(bad)


@pytest.mark.parametrize("field", sorted(head_record().keys() - {"clock_mhz", "max_clock_mhz"}))
def test_a_missing_field_is_named(field: str) -> None:
    bad = head_record()
    del bad[field]
    with pytest.raises(InputError, match=field):
        record.validate(bad)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(InputError, match="p99_us"):
        record.validate(head_record() | {"p99_us": 60.0})
    with pytest.raises(InputError, match="concurrency"):
        record.validate(head_record() | {"concurrency": 1})


SERVING_FIELDS = sorted(serving_record().keys() - head_record().keys())


@pytest.mark.parametrize("field", SERVING_FIELDS)
def test_a_serving_record_needs_its_own_fields(field: str) -> None:
    record.validate(serving_record())
    bad = serving_record()
    del bad[field]
    with pytest.raises(InputError, match=field):
        record.validate(bad)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("draft", 16),
        ("block", 0),
        ("concurrency", 0),
        ("accept", "guessed"),
        ("tokens_per_s", -1.0),
        ("round_us", float("nan")),
        ("accepted_length", "6"),
        ("repeat", -1),
    ],
)
def test_a_bad_field_of_a_serving_record_is_named(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        record.validate(serving_record(**{field: value}))


@pytest.mark.parametrize("accept", ["trained", "checkpoint", "random", "simulated"])
def test_a_serving_record_says_who_accepts(accept: str) -> None:
    record.validate(serving_record(accept=accept))


def test_a_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "head.jsonl"
    good = json.dumps(head_record())
    for bad in ("{", "[]", json.dumps(head_record() | {"n": -1})):
        path.write_text(f"{good}\n{bad}\n")
        with pytest.raises(InputError, match=r"head\.jsonl, line 2"):
            record.read(path)


def test_committed_results_follow_the_schema() -> None:
    for path in sorted(RESULTS.rglob("*.jsonl")):
        for line in record.read(path):
            assert path == RESULTS / str(line["gpu"]) / f"{line['bench']}.jsonl"


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100-SXM5-80GB", "h100"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA B200", "b200"),
        ("", "unknown"),
    ],
)
def test_gpu_folders(name: str, folder: str) -> None:
    assert record.gpu_folder(name) == folder


def test_source_version_of_a_copy_without_repository() -> None:
    assert record.source_version("abc-dirty") == ("abc", True)
    assert record.source_version("abc") == ("abc", False)
    assert record.source_version("") == ("unknown", True)

"""Records of host and kernel: the layout of C, asserted by a compiler; bytes as the table says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wts.hardware.abi import Enumeration, Field, Record

TYPES = "#define WTS_OFFSETOF(type, member) __builtin_offsetof(type, member)\n"
TYPES += "using Byte = unsigned char;\nusing u16 = unsigned short;\nusing u32 = unsigned int;\n"
TYPES += "using u64 = unsigned long long;\nusing Barrier = unsigned long long;\n"
TYPES += "struct alignas(8) int2 { int x, y; };\n"

MIXED = Record(
    "Mixed",
    (
        Field("flag", "Byte"),
        Field("at", "const Byte*"),
        Field("small", "u16", (3,)),
        Field("matrix", "float", (2, 5), align=16),
        Field("landed", "Barrier", note="a phase a use"),
        Field("pair", "int2"),
        Field("last", "int"),
    ),
)


def compiles(text: str, folder: Path) -> bool:
    """Whether g++ takes this C++."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    source = folder / "record.cpp"
    source.write_text(TYPES + text)
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", str(source)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_fields_lie_where_c_puts_them(tmp_path: Path) -> None:
    assert dict(MIXED.offsets) == {
        "flag": 0,
        "at": 8,
        "small": 16,
        "matrix": 32,
        "landed": 72,
        "pair": 80,
        "last": 88,
    }
    assert MIXED.size == 96
    assert compiles(MIXED.c_struct(), tmp_path)


@pytest.mark.parametrize("name", MIXED.offsets)
def test_each_offset_is_asserted(name: str, tmp_path: Path) -> None:
    text = MIXED.c_struct()
    right = f"WTS_OFFSETOF(Mixed, {name}) == {MIXED.offsets[name]}"
    assert text.count(right) == 1
    assert not compiles(text.replace(right, right + "0 + 1"), tmp_path)


def test_the_size_is_asserted(tmp_path: Path) -> None:
    assert not compiles(MIXED.c_struct().replace("== 96", "== 88"), tmp_path)


@settings(max_examples=15, deadline=None)
@given(
    fields=st.lists(
        st.tuples(
            st.sampled_from(["Byte", "u16", "u32", "int", "float", "u64", "Barrier", "int2"]),
            st.lists(st.integers(1, 3), max_size=2),
            st.sampled_from([0, 4, 8, 16, 128]),
        ),
        min_size=1,
        max_size=8,
    ),
    align=st.sampled_from([1, 16, 128]),
)
def test_any_record_is_laid_out_as_the_compiler_does(
    fields: list[tuple[str, list[int], int]],
    align: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    members = [
        Field(f"f{i}", kind, tuple(shape), lift)
        for i, (kind, shape, lift) in enumerate(fields)
        if lift == 0 or lift >= Field("", kind).scalar.size
    ]
    record = Record("Drawn", tuple(members or [Field("f", "int")]), align)
    assert compiles(record.c_struct(), tmp_path_factory.mktemp("record"))


def test_values_come_back_from_their_bytes() -> None:
    record = Record(
        "Args",
        (
            Field("base", "const Byte*"),
            Field("stride", "long long"),
            Field("key", "u64"),
            Field("steps", "int"),
            Field("scale", "float"),
        ),
    )
    values = {"base": 1 << 40, "stride": -3, "key": (1 << 64) - 1, "steps": -7, "scale": 0.5}
    data = record.pack(**values)
    assert len(data) == record.size == 32
    assert record.unpack(data) == values
    assert record.unpack(record.pack(**{**values, "base": None}))["base"] == 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"steps": 1 << 31}, "Args.steps: wanted a int"),
        ({"steps": None}, "Args.steps: wanted a int"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"base": -1}, "Args.base"),
    ],
)
def test_values_that_do_not_fit_are_errors(change: dict[str, int | None], word: str) -> None:
    record = Record("Args", (Field("base", "const Byte*"), Field("steps", "int")))
    with pytest.raises(ValueError, match=word):
        record.pack(**{"base": 0, "steps": 0, **change})


def test_a_field_without_a_value_is_an_error() -> None:
    record = Record("Args", (Field("base", "const Byte*"), Field("steps", "int")))
    with pytest.raises(ValueError, match="steps"):
        record.pack(base=0)


@pytest.mark.parametrize(
    "fields",
    [
        (Field("a", "int"), Field("a", "int")),
        (Field("a", "double"),),
        (Field("a", "int", (0,)),),
    ],
)
def test_tables_that_cannot_be_laid_out_are_refused(fields: tuple[Field, ...]) -> None:
    with pytest.raises(ValueError, match=r"Bad\.a"):
        Record("Bad", fields)


def test_fields_can_be_added_behind() -> None:
    longer = MIXED.with_fields(Field("more", "u64"))
    assert longer.offsets["more"] == 96
    assert {name: longer.offsets[name] for name in MIXED.offsets} == dict(MIXED.offsets)


def test_names_count_from_zero(tmp_path: Path) -> None:
    enum = Enumeration("Event", ("SEEN", "SWEPT"))
    assert compiles(enum.c_enum() + "static_assert(int(Event::SWEPT) == 1);", tmp_path)

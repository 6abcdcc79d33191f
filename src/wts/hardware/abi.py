"""Structs that host and kernel share, each written once: C for the compiler, bytes for a launch.

A `Record` is a table of fields in order. It renders the struct with an assertion for every offset,
so that a compiler that lays it out in another way refuses to compile (by `WTS_OFFSETOF`, which the
kernel defines for each compiler), and it packs values into the bytes that the kernel reads. Layout
is that of C on a 64-bit machine: each field at the next multiple of its alignment. No torch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["Enumeration", "Field", "Record"]


@dataclass(frozen=True, slots=True)
class _Scalar:
    """A C type: its bytes, which are its alignment, too, and its code for `struct.pack`."""

    size: int
    code: str


_SCALARS: Mapping[str, _Scalar] = MappingProxyType(
    {
        "Byte": _Scalar(1, "B"),
        "u16": _Scalar(2, "H"),
        "u32": _Scalar(4, "I"),
        "int": _Scalar(4, "i"),
        "float": _Scalar(4, "f"),
        "u64": _Scalar(8, "Q"),
        "long long": _Scalar(8, "q"),
        "Barrier": _Scalar(8, "Q"),
        "int2": _Scalar(8, "q"),
    }
)
_POINTER = _Scalar(8, "Q")


@dataclass(frozen=True, slots=True)
class Field:
    """One member of a shared struct.

    Args:
        name: of the member.
        type: a C type that the kernel knows ("u32", "float", "Barrier", ...), or a pointer to any
            ("const Byte*").
        shape: elements of an array, outermost dimension first; () is one value.
        align: bytes of whose multiple it has to lie at; 0: as its type has it.
        note: what it is, for readers of the rendered struct.
        stored_as: the known type whose layout a type of the kernel's own has (an enumeration, say).
    """

    name: str
    type: str
    shape: tuple[int, ...] = ()
    align: int = 0
    note: str = ""
    stored_as: str = ""

    @property
    def scalar(self) -> _Scalar:
        """Of one element."""
        return _POINTER if self.type.endswith("*") else _SCALARS[self.stored_as or self.type]

    @property
    def is_known(self) -> bool:
        """Whether its layout is."""
        return self.type.endswith("*") or (self.stored_as or self.type) in _SCALARS

    @property
    def count(self) -> int:
        """Elements."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def size(self) -> int:
        """Bytes."""
        return self.scalar.size * self.count

    @property
    def alignment(self) -> int:
        """Bytes of whose multiple it lies at."""
        return max(self.align, self.scalar.size)

    def put(self, data: bytearray, offset: int, value: int | float | None) -> None:
        """Write a value; None is a null pointer."""
        if value is None and self.type.endswith("*"):
            value = 0
        struct.pack_into(f"<{self.scalar.code}", data, offset, value)

    def declaration(self) -> str:
        """The member in C."""
        extents = "".join(f"[{extent}]" for extent in self.shape)
        aligned = f"alignas({self.align}) " if self.align else ""
        return f"{aligned}{self.type} {self.name}{extents};"


@dataclass(frozen=True)
class Record:
    """A struct, by its fields in order.

    Args:
        name: of the struct in C.
        fields: its members.
        align: bytes of whose multiple its size is, if more than its members ask for.

    Raises:
        ValueError: two fields of one name, an unknown type, or an extent below 1.
    """

    name: str
    fields: tuple[Field, ...]
    align: int = 1
    offsets: Mapping[str, int] = field(init=False, repr=False, compare=False)
    size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        offsets: dict[str, int] = {}
        end, widest = 0, self.align
        for member in self.fields:
            is_new = member.name not in offsets
            if not member.is_known or not is_new or any(n < 1 for n in member.shape):
                raise ValueError(
                    f"{self.name}.{member.name}: wanted a new name, a known type and extents of at "
                    f"least 1, found {member}; mend the table"
                )
            offsets[member.name] = -(-end // member.alignment) * member.alignment
            end = offsets[member.name] + member.size
            widest = max(widest, member.alignment)
        object.__setattr__(self, "offsets", MappingProxyType(offsets))
        object.__setattr__(self, "size", -(-end // widest) * widest)

    def with_fields(self, *more: Field) -> Record:
        """The same struct with members behind its own."""
        return Record(self.name, (*self.fields, *more), self.align)

    def c_struct(self) -> str:
        """The struct in C++, and what has to hold of it: every offset, and its size."""
        aligned = f"alignas({self.align}) " if self.align > 1 else ""
        lines = [f"struct {aligned}{self.name} {{"]
        for member in self.fields:
            if member.note:
                lines.append(f"  // {member.note}")
            lines.append(f"  {member.declaration()}")
        lines.append("};")
        lines += [
            f'static_assert(WTS_OFFSETOF({self.name}, {name}) == {offset}, "{self.name}.{name}");'
            for name, offset in self.offsets.items()
        ]
        lines.append(f'static_assert(sizeof({self.name}) == {self.size}, "{self.name}");')
        return "\n".join(lines)

    def pack(self, **values: int | float | None) -> bytes:
        """The bytes of one struct.

        Args:
            values: of every field, which are no arrays; None is a null pointer.

        Raises:
            ValueError: a name that is no field, a field without a value, or a value that does not
                fit its field.
        """
        missing = [m.name for m in self.fields if m.name not in values]
        unknown = sorted(set(values) - {m.name for m in self.fields})
        if missing or unknown:
            raise ValueError(
                f"{self.name}: wanted a value for each of its fields, found none for "
                f"{missing or 'none'} and unknown {unknown or 'none'}; name the fields of the table"
            )
        data = bytearray(self.size)
        for member in self.fields:
            value = values[member.name]
            try:
                member.put(data, self.offsets[member.name], value)
            except struct.error as error:
                raise ValueError(
                    f"{self.name}.{member.name}: wanted a {member.type}, found {value!r} "
                    f"({error}); pass a value of this type"
                ) from error
        return bytes(data)

    def unpack(self, data: bytes) -> dict[str, int | float]:
        """Undo `pack`."""
        return {
            m.name: struct.unpack_from(f"<{m.scalar.code}", data, self.offsets[m.name])[0]
            for m in self.fields
        }


@dataclass(frozen=True, slots=True)
class Enumeration:
    """Names that count from 0, in C and in Python alike.

    Args:
        name: of the `enum class`.
        names: in order.
        type: the C type behind it.
    """

    name: str
    names: tuple[str, ...]
    type: str = "u32"

    def c_enum(self) -> str:
        """The `enum class` in C++."""
        return f"enum class {self.name} : {self.type} {{ {', '.join(self.names)} }};"

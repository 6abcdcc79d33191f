"""What is in a compiled kernel: digests of its code and constants, and counts of instructions."""

from __future__ import annotations

import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterator

__all__ = ["code_of", "digest", "sections_of"]

# Low 12 bits of a 128-bit machine instruction, of sm_90 and sm_100 alike; read off the disassembly.
OPCODES = {
    0x237: "IMMA",
    0x23C: "HMMA",
    0xDF1: "IGMMA",
    0x9F1: "IGMMA",
    0x983: "LDL",
    0x387: "STL",
    0x9EA: "UTCMMA",
    0x5EA: "UTCMMA",
    0x3E9: "UTCBAR",
    0x9ED: "STTM",
    0x9EE: "LDTM",
    0xB1D: "BAR",
    0x984: "LDS",
    0x388: "STS",
    0x988: "STS",
    0x981: "LDG",
    0x986: "STG",
}
BARRIER = 0xB1D  # whose operands have the form of a constant's


def sections_of(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of an ELF file's sections; those that have none in the file are left out."""
    table = struct.unpack_from("<Q", cubin, 0x28)[0]
    entry, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    found = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry) for i in range(count)]
    for name, kind, _, _, offset, size in found:
        start = found[names][4] + name
        text = cubin[start : cubin.index(b"\0", start)].decode()
        if kind != 8:  # SHT_NOBITS
            yield text, cubin[offset : offset + size]


def bank_of(word: int) -> int | None:
    """The bank of constants that an instruction reads, if it reads one, by its first 64 bits."""
    opcode = word & 0xFFF
    return word >> 54 & 31 if opcode >> 9 & 7 in (3, 5) and opcode != BARRIER else None


def code_of(cubin: bytes) -> dict[str, str | int]:
    """Digests of code and of constants that it reads, and how often which instructions are in it.

    `order`: of the instructions without their operands. Bank 0 has the arguments, so only its size
    counts. Bank 4 has addresses of tables, which lie in `.nv.global.init`; it and the tables are
    there for every table of the source, read or not, so they count only where they are read.
    """
    found: dict[str, str | int] = {}
    counts: Counter[str] = Counter()
    banks: set[int | None] = set()
    sections = list(sections_of(cubin))
    for name, data in sections:
        if name.startswith(".text"):
            words = [word for word, _ in struct.iter_unpack("<QQ", data)]
            opcodes = [word & 0xFFF for word in words]
            found[name] = digest(data)
            found[f"order {name}"] = digest(struct.pack(f"<{len(opcodes)}H", *opcodes))
            counts["instructions"] += len(opcodes)
            counts.update(OPCODES[opcode] for opcode in opcodes if opcode in OPCODES)
            banks |= set(map(bank_of, words))
    for name, data in sections:
        bank = re.match(r"\.nv\.constant(\d+)", name)
        if bank is None:
            read = name.startswith(".nv.global.init") and 4 in banks
        else:
            read = int(bank[1]) in banks
        if read:
            arguments = bank is not None and bank[1] == "0"
            found[name] = f"{len(data)} bytes" + ("" if arguments else f" {digest(data)}")
    return found | dict(sorted(counts.items()))


def digest(data: bytes) -> str:
    """Sixteen hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:16]

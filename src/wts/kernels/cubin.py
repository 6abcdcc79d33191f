"""What a compiled kernel uses: read from its machine code and the assembler's report."""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass

from wts.errors import CompileError

__all__ = ["Resources", "resources_of"]

# Low 12 bits of a 128-bit machine instruction, of sm_90 and sm_100 alike; read off the disassembly.
# UTCMMA stands for UTCIMMA and UTCHMMA, with A in tensor memory or in shared memory.
_OPCODES = {
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
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the compiled kernel uses, read from the cubin and the assembler's report.

    Args:
        registers: per thread at launch; the roles share them out anew.
        spill_bytes: stores and loads that the assembler says it spilled.
        matrix_instructions: IMMA, HMMA and IGMMA in the code.
        tensor_instructions: UTCMMA in the code, the products of tcgen05.
        local_accesses: LDL and STL in the code; any is a fault.
    """

    registers: int
    spill_bytes: int
    matrix_instructions: int
    tensor_instructions: int
    local_accesses: int


def resources_of(cubin: bytes, log: str) -> Resources:
    counts = instruction_counts(cubin)
    # The entry function's report comes first in the log; functions it calls follow.
    registers = re.findall(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if not registers or not spills:
        raise CompileError(f"the assembler's report is missing from the compile log: {log!r}")
    return Resources(
        registers=max(map(int, registers)),
        spill_bytes=sum(int(store) + int(load) for store, load in spills),
        matrix_instructions=counts["IMMA"] + counts["HMMA"] + counts["IGMMA"],
        tensor_instructions=counts["UTCMMA"],
        local_accesses=counts["LDL"] + counts["STL"],
    )


def instruction_counts(cubin: bytes) -> Counter[str]:
    """Count what `_OPCODES` names in a cubin's code (an ELF file of 16-byte instructions)."""
    table = struct.unpack_from("<Q", cubin, 0x28)[0]
    entry, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry) for i in range(count)]
    counts: Counter[str] = Counter()
    for name, _, _, _, offset, size in sections:
        start = sections[names][4] + name
        if not cubin[start : cubin.index(b"\0", start)].startswith(b".text"):
            continue
        for at in range(offset, offset + size, 16):
            opcode = struct.unpack_from("<Q", cubin, at)[0] & 0xFFF
            if opcode in _OPCODES:
                counts[_OPCODES[opcode]] += 1
    return counts

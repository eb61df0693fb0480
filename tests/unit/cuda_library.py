"""CUDA libraries for tests: ELF files with one section of fatbin containers."""

from __future__ import annotations

import struct

PTX, CODE, EXACT = 1, 2, 0x100000


def entry(kind: int, architecture: int, flags: int = 0, content: bytes = b"kernel!!") -> bytes:
    """Return one entry of a container: a header of 64 bytes, then the content."""
    head = struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(content), 0, 0, 7, 1, architecture, 0, 0, flags, 0, 0)
    assert len(head) == 64
    return head + content


def container(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def library(*containers: bytes, gap: int = 24, section: bytes = b".nv_fatbin") -> bytes:
    """Return the file: ELF header, containers with zeros between them, section names, section table."""
    fatbin = b"".join(each + bytes(gap) for each in containers)
    names = b"\0" + section + b"\0.shstrtab\0"
    begin, names_at = 64, 64 + len(fatbin)
    table = [
        bytes(64),
        struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, begin, len(fatbin), 0, 0, 8, 0),
        struct.pack("<IIQQQQIIQQ", 2 + len(section), 3, 0, 0, names_at, len(names), 0, 0, 1, 0),
    ]
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, names_at + len(names), 0, 64, 0, 0, 64, len(table), 2)
    return head + fatbin + names + b"".join(table)


# The entries of onnxruntime-gpu 1.31.1 for aarch64 and of 1.23.2 for x86-64.
WHEEL_OF_ARM = library(
    container(entry(CODE, 90, EXACT)),
    container(entry(CODE, 89), entry(CODE, 90, EXACT), entry(CODE, 120, EXACT), entry(CODE, 121, EXACT)),
)
WHEEL_OF_X86 = library(
    container(
        entry(PTX, 90),
        *(entry(CODE, each) for each in (60, 70, 75, 80, 86)),
        entry(CODE, 90, EXACT),
    )
)

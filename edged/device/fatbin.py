"""The GPUs that the kernels of a CUDA library were compiled for, read from the library's file. Nothing is loaded.

nvcc puts kernels into the ELF section `.nv_fatbin`: containers one after the other, with zeros between them. This is
the little-endian layout in n-eiling/cuda-fatbin-decompression, and in the files of onnxruntime-gpu 1.23.2 and 1.31.1:

    container   u32 magic, u16 version, u16 size of this header, u64 size of the entries that follow
    entry       u16 kind (1: PTX, 2: machine code), u16, u32 size of this header, u64 size of the content that follows,
                8 bytes, u16 minor, u16 major, u32 architecture (87 for compute capability 8.7), 8 bytes, u64 flags

The content may be compressed; the headers never are. Only the headers are read, because the containers of a library
take hundreds of megabytes.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator

from edged.device.root import Root

_ELF = struct.Struct("<4sBB34xQ10xHHH")  # magic, class, byte order; section headers: offset, size, number; names
_SECTION = struct.Struct("<I4x16xQQ24x")  # offset of the name; offset and size in the file
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<H2xIQ12xI8xQ")
_MAGIC, _PTX, _MACHINE_CODE = 0xBA55ED50, 1, 2
_EXACT = 0x100000  # flag of code for a single compute capability, such as sm_90a
_SECTION_NAME = b".nv_fatbin\0"
_64_BITS, _LITTLE_ENDIAN = 2, 1
_MOST_READS = 1 << 17  # a damaged file must not keep the reader busy; real libraries need some ten thousand
_MOST_SECTIONS = 4096
_MOST_NAMES = 1 << 16  # bytes


def code(root: Root, path: str) -> tuple[str, ...]:
    """Return the architectures of all kernels in a library; empty if the file has no kernels or cannot be read.

    `sm_86` is machine code, `sm_90a` is machine code for only this architecture, and `ptx_90` is code that a driver
    compiles for newer GPUs.
    """
    file = root.open(path)
    if file is None:
        return ()
    with file:
        try:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: only headers are read
            found = set(_entries(file.fileno()))
        except (OSError, struct.error, OverflowError):
            return ()
    kinds = {_PTX: "ptx", _MACHINE_CODE: "sm"}
    ordered = sorted(found, key=lambda entry: (-entry[0], entry[1], entry[2]))
    return tuple(f"{kinds[kind]}_{architecture}{'a' * is_exact}" for kind, architecture, is_exact in ordered)


def _entries(file: int) -> Iterator[tuple[int, int, bool]]:
    """Yield kind and architecture of each entry of a known kind, and whether its code is for this architecture only."""
    reads = 0
    for start, end in _sections(file):
        position = start
        while position + _CONTAINER.size <= end and reads < _MOST_READS:
            reads += 1
            magic, _, header, size = _CONTAINER.unpack(os.pread(file, _CONTAINER.size, position))
            if magic != _MAGIC:
                position += 8  # a container may begin at each multiple of 8
                continue
            entry, position = position + header, min(end, position + header + size)
            while entry + _ENTRY.size <= position and reads < _MOST_READS:
                reads += 1
                kind, own, content, architecture, flags = _ENTRY.unpack(os.pread(file, _ENTRY.size, entry))
                if kind in (_PTX, _MACHINE_CODE) and architecture < 1000:
                    yield kind, architecture, bool(flags & _EXACT)
                entry += max(own + content, _ENTRY.size)


def _sections(file: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each section with kernels in a 64-bit ELF file."""
    magic, bits, order, table, size, count, names_at = _ELF.unpack(os.pread(file, _ELF.size, 0))
    if (magic, bits, order, size) != (b"\x7fELF", _64_BITS, _LITTLE_ENDIAN, 64) or count > _MOST_SECTIONS:
        return
    headers = [_SECTION.unpack(os.pread(file, _SECTION.size, table + number * size)) for number in range(count)]
    if names_at >= len(headers):
        return
    _, offset, length = headers[names_at]
    names = os.pread(file, min(length, _MOST_NAMES), offset)
    for name, start, length in headers:
        if names.startswith(_SECTION_NAME, name):
            yield start, start + length


# Compute capabilities of NVIDIA's SoCs: Jetson TX1, TX2, Xavier, Orin, and Thor before and since CUDA 13.
TEGRA = frozenset({"5.3", "6.2", "7.2", "8.7", "10.1", "11.0"})
_CAPABILITY = re.compile(r"([0-9]{1,2})\.([0-9])")
_NAME = re.compile(r"(sm|ptx)_([0-9]{1,2})([0-9])(a?)")


def runs_on(names: str, capability: str) -> bool:
    """Whether a library has kernels for a GPU of this compute capability. `names` has the architectures from `code`,
    joined with spaces.

    Machine code runs on GPUs with the same major number and the same or a higher minor number. But if the code or the
    GPU is of a SoC, both numbers must be the same. PTX runs on its own capability and all later ones. Code whose name
    ends in `a` runs only on its own capability. (CUDA C++ Programming Guide, "Binary Compatibility" and "PTX
    Compatibility".) True if the capability is not known.
    """
    known = _CAPABILITY.fullmatch(capability)
    if known is None:
        return True
    major, minor = int(known[1]), int(known[2])
    return any(
        (int(found[2]), int(found[3])) == (major, minor)
        or (found[1] == "ptx" and not found[4] and (int(found[2]), int(found[3])) < (major, minor))
        or (
            found[1] == "sm"
            and not found[4]
            and int(found[2]) == major
            and int(found[3]) < minor
            and capability not in TEGRA
            and f"{found[2]}.{found[3]}" not in TEGRA
        )
        for found in map(_NAME.fullmatch, names.split())
        if found is not None
    )

"""Shared objects, 64-bit and little-endian (elf(5)): what one takes from another, stubs, and removal of symbols.

`stub` writes a shared object that defines names and has no code but a trap. It needs no compiler, so a package for
another processor is built as easily, and equal names give equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

X86_64, AARCH64 = 62, 183  # e_machine

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_DYN = struct.Struct("<QQ")
_VERNEED, _VERNAUX = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_VERDEF, _VERDAUX = struct.Struct("<HHHHIII"), struct.Struct("<II")

_SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED, _SHT_VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 1, 4, 5, 6, 10, 11, 14
_DT_VERSYM, _DT_VERDEF, _DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
_STT_FUNC, _GLOBAL_FUNC = 2, 0x12
_PAGE = 0x10000  # the largest of a Linux kernel: 64 KiB on some ARM boxes


@dataclass(frozen=True)
class Symbol:
    """A name of the dynamic symbol table. `version` is that of an undefined name, empty if it has none."""

    name: str
    version: str
    is_defined: bool
    is_function: bool


@dataclass(frozen=True)
class _Section:
    kind: int
    data: bytes
    link: int


class SharedObject:
    """The parts of a shared object that the loader reads. Raises ValueError if the file is no such object."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        header = _EHDR.unpack_from(data)
        self.machine: int = header[2]
        self._sections = [_section(data, header[6] + number * _SHDR.size) for number in range(header[12])]
        dynamic = self._first(_SHT_DYNAMIC)
        entries = list(_DYN.iter_unpack(dynamic.data)) if dynamic else []
        names = self._sections[dynamic.link].data if dynamic else b""
        self.needed = [_text(names, value) for tag, value in entries if tag == _DT_NEEDED]
        self.soname = next((_text(names, value) for tag, value in entries if tag == _DT_SONAME), "")

    def symbols(self) -> Iterator[Symbol]:
        """Yield the names of the dynamic symbol table, without local ones."""
        table = self._first(_SHT_DYNSYM)
        if table is None:
            return
        names, versions, needed = self._sections[table.link].data, self._first(_SHT_VERSYM), self._needed_versions()
        for number, (name, info, _, section, _, _) in enumerate(_SYM.iter_unpack(table.data)):
            if info >> 4:
                version = struct.unpack_from("<H", versions.data, 2 * number)[0] & 0x7FFF if versions else 0
                function = info & 15 == _STT_FUNC
                yield Symbol(_text(names, name), "" if section else needed.get(version, ""), section != 0, function)

    def _needed_versions(self) -> dict[int, str]:
        """Return the versions that it wants from other libraries, by their number in this file."""
        section, found = self._first(_SHT_VERNEED), {}
        if section is None:
            return {}
        names, at = self._sections[section.link].data, 0
        while True:
            _, count, _, first, step = _VERNEED.unpack_from(section.data, at)
            each = at + first
            for _ in range(count):
                _, _, number, name, following = _VERNAUX.unpack_from(section.data, each)
                found[number & 0x7FFF] = _text(names, name)
                each += following
            if not step:
                return found
            at += step

    def _first(self, kind: int) -> _Section | None:
        return next((section for section in self._sections if section.kind == kind), None)


def without_symbols(data: bytes) -> bytes:
    """Return the file without what the loader does not read: symbol tables, debug information, section headers."""
    header = list(_EHDR.unpack_from(data))
    end = 0
    for number in range(header[10]):
        _, _, offset, _, _, size, _, _ = _PHDR.unpack_from(data, header[5] + number * _PHDR.size)
        end = max(end, offset + size)
    header[6] = header[12] = header[13] = 0  # no section headers
    return _EHDR.pack(*header) + data[_EHDR.size : end]


def stub(machine: int, soname: str, names: Mapping[str, str], message: str) -> bytes:
    """Return a shared object that defines functions by `names`, each with its version or "". Calling one prints the
    message to stderr and ends the process with SIGILL."""
    versions = sorted({version for version in names.values() if version})
    strings = _Strings()
    symbols, versyms = [_SYM.pack(0, 0, 0, 0, 0, 0)], [0]
    code = _trap(machine, message.encode() + b"\n")
    for name, version in sorted(names.items()):
        symbols.append(_SYM.pack(strings.add(name), _GLOBAL_FUNC, 0, 1, _CODE_AT, len(code)))
        versyms.append(versions.index(version) + 2 if version else 1)  # 0 is local, 1 is global without a version
    count = len(symbols)
    definitions = b""
    for number, name in enumerate([soname, *versions] if versions else (), 1):
        is_last, is_base = number == len(versions) + 1, number == 1
        step = 0 if is_last else _VERDEF.size + _VERDAUX.size
        definitions += _VERDEF.pack(1, int(is_base), number, 1, _hash(name), _VERDEF.size, step)
        definitions += _VERDAUX.pack(strings.add(name), 0)
    own_name = strings.add(soname)
    # One bucket, and a chain through all names: 2 words, the bucket, and a word for each symbol.
    chain = [*range(2, count), 0] if count > 1 else []
    table = struct.pack(f"<{3 + count}I", 1, count, min(1, count - 1), 0, *chain)

    body, tags = _Body(code), [(_DT_SONAME, own_name), (_DT_STRSZ, len(strings.data)), (_DT_SYMENT, _SYM.size)]
    tags += [(_DT_SYMTAB, body.add(b"".join(symbols))), (_DT_STRTAB, body.add(strings.data))]
    tags += [(_DT_HASH, body.add(table))]
    if versions:
        tags += [(_DT_VERSYM, body.add(struct.pack(f"<{count}H", *versyms)))]
        tags += [(_DT_VERDEF, body.add(definitions)), (_DT_VERDEFNUM, len(versions) + 1)]
    dynamic = b"".join(_DYN.pack(*tag) for tag in [*sorted(tags), (0, 0)])
    return _file(machine, bytes(body.data), dynamic)


_SEGMENTS = 4
_CODE_AT = _EHDR.size + _SEGMENTS * _PHDR.size


class _Strings:
    """A string table."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        self.data += text.encode() + b"\0"
        return len(self.data) - len(text.encode()) - 1


class _Body:
    """The read-only part of the file, which begins with the headers and the code; offsets are addresses."""

    def __init__(self, code: bytes) -> None:
        self.data = bytearray(_CODE_AT) + code

    def add(self, part: bytes) -> int:
        self.data += bytes(-len(self.data) % 8)
        self.data += part
        return len(self.data) - len(part)


def _file(machine: int, body: bytes, dynamic: bytes) -> bytes:
    # The loader writes into the dynamic section, so it has a page of its own.
    offset = len(body) + -len(body) % 8
    address, size = offset + _PAGE, len(dynamic)
    segments = (
        (_PT_LOAD, _READ | _EXECUTE, 0, 0, 0, len(body), len(body), _PAGE),
        (_PT_LOAD, _READ | _WRITE, offset, address, address, size, size, _PAGE),
        (_PT_DYNAMIC, _READ | _WRITE, offset, address, address, size, size, 8),
        (_PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16),  # without it the stack would become executable
    )
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    sizes = (_EHDR.size, _PHDR.size, len(segments), _SHDR.size, 0, 0)
    headers = _EHDR.pack(identity, 3, machine, 1, 0, _EHDR.size, 0, 0, *sizes)
    headers += b"".join(_PHDR.pack(*segment) for segment in segments)
    return (headers + body[len(headers) :]).ljust(offset, b"\0") + dynamic


def _trap(machine: int, message: bytes) -> bytes:
    """Return code that writes the message, which follows the code, to stderr and then runs an invalid instruction."""
    if machine == X86_64:
        code = b"\xb8" + struct.pack("<I", 1)  # mov eax, 1 (write)
        code += b"\xbf" + struct.pack("<I", 2)  # mov edi, 2
        code += b"\x48\x8d\x35" + struct.pack("<I", 9)  # lea rsi, [rip + 9]
        code += b"\xba" + struct.pack("<I", len(message))  # mov edx, length
        code += b"\x0f\x05\x0f\x0b"  # syscall; ud2
    elif machine == AARCH64:
        words: Iterable[int] = (
            0xD2800040,  # mov x0, #2
            0x100000A1,  # adr x1, . + 20
            0xD2800002 | len(message) << 5,  # mov x2, #length
            0xD2800808,  # mov x8, #64 (write)
            0xD4000001,  # svc #0
            0x00000000,  # udf #0
        )
        code = struct.pack("<6I", *words)
    else:
        raise ValueError(f"no trap for processor {machine}")
    return code + message


def _section(data: bytes, offset: int) -> _Section:
    _, kind, _, _, begin, size, link, _, _, _ = _SHDR.unpack_from(data, offset)
    wanted = kind in (3, _SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED, _SHT_VERSYM)  # 3: a string table
    return _Section(kind, data[begin : begin + size] if wanted else b"", link)


def _text(names: bytes, offset: int) -> str:
    return names[offset : names.index(b"\0", offset)].decode()


def _hash(name: str) -> int:
    """Return the hash of a version's name, as the loader compares it."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value ^= (value >> 24) & 0xF0
    return value & 0x0FFFFFFF

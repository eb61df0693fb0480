"""The header of a built engine ("plan"), read before a runtime gets to see it. Pure.

Found by looking at plans that were built: bytes 0-3 are `ftrt` for TensorRT and `vtrt` for TensorRT-RTX, 4-7 a number
that is 0 where the rest is as told here, 24-27 the major, minor, patch and build number of the library that built it.
Where bytes 28-31 repeat the first four, 16-23 are the size of the whole plan. Numbers are little-endian. Some exporters
put a JSON object with its length (four bytes) before the plan.

What is behind the header has no checksum of the runtime's: a plan is only as sound as its digest.
"""

from __future__ import annotations

import msgspec

from edged.errors import EngineUnusable
from edged.files import NOT_JSON

_KINDS = {b"ftrt": "TensorRT", b"vtrt": "TensorRT-RTX"}
_MAGIC, _SHORT, _HEADER = 4, 28, 64  # bytes: of the magic, up to and with the version, of all that is known of
_LONGEST_JSON = 1 << 20


class Header(msgspec.Struct, frozen=True):
    """`kind` is "TensorRT" or "TensorRT-RTX". `version` has four numbers, each modulo 256 as the header keeps them;
    empty where the header does not tell. `size` is in bytes, None likewise. The plan begins at byte `offset`."""

    kind: str
    version: str
    size: int | None
    offset: int = 0


def read(data: bytes) -> Header:
    """The header of a plan; EngineUnusable when it is none, or has fewer bytes than it should."""
    offset = _after_json(data)
    kind = _KINDS.get(data[offset : offset + _MAGIC])
    if kind is None:
        raise EngineUnusable(f"the engine is no TensorRT plan: it begins with {data[:_MAGIC].hex(' ') or 'nothing'}")
    length = len(data) - offset
    if length < _HEADER:
        raise EngineUnusable(f"the engine is cut off: {length} bytes are not even a {kind} header")
    if any(data[offset + _MAGIC : offset + 2 * _MAGIC]):
        return Header(kind, "", None, offset)
    version = ".".join(str(number) for number in data[offset + _SHORT - 4 : offset + _SHORT])
    if data[offset + _SHORT : offset + _SHORT + _MAGIC] != data[offset : offset + _MAGIC]:
        return Header(kind, version, None, offset)
    size = int.from_bytes(data[offset + 16 : offset + 24], "little")
    if size != length:
        what = "is cut off" if length < size else "has something behind its end"
        raise EngineUnusable(f"the engine {what}: it has {length} bytes and its header says {size}")
    return Header(kind, version, size, offset)


def require(header: Header, kind: str, installed: str, *, any_minor: bool = False) -> None:
    """Requires that a plan is of this kind of runtime in this very version; with `any_minor` only the major counts.

    EngineUnusable says which version built it and which one is installed.
    """
    if header.kind != kind:
        raise EngineUnusable(f"the engine was built by {header.kind}, and {kind} cannot load it")
    built, here = _numbers(header.version), _numbers(installed)
    if any_minor:
        built, here = built[:1], here[:1]
    # Of a version with three numbers, as some packages have it, the three are compared.
    common = min(len(built), len(here))
    if built[:common] != here[:common]:
        raise EngineUnusable(
            f"the engine was built by {kind} {header.version}, and {installed} is installed; it will be rebuilt"
        )


def _after_json(data: bytes) -> int:
    """Where the plan begins: behind a JSON object with its length, if that is how the file begins."""
    if len(data) < _MAGIC or data[:_MAGIC] in _KINDS:
        return 0
    length = int.from_bytes(data[:_MAGIC], "little")
    end = _MAGIC + length
    if not 2 <= length <= _LONGEST_JSON or data[end : end + _MAGIC] not in _KINDS:
        return 0
    try:
        msgspec.json.decode(data[_MAGIC:end], type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return 0
    return end


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:4]
    return tuple(int(part) % 256 for part in parts) if all(part.isdecimal() for part in parts) else ()

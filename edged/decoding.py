"""Makes msgspec safe for several threads, and explains msgspec's errors to users. Encodes numbers for protobuf
messages.

When msgspec first decodes a struct type, it stores a table in the type. Python code runs while msgspec fills the table.
A second thread that decodes the same type meanwhile uses the incomplete table, which crashes the process (seen with
msgspec 0.22). Therefore `ready` prepares every type under one lock before its use.
"""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Sequence
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
_READY: set[object] = set()
_LOCK = threading.Lock()


@overload
def ready(kind: type[T]) -> type[T]: ...


@overload
def ready(kind: Any) -> Any: ...


def ready(kind: Any) -> Any:
    """Prepare a type for msgspec and return the type. Afterwards any thread can decode or convert values to this
    type."""
    if kind not in _READY:
        with _LOCK:
            msgspec.json.Decoder(kind)
            _READY.add(kind)
    return kind


_TYPES = {
    "array": "a list",
    "bool": "true or false",
    "bytes": "base64",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "an object",
    "str": "a string",
}


def explain(error: Exception, names: Sequence[str] = (), table: str = "an object") -> str:
    """Describe an error of msgspec for users: `shape[0]: expected a whole number, got a string`.

    `names` are the allowed names: for an unknown name, the text suggests the closest allowed name or lists all of them.
    `table` is the format's word for an object.
    """
    message, _, place = str(error).partition(" - at `")
    place = place.rstrip("`").removeprefix("key in ").lstrip("$.")
    if unknown := re.search(r"unknown field `(.*)`", message):
        close = difflib.get_close_matches(unknown[1], names, n=1)
        known = f"; known names: {', '.join(names)}" if names else ""
        text = f"unknown name {unknown[1]!r}" + (f"; did you mean {close[0]!r}?" if close else known)
    elif missing := re.search(r"missing required field `(.*)`", message):
        text = f"{missing[1]!r} is missing"
    else:
        kinds = _TYPES | {"object": table}
        typed = re.sub(r"`([^`]+)`", lambda found: " or ".join(kinds.get(k, k) for k in found[1].split(" | ")), message)
        typed = typed.replace(" or nothing", "")
        text = typed[:1].lower() + typed[1:] if typed.startswith(("Expected", "Input", "Invalid")) else typed
    return f"{place}: {text}" if place else text


def varint(value: int) -> bytes:
    """Encode a number, which must not be negative, as a varint of protobuf: 7 bits in each byte, the lowest bits first.
    Format: https://protobuf.dev/programming-guides/encoding"""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

"""msgspec, for threads and for people: types made ready so that threads may share them, and its errors in plain words.

What msgspec knows of a struct type it keeps at the type when the type is first decoded. While it is still collecting
that, Python code runs, and a second thread that decodes the same type then uses a half-filled table and crashes the
process (seen with msgspec 0.22). So every type is made ready under one lock before it is used.
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
    """The same type, which any thread may decode or convert to from now on."""
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
    "str": "a text",
}


def explain(error: Exception, names: Sequence[str] = (), table: str = "an object") -> str:
    """An error of msgspec in plain words: `shape[0]: expected a whole number, got a text`.

    `names` are those that may stand where it found an unknown one, `table` is what the format calls an object.
    """
    message, _, place = str(error).partition(" - at `")
    place = place.rstrip("`").removeprefix("key in ").lstrip("$.")
    if unknown := re.search(r"unknown field `(.*)`", message):
        close = difflib.get_close_matches(unknown[1], names, n=1)
        known = f"; there are {', '.join(names)}" if names else ""
        said = f"unknown name {unknown[1]!r}" + (f"; did you mean {close[0]!r}?" if close else known)
    elif missing := re.search(r"missing required field `(.*)`", message):
        said = f"{missing[1]!r} is missing"
    else:
        kinds = _TYPES | {"object": table}
        typed = re.sub(r"`([^`]+)`", lambda found: " or ".join(kinds.get(k, k) for k in found[1].split(" | ")), message)
        typed = typed.replace(" or nothing", "")
        said = typed[:1].lower() + typed[1:] if typed.startswith(("Expected", "Input", "Invalid")) else typed
    return f"{place}: {said}" if place else said

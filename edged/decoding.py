"""Types for msgspec to decode, made ready so that threads may share them.

What msgspec knows of a struct type it keeps at the type when the type is first decoded. While it is still collecting
that, Python code runs, and a second thread that decodes the same type then uses a half-filled table and crashes the
process (seen with msgspec 0.22). So every type is made ready under one lock before it is used.
"""

from __future__ import annotations

import threading
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

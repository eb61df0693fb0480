"""Whether making an engine is worth another try after it failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from edged.engines.child import ChildLost
from edged.errors import EdgedError, EngineUnusable, OutOfMemory

# What differs between two failures of one kind: names, places and numbers.
_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|/\S+|\b[0-9a-f]{8,}\b|\d+(\.\d+)?")
_SHOWN = 200  # characters that tell one kind from another
_SOFTENED = ("tensorrt", "tensorrt_rtx")  # whose next try asks less of the builder, so that it may end otherwise


def why(error: EdgedError, backend: str, before: str, kin: Iterable[str]) -> str:
    """Why an engine that failed so would fail so again; empty if another try may end otherwise.

    `before` is its last failure's message, `kin` those of engines given up that differ in precision or threads only.
    """
    if not _is_of_model(error):
        return ""
    own = _kind(str(error))
    if own in map(_kind, kin):
        return "as in another precision"
    return "alike" if own == _kind(before) and backend not in _SOFTENED else ""


def _is_of_model(error: EdgedError) -> bool:
    """Whether model and runtime alone lead to it: a kill from outside and want of memory pass."""
    if isinstance(error, ChildLost):
        return error.how in ("crashed", "late")
    return isinstance(error, EngineUnusable) and not isinstance(error, OutOfMemory)


def _kind(message: str) -> str:
    return _PARTICULARS.sub("#", message)[:_SHOWN]

"""What OpenVINO says of a model that it does not take, in words for people and one for programs."""

from __future__ import annotations

import re

from edged.backends.contract import one_line
from edged.errors import NotTaken

_UNCONVERTED = re.compile(r"No conversion rule found for operations: (?P<names>.+?)(?= To facilitate| -- |$)")
_MEMORY = re.compile(r"bad_alloc|bad allocation|Cannot allocate|out of memory", re.IGNORECASE)
# `Exception from src/core.cpp:105:` and `Check 'x' failed at src/y.cpp:151:`, any number of them.
_SOURCES = re.compile(r"(?:Exception from \S+:\d+: ?|Check '.*?' failed at \S+:\d+: ?)+")


def told(error: Exception) -> NotTaken:
    """As it is to be told."""
    said = " ".join(str(error).split())
    if match := _UNCONVERTED.search(said):
        names = [re.sub(r"-\d+$", "", name) for name in match["names"].split(", ")]
        return NotTaken(f"OpenVINO does not have {', '.join(names)[:200]}", "unknown_operator", names[0])
    why = "too_much_memory" if isinstance(error, MemoryError) or _MEMORY.search(said) else "refused"
    return NotTaken(f"OpenVINO refuses the model: {one_line(Exception(_SOURCES.sub('', said)), 300)}", why)

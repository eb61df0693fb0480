"""What a log record is about: what was given with it (`extra`), and what its template names.

edged's messages put a word before what they name ("model %s: engine %s serves"); so the names are read from the
template's arguments, and no caller has to say them twice.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache

# In the order in which they are written. child: whose output it is; repeated: for how many more records it stands.
NAMES = ("event", "alarm", "model", "engine", "camera", "backend", "child", "repeated")
_PLACE = re.compile(r"%(?:%|[#0\- +]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[a-zA-Z])")
_WORD = re.compile(r"\b(model|engine|camera) $")


def about(record: logging.LogRecord) -> dict[str, str]:
    """By name, without those that there are none of."""
    found: dict[str, str] = {}
    if isinstance(record.msg, str) and isinstance(record.args, tuple):
        for name, index in _named(record.msg):
            if index < len(record.args):
                found[name] = str(record.args[index])
    for name in NAMES:
        given = getattr(record, name, None)
        if given:
            found[name] = str(given)
    return {name: found[name] for name in NAMES if name in found}


def which(record: logging.LogRecord, name: str) -> str:
    """One of them; empty where there is none."""
    given = record.__dict__.get(name)
    if given or not isinstance(record.msg, str) or not isinstance(record.args, tuple):
        return str(given or "")
    for word, index in _named(record.msg):
        if word == name and index < len(record.args):
            return str(record.args[index])
    return ""


@lru_cache(maxsize=512)
def _named(template: str) -> tuple[tuple[str, int], ...]:
    """Which argument of a template is which; the first one, where there are several of a kind."""
    found: dict[str, int] = {}
    index = 0
    for place in _PLACE.finditer(template):
        if place[0] == "%%":
            continue
        if word := _WORD.search(template, 0, place.start()):
            found.setdefault(word[1], index)
        index += 1 + place[0].count("*")
    return tuple(found.items())

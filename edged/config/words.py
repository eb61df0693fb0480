"""Values in words: as TOML writes them, and as a person is shown them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

import msgspec

_SHOWN = 60  # characters of a wrong value that are repeated


def toml(value: object) -> str:
    """A value as TOML writes it; tables inline, and None, which TOML does not have, as an empty text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's, but with letters as they are (TOML has no surrogates) and no bare DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, msgspec.Struct):
        return toml(
            {name: getattr(value, name) for name in value.__struct_fields__ if getattr(value, name) is not None}
        )
    if isinstance(value, dict):
        inner = ", ".join(f"{key(name)} = {toml(each)}" for name, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return "" if value is None else str(value)


def key(name: object) -> str:
    """A name as TOML has it before an equals sign: bare where that is possible, otherwise in quotes."""
    text = str(name)
    is_bare = bool(text) and text.isascii() and text.replace("_", "").replace("-", "").isalnum()
    return text if is_bare else toml(text)


def shown(value: object) -> str:
    """A value that somebody wrote, in one line that is not too long."""
    if isinstance(value, dict):
        return "a table"
    try:
        text = toml(value)
    except RecursionError:  # dotted keys nest tables in a list as deep as one likes
        return "a list that is nested too deep"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def either(words: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last

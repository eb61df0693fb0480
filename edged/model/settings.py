"""A model's settings: flat names with text values, checked by whoever owns the name, kept as TOML beside the model."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from edged.backend import registry
from edged.errors import ConfigError

Settings: TypeAlias = dict[str, str]

BACKENDS = "backends"
THREADS = "threads"
_OWN = (BACKENDS, THREADS)
# Owned and checked by the vision room: how pictures become tensors and tensors become detections.
_VISION = ("family", "names", "preprocess.", "thresholds.")


def parse_assignments(assignments: Iterable[str]) -> Settings:
    """`KEY=VALUE` words from a command line."""
    settings = {}
    for word in assignments:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{word!r} is not KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


def validate(settings: Mapping[str, str]) -> None:
    """Refuses unknown names and impossible values of this room; the vision room checks its own."""
    for key in settings:
        if key in _OWN or any(key == name or (name.endswith(".") and key.startswith(name)) for name in _VISION):
            continue
        close = difflib.get_close_matches(key, [*_OWN, "family", "names", "thresholds.score"], n=1)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"there are {', '.join(_OWN)}, family, names, preprocess.*, thresholds.*"
        )
        raise ConfigError(f"there is no model setting {key!r}; {hint}")
    backends(settings)
    threads(settings)


def backends(settings: Mapping[str, str]) -> tuple[str, ...] | None:
    """The backends that may serve the model, in order of preference; None for all there are."""
    text = settings.get(BACKENDS)
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in registry.NAMES]
    if unknown or not names:
        raise ConfigError(f"setting backends={text!r}: choose from {', '.join(registry.NAMES)}")
    return names


def threads(settings: Mapping[str, str]) -> int:
    """CPU threads of one inference, 0 for the runtime's own choice."""
    text = settings.get(THREADS, "0")
    if not text.isdecimal() or len(text) > 4 or int(text) > 1024:
        raise ConfigError(f"setting threads={text[:20]!r}: give a whole number from 0 (the runtime chooses) to 1024")
    return int(text)


def read_toml(text: bytes) -> Settings:
    """Settings from TOML; tables become dotted names, other values their text."""
    try:
        tree = msgspec.toml.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"settings are not valid TOML: {error}") from error
    return _flatten(tree, "")


def write_toml(settings: Mapping[str, str]) -> bytes:
    """The settings as one `"name" = "value"` a line."""
    lines = [f"{_quote(key)} = {_quote(value)}" for key, value in sorted(settings.items())]
    return ("\n".join(lines) + "\n").encode()


def _quote(text: str) -> str:
    """A TOML basic string: JSON's, but with letters as they are (TOML has no surrogates) and no bare DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _flatten(tree: Mapping[str, object], prefix: str) -> Settings:
    flat: Settings = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            flat[prefix + key] = ",".join(str(item) for item in value)
        elif isinstance(value, bool):
            flat[prefix + key] = str(value).lower()
        else:
            flat[prefix + key] = str(value)
    return flat

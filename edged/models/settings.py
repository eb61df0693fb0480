"""A model's settings: flat names with text values, checked by whoever owns the name, kept as TOML beside the model."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from edged.backends import profile, registry
from edged.backends.trt import options as trt_options
from edged.errors import ConfigError
from edged.models import batching, limits, sequencing, shapes, triton_config, verification

Settings: TypeAlias = dict[str, str]

BACKENDS = "backends"
THREADS = "threads"
PRECISIONS = "precisions"
_OWN = (BACKENDS, sequencing.DECOUPLED, PRECISIONS, THREADS, triton_config.VERSIONS)
_PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8")
_GROUPS = (
    *("batch.*", "decode.*", "preprocess.*", "limits.*", "outputs.*", "profile.*", "sequence.*", "shapes.*"),
    *("tensorrt.*", "thresholds.*", "verify.*"),
)
# Owned and checked by the vision room: how pictures become tensors and tensors become detections.
_VISION = ("family", "names", "decode.", "preprocess.", "thresholds.")


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
        if key in _OWN or key.startswith((batching.PREFIX, sequencing.PREFIX, shapes.PREFIX, verification.PREFIX)):
            continue
        if key.startswith((*limits.PREFIXES, profile.PREFIX, trt_options.PREFIX)):
            continue
        if any(key == name or (name.endswith(".") and key.startswith(name)) for name in _VISION):
            continue
        close = difflib.get_close_matches(key, [*_OWN, "family", "names", "thresholds.score", "verify.cosine"], n=1)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"there are {', '.join(_OWN)}, family, names, {', '.join(_GROUPS)}"
        )
        raise ConfigError(f"there is no model setting {key!r}; {hint}")
    backends(settings)
    precisions(settings)
    threads(settings)
    triton_config.version_policy(settings)
    batching.check(settings)
    limits.check(settings)
    sequencing.check(settings)
    shapes.check(settings)
    verification.check(settings)
    profile.check(settings)
    trt_options.check(settings)


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


def precisions(settings: Mapping[str, str]) -> tuple[str, ...] | None:
    """The precisions to try, in order of preference; None for fp32 and whatever suits the processor."""
    text = settings.get(PRECISIONS)
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names or any(name not in _PRECISIONS for name in names):
        raise ConfigError(f"setting precisions={text[:40]!r}: choose from {', '.join(_PRECISIONS)}")
    return names


def threads(settings: Mapping[str, str]) -> tuple[int, ...]:
    """Numbers of CPU threads of one inference to try, 0 for the runtime's own choice; never empty."""
    text = settings.get(THREADS, "0")
    words = [word.strip() for word in text.split(",")]
    if len(words) > 8 or not all(word.isdecimal() and len(word) <= 4 and int(word) <= 1024 for word in words):
        raise ConfigError(
            f"setting threads={text[:40]!r}: give whole numbers from 0 (the runtime chooses) to 1024, at most 8 of them"
        )
    return tuple(dict.fromkeys(int(word) for word in words))


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

"""A model's settings for pictures, sound and detections, and typed readers of setting values.

An unknown key under `preprocess.`, `thresholds.`, `decode.` or `sound.` raises a ConfigError that suggests the closest
known key. Keys of other modules are ignored.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence

from edged.errors import ConfigError

PREPROCESS = tuple(
    f"preprocess.{k}"
    for k in ("color", "fit", "scale", "mean", "std", "width", "height", "pad", "zoom", "antialias", "reduce")
)
THRESHOLD = "thresholds.score"
THRESHOLDS = (THRESHOLD, *(f"thresholds.{k}" for k in ("iou", "max_detections", "class_agnostic")))
DECODE = tuple(
    f"decode.{k}"
    for k in ("activation", "anchors", "background", "blank", "boxes", "characters", "layout", "scores", "unclip")
)
SOUND = tuple(f"sound.{k}" for k in ("rate", "window", "hop"))
UNPREFIXED = ("family", "names", "prompts")
KNOWN = (*UNPREFIXED, *PREPROCESS, *THRESHOLDS, *DECODE, *SOUND)

METADATA_PREFIX = "edged."  # prefix of settings that `edged export` writes into the metadata of an ONNX file
VISION_PREFIXES = ("preprocess.", "thresholds.", "decode.", "sound.")
_MOST_UNKNOWN, _MOST_SHOWN = 5, 60  # the most unknown keys that an error names, and the most characters of a value
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def check(settings: Mapping[str, str]) -> None:
    """Raise ConfigError if keys below `VISION_PREFIXES` are unknown. The message names these keys in one line."""
    unknown = [key[:_MOST_SHOWN] for key in settings if key.startswith(VISION_PREFIXES) and key not in KNOWN]
    if len(unknown) == 1:
        raise ConfigError(f"unknown setting {unknown[0]!r}; {nearest(unknown[0], KNOWN)}")
    if unknown:
        listed = ", ".join(f"{key} ({_close(key, KNOWN) or 'no similar key'})" for key in unknown[:_MOST_UNKNOWN])
        more = f" and {len(unknown) - _MOST_UNKNOWN} more" if len(unknown) > _MOST_UNKNOWN else ""
        raise ConfigError(f"unknown settings {listed}{more}")


def from_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the known settings in a model's metadata. The keys are without the prefix `edged.`."""
    found = {key[len(METADATA_PREFIX) :]: value for key, value in metadata.items() if key.startswith(METADATA_PREFIX)}
    return {key: value for key, value in found.items() if key in KNOWN}


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the known key that is closest to `word`, or all known keys if no key is
    close."""
    offered = tuple(known)
    return _close(word, offered) or f"known: {', '.join(offered)}"


def _close(word: str, offered: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, offered, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else ""


def choice(settings: Mapping[str, str], key: str, offered: tuple[str, ...]) -> str | None:
    value = settings.get(key)
    if value is None or value in offered:
        return value
    raise ConfigError(f"setting {key}={value[:_MOST_SHOWN]} is invalid; {nearest(value, offered)}")


def number(settings: Mapping[str, str], key: str, low: float = -math.inf, high: float = math.inf) -> float | None:
    """Return a setting that is a decimal number or a fraction such as 1/255, in low..high; None if not set. Raises
    ConfigError for other values."""
    value = settings.get(key)
    return None if value is None else _number(key, value, low, high)


def integer(settings: Mapping[str, str], key: str, low: int, high: int) -> int | None:
    value = settings.get(key)
    if value is None:
        return None
    # isdecimal alone accepts digits of other scripts, and int() raises for a very long run of digits.
    if not (value.isascii() and value.isdecimal() and len(value) < 12 and low <= int(value) <= high):
        raise ConfigError(f"setting {key}={value[:_MOST_SHOWN]} is not a whole number in {low}..{high}")
    return int(value)


def boolean(settings: Mapping[str, str], key: str) -> bool | None:
    value = settings.get(key)
    if value is None:
        return None
    if value.lower() not in _TRUE + _FALSE:
        raise ConfigError(f"setting {key}={value[:_MOST_SHOWN]} must be true or false")
    return value.lower() in _TRUE


def triple(settings: Mapping[str, str], key: str) -> tuple[float, float, float] | None:
    """Return a setting of three comma-separated numbers, or of one number for all channels; None if not set. Raises
    ConfigError for other values."""
    value = settings.get(key)
    if value is None:
        return None
    numbers = [_number(key, part.strip(), -math.inf, math.inf) for part in value.split(",")]
    if len(numbers) == 1:
        numbers *= 3
    if len(numbers) != 3:
        raise ConfigError(f"setting {key}={value[:_MOST_SHOWN]} needs one number, or three, one for each channel")
    return numbers[0], numbers[1], numbers[2]


def rows(settings: Mapping[str, str], key: str) -> tuple[tuple[float, ...], ...] | None:
    """Return a setting of rows, each with pairs of numbers above 0 and up to 65536; None if not set. Commas separate
    numbers, semicolons separate rows. Raises ConfigError for other values."""
    value = settings.get(key)
    if value is None:
        return None
    found = tuple(
        tuple(_number(key, part.strip(), 0, 65536) for part in row.split(","))
        for row in value.split(";")
        if row.strip()
    )
    if not found or any(len(row) % 2 or 0 in row for row in found):
        raise ConfigError(
            f'setting {key!r} needs pairs of a width and a height above 0, such as "10,13,16,30; 30,61,62,45"; use a'
            " semicolon between the pairs of two heads"
        )
    return found


def words(settings: Mapping[str, str], key: str) -> tuple[str, ...] | None:
    """Return the comma-separated words of a setting, without the spaces around each word; None if not set. Raises
    ConfigError if a word is empty."""
    value = settings.get(key)
    if value is None:
        return None
    parts = tuple(part.strip() for part in value.split(","))
    if not all(parts):
        raise ConfigError(f"setting {key!r} has an empty entry; separate the entries by single commas")
    return parts


def _number(key: str, value: str, low: float, high: float) -> float:
    above, _, below = value.partition("/")
    try:
        parsed = float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError, OverflowError):
        parsed = math.nan
    if not math.isfinite(parsed) or not low <= parsed <= high:
        limits = "" if math.isinf(low) and math.isinf(high) else f" in {low:g}..{high:g}"
        raise ConfigError(f"setting {key}={value[:_MOST_SHOWN]} is not a number{limits}")
    return parsed

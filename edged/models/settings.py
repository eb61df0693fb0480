"""A model's settings: flat names with text values, validated here and stored as TOML in the model's folder.

`edged.vision` validates the values of settings for pictures, sound and detections (`family`, `preprocess.*`, ...).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, cast, get_args

import msgspec

from edged.backends import profile, registry
from edged.backends.trt import options as trt_options
from edged.errors import ConfigError
from edged.models import language, limits, sequencing, shapes, triton_config
from edged.vision.settings import KNOWN, UNPREFIXED, VISION_PREFIXES, integer, nearest, number

Settings: TypeAlias = dict[str, str]
Performance = Literal["auto", "latency", "throughput"]

BACKENDS = "backends"
THREADS = "threads"
PERFORMANCE = "performance"
PRECISIONS = "precisions"
REPAIR_S = "int8.repair_s"
BATCH_MAX, BATCH_WAIT_MS = "batch.max", "batch.wait_ms"
VERIFY = "verify."
# The figures (measured differences) by which engines are verified, each with the largest bound that a setting may give.
# The smallest bound is 0. `edged.verification.standard` explains the figures.
FIGURES = {
    "finite": 1.0,
    "cosine": 1.0,
    "relative_l2": 100.0,
    "element": 100.0,
    "outliers": 1.0,
    "unequal": 1.0,
    "top1": 1.0,
    "boxes": 1.0,
    "box_score": 1.0,
    "class_score": 1.0,
    "class_map": 1.0,
    "depth": 100.0,
    "embedding": 1.0,
    "text": 1.0,
    "anomaly": 1.0,
    "recall": 1.0,
    "precision": 1.0,
    "recall_75": 1.0,
    "precision_75": 1.0,
    "score_drift": 1.0,
    "masks": 1.0,
    "keypoints": 1.0,
    "top5": 1.0,
    "objects": 1e6,
}
ALL_PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8")

_PLAIN = (BACKENDS, sequencing.DECOUPLED, PERFORMANCE, PRECISIONS, THREADS, triton_config.VERSIONS)
# All setting names below these prefixes. Names below other prefixes are checked by the modules that read the settings.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "batch.": (BATCH_MAX, BATCH_WAIT_MS),
    "int8.": (REPAIR_S,),
    language.PREFIX: language.NAMES,
    "limits.": limits.NAMES,
    "outputs.": limits.NAMES,
    "shapes.": shapes.NAMES,
}
_PREFIXES = (*_GROUPS, profile.PREFIX, sequencing.PREFIX, trt_options.PREFIX, VERIFY)
_MAX_BATCH = 256
_MAX_WAIT_MS = 1000.0
_REPAIR_SECONDS, _MAX_REPAIR_SECONDS = 300.0, 86400.0


def parse_assignments(assignments: Iterable[str]) -> Settings:
    """Parse `KEY=VALUE` words of a command line. Raises ConfigError for a word of another form."""
    settings = {}
    for word in assignments:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{word!r} is not a setting; write KEY=VALUE")
        key = key.strip()
        settings[key] = value if key == "decode.characters" else value.strip()  # a space may be the first character
    return settings


def merge(settings: Mapping[str, str], changes: Mapping[str, str]) -> Settings:
    """Return settings with changes applied. An empty value in `changes` removes the setting."""
    return {key: value for key, value in {**settings, **changes}.items() if value}


def validate(settings: Mapping[str, str]) -> None:
    """Raise ConfigError for unknown names and invalid values. The values of settings for pictures, sound and detections
    are not checked here: the model's family (the decoder of its outputs) checks them."""
    for key in settings:
        _check_name(key)
    backends(settings)
    precisions(settings)
    threads(settings)
    performance(settings)
    triton_config.version_policy(settings)
    max_batch(settings)
    batch_wait_seconds(settings)
    repair_seconds(settings)
    limits.bounds("", settings)
    sequencing.check(settings)
    shapes.policy(settings)
    _check_figures(settings)
    profile.check(settings)
    trt_options.check(settings)
    language.check_settings(settings)


def _check_name(key: str) -> None:
    group = next((names for prefix, names in _GROUPS.items() if key.startswith(prefix)), None)
    if group is not None and key not in group:
        raise ConfigError(f"unknown setting {key[:60]!r}; {nearest(key, group)}")
    if key in (*_PLAIN, *UNPREFIXED) or key.startswith(_PREFIXES):
        return
    if not key.startswith(VISION_PREFIXES) or key in VISION_PREFIXES:
        every = sorted((*_PLAIN, *UNPREFIXED, *(f"{prefix}*" for prefix in (*_PREFIXES, *VISION_PREFIXES))))
        close = difflib.get_close_matches(key, [*_PLAIN, *KNOWN, "verify.cosine"], n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(every)}"
        raise ConfigError(f"unknown model setting {key!r}; {hint}")


def _check_figures(settings: Mapping[str, str]) -> None:
    for key in filter(lambda key: key.startswith(VERIFY), settings):
        precision, dot, figure = key[len(VERIFY) :].rpartition(".")
        if figure not in FIGURES:
            raise ConfigError(f"unknown figure {figure!r} in setting {key}; {nearest(figure, FIGURES)}")
        if dot and precision not in ALL_PRECISIONS:
            raise ConfigError(f"unknown precision {precision!r} in setting {key}; {nearest(precision, ALL_PRECISIONS)}")
        number(settings, key, 0.0, FIGURES[figure])


def backends(settings: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the backends that may serve the model, in order of preference; None for all that the box has."""
    text = settings.get(BACKENDS)
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in registry.NAMES]
    if unknown or not names:
        what = f"{unknown[0][:40]!r} is not a backend" if unknown else "no backend is named"
        raise ConfigError(f"setting backends={text[:40]!r}: {what}; choose from {', '.join(registry.NAMES)}")
    return names


def precisions(settings: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the precisions to try, in order of preference; None for the default: fp32, and those that suit the
    processor."""
    text = settings.get(PRECISIONS)
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names or any(name not in ALL_PRECISIONS for name in names):
        raise ConfigError(f"setting precisions={text[:40]!r}: choose from {', '.join(ALL_PRECISIONS)}")
    return names


def threads(settings: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of CPU threads per inference to try; 0 lets the runtime choose. Never empty."""
    text = settings.get(THREADS, "0")
    words = [word.strip() for word in text.split(",")]
    if len(words) > 8 or not all(word.isdecimal() and len(word) <= 4 and int(word) <= 1024 for word in words):
        raise ConfigError(
            f"setting threads={text[:40]!r}: give whole numbers from 0 (the runtime chooses) to 1024, at most 8 of them"
        )
    return tuple(dict.fromkeys(int(word) for word in words))


def performance(settings: Mapping[str, str]) -> Performance:
    """Return the criterion for the choice of an engine: latency, throughput, or auto, which follows the load."""
    text = settings.get(PERFORMANCE, "auto")
    if text not in get_args(Performance):
        raise ConfigError(f"setting performance={text[:40]!r}: choose from {', '.join(get_args(Performance))}")
    return cast(Performance, text)


def max_batch(settings: Mapping[str, str]) -> int | None:
    """Return `batch.max`, the largest number of frames or of request rows in one batch; None if it is not set."""
    return integer(settings, BATCH_MAX, 1, _MAX_BATCH)


def batch_wait_seconds(settings: Mapping[str, str]) -> float:
    """Return how long the first frame or request of a batch may wait for others (`batch.wait_ms`)."""
    return (number(settings, BATCH_WAIT_MS, 0.0, _MAX_WAIT_MS) or 0.0) / 1e3


def repair_seconds(settings: Mapping[str, str]) -> float:
    """Return how many seconds a build may spend to repair an int8 engine that differs too much from the reference; 0
    for no repair."""
    wanted = number(settings, REPAIR_S, 0.0, _MAX_REPAIR_SECONDS)
    return _REPAIR_SECONDS if wanted is None else wanted


def verify_bounds(settings: Mapping[str, str], precision: str) -> dict[str, float]:
    """Return the configured bounds of figures (measured differences from the reference) for engines of this precision,
    by figure. `verify.PRECISION.FIGURE` overrides `verify.FIGURE`."""
    bounds: dict[str, float] = {}
    for prefix in (VERIFY, f"{VERIFY}{precision}."):  # the second prefix overrides the first
        for figure, most in FIGURES.items():
            value = number(settings, prefix + figure, 0.0, most)
            if value is not None:
                bounds[figure] = value
    return bounds


def read_toml(text: bytes) -> Settings:
    """Parse settings from TOML. Tables become dotted names, other values become text. Raises ConfigError if the text is
    not valid TOML."""
    try:
        tree = msgspec.toml.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"settings are not valid TOML: {error}") from error
    return _flatten(tree, "")


def write_toml(settings: Mapping[str, str]) -> bytes:
    """Encode settings as TOML, with one `"name" = "value"` per line."""
    lines = [f"{_quote(key)} = {_quote(value)}" for key, value in sorted(settings.items())]
    return ("\n".join(lines) + "\n").encode()


def _quote(text: str) -> str:
    """Return a TOML basic string. Unlike in JSON, DEL is escaped; other characters than ASCII are not escaped, because
    TOML has no surrogates."""
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

"""The settings `batch.max`, the most frames of a model that go to its engine together, and `batch.wait_ms`, how many
milliseconds the first of them may wait for the others."""

from __future__ import annotations

from collections.abc import Mapping

from edged.errors import ConfigError
from edged.vision.settings import integer, nearest, number

PREFIX = "batch."
_MAX, _WAIT = "batch.max", "batch.wait_ms"
_LARGEST = 256
_LONGEST_MS = 1000.0


def check(settings: Mapping[str, str]) -> None:
    """ConfigError for a name under `batch.` that does not exist, or an impossible value."""
    for key in settings:
        if key.startswith(PREFIX) and key not in (_MAX, _WAIT):
            raise ConfigError(f"there is no setting {key}; {nearest(key, (_MAX, _WAIT))}")
    largest(settings)
    wait_seconds(settings)


def largest(settings: Mapping[str, str]) -> int | None:
    """The most frames at a time; None where nothing is said."""
    return integer(settings, _MAX, 1, _LARGEST)


def wait_seconds(settings: Mapping[str, str]) -> float:
    return (number(settings, _WAIT, 0.0, _LONGEST_MS) or 0.0) / 1e3

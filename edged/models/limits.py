"""Limits of one request to a model, and whether outputs must be finite: the settings `limits.seconds`,
`limits.output_mb` and `outputs.finite`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from edged.vision.settings import choice, integer, number

SECONDS: Final = "limits.seconds"
OUTPUT_MB: Final = "limits.output_mb"
FINITE: Final = "outputs.finite"
NAMES: Final = (SECONDS, OUTPUT_MB, FINITE)
_SHORTEST, _LONGEST = 0.05, 86400.0  # seconds; shorter limits would be exceeded by jitter alone
_LARGEST_MB = 1 << 20

# NaN and infinity in outputs: "count" counts them and raises an alarm, "refuse" also fails the request, "ignore" does
# nothing.
Finite: TypeAlias = Literal["count", "refuse", "ignore"]


class Bounds(msgspec.Struct, frozen=True):
    """Limits of one request to `model`: seconds of engine time, and MiB of outputs. 0 stands for the daemon's limit
    (`hosts.job_seconds`, `hosts.output_mb`). `finite` says how NaN and infinity in outputs are handled."""

    model: str = ""
    seconds: float = 0.0
    output_mb: int = 0
    finite: Finite = "count"


def bounds(model: str, settings: Mapping[str, str]) -> Bounds:
    """Read the limits from a model's settings. Raises ConfigError for an invalid value."""
    value = choice(settings, FINITE, ("count", "refuse", "ignore"))
    finite: Finite = "refuse" if value == "refuse" else "ignore" if value == "ignore" else "count"
    seconds = number(settings, SECONDS, _SHORTEST, _LONGEST) or 0.0
    return Bounds(model, seconds, integer(settings, OUTPUT_MB, 1, _LARGEST_MB) or 0, finite)

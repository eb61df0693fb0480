"""What one request of a model may take, and whether its answers must be finite: the settings `limits.seconds`,
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
_SHORTEST, _LONGEST = 0.05, 86400.0  # seconds; a shorter limit would be met by the noise of a busy box
_LARGEST_MB = 1 << 20

# What is done about NaN and infinity in outputs: counted, and an alarm raised; the answer refused besides; nothing.
Finite: TypeAlias = Literal["count", "refuse", "ignore"]


class Bounds(msgspec.Struct, frozen=True):
    """What a request of `model` may take: seconds of an engine's time, mebibytes of outputs; 0 for the box's own limit
    (`hosts.job_seconds`, `hosts.output_mb`)."""

    model: str = ""
    seconds: float = 0.0
    output_mb: int = 0
    finite: Finite = "count"


def bounds(model: str, settings: Mapping[str, str]) -> Bounds:
    """As a model's settings say."""
    said = choice(settings, FINITE, ("count", "refuse", "ignore"))
    finite: Finite = "refuse" if said == "refuse" else "ignore" if said == "ignore" else "count"
    seconds = number(settings, SECONDS, _SHORTEST, _LONGEST) or 0.0
    return Bounds(model, seconds, integer(settings, OUTPUT_MB, 1, _LARGEST_MB) or 0, finite)

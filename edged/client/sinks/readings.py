"""Takes from a result the numbers that home automation can use. These are the share of each class in a class map, or
the lowest and highest depth. Pure."""

from __future__ import annotations

import msgspec

from edged.client.result import Result
from edged.vision.content import Depth


class Reading(msgspec.Struct, frozen=True):
    """A number with a name and a unit. The unit is empty if the number has none."""

    name: str
    value: float
    unit: str = ""


def readings(result: Result) -> tuple[Reading, ...]:
    """Return the numbers of a result; empty if its content has none. Shares are in percent of the map."""
    if isinstance(result.content, Depth):
        depth = result.content
        limits = ("depth low", depth.map.low), ("depth high", depth.map.high)
        return tuple(Reading(name, float(f"{value:.4g}"), depth.unit) for name, value in limits)
    return tuple(Reading(area.label, round(100 * area.share, 1), "%") for area in result.areas)

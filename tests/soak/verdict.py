"""Decide whether figures grow. Pure, so that tests show what a soak finds and what it tolerates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import msgspec

from tests.soak.figures import Figures

FEWEST: Final = 4  # the minimum of rounds for a verdict
# The tolerated growth of each figure. Memory includes the allocators': threads and pools grow once, the first time when
# all are busy, which may be late.
SLACK: Final[Mapping[str, int]] = {
    "daemon_mb": 12,
    "daemon_fds": 2,
    "daemon_threads": 2,
    "hosts": 1,  # hosts for suspects exist after the first crashes
    "host_mb": 20,
    "host_fds": 2,
    "host_threads": 3,  # for one more session
    "segments": 1,  # of a killed client, until the next client removes it
    "files": 12,  # records of killed builds, kept in case their models return
}
assert set(SLACK) == set(Figures.__struct_fields__)


def growths(rounds: Sequence[Figures]) -> list[str]:
    """Return a line for each figure that grew over `rounds`: measured after each round, without the warm-up.

    A figure grew if its lowest value at the end is above its highest value at the beginning plus the slack. Memory must
    also have grown just before the end: an allocator's first peak leads to a stable level, a leak continues.
    """
    if len(rounds) < FEWEST:
        return [f"only {len(rounds)} rounds of {FEWEST} ended: too few for a verdict about growth; give more minutes"]
    part = max(2, len(rounds) // 3)
    found = []
    for name, slack in SLACK.items():
        before = [getattr(figures, name) for figures in rounds[:part]]
        after = [getattr(figures, name) for figures in rounds[-part:]]
        if min(after) > max(before) + slack and not (name.endswith("_mb") and _is_level(rounds, name, part)):
            course = ", ".join(str(getattr(figures, name)) for figures in rounds)
            found.append(f"{name} grew from {max(before)} to {min(after)}, {slack} more are allowed: {course}")
    return found


def _is_level(rounds: Sequence[Figures], name: str, part: int) -> bool:
    """Return True if a figure is about as large in the last part as in the part before. A leak that just exceeds the
    slack over all rounds grows by two fifths of the slack per part with eight rounds, and by half with many."""
    last, previous = rounds[-part:], rounds[-2 * part : -part]
    growth = fmean(getattr(figures, name) for figures in last) - fmean(getattr(figures, name) for figures in previous)
    return growth < SLACK[name] / 4


HEADER: Final = f"{'minute':<14}" + "".join(f"{name:>15}" for name in Figures.__struct_fields__)


def row(minute: str, figures: Figures) -> str:
    """Return a line below the header."""
    return f"{minute:<14}" + "".join(f"{getattr(figures, name):>15}" for name in Figures.__struct_fields__)


class Stretch(msgspec.Struct, frozen=True):
    """The durations of a soak's parts, in seconds."""

    warming: float
    round: float

    @classmethod
    def of(cls, seconds: float) -> Stretch:
        """Divide the time: a fifth to warm up, then at least eight rounds of ten seconds to two minutes each."""
        warming = seconds / 5
        return cls(warming, min(120.0, max(10.0, (seconds - warming) / 8)))

"""Whether figures grow: pure, so that it is known what a soak would find and what it would pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import msgspec

from tests.soak.figures import Figures

FEWEST: Final = 4  # rounds without which nothing can be said
# By how much a figure may be larger at the end than at the beginning. Memory is the allocators' as well: what threads
# and pools take when they are first all busy comes late, and once.
SLACK: Final[Mapping[str, int]] = {
    "daemon_mb": 12,
    "daemon_fds": 2,
    "daemon_threads": 2,
    "hosts": 1,  # those of suspects come with the first deaths
    "host_mb": 20,
    "host_fds": 2,
    "host_threads": 3,  # of one more session
    "segments": 1,  # of a client that was killed, until the next one comes
    "files": 12,  # what is remembered of builds that were killed, for when their models come back
}
assert set(SLACK) == set(Figures.__struct_fields__)


def growths(rounds: Sequence[Figures]) -> list[str]:
    """A line for each figure that grew, of rounds after which the daemon was calm, without those in which it warmed up.

    A figure grew if its least at the end is above its most at the beginning and the slack. Memory must also have grown
    just before the end: an allocator's first peak is a step to a level that stays, a leak goes on.
    """
    if len(rounds) < FEWEST:
        return [f"only {len(rounds)} rounds of {FEWEST} ended: nothing can be said about growth; give more minutes"]
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
    """Whether a figure is about as large in the last part as in the one before. A leak that is just found in all rounds
    grows by two fifths of the slack from part to part if there are eight, and by half if there are many."""
    last, previous = rounds[-part:], rounds[-2 * part : -part]
    growth = fmean(getattr(figures, name) for figures in last) - fmean(getattr(figures, name) for figures in previous)
    return growth < SLACK[name] / 4


HEADER: Final = f"{'minute':<14}" + "".join(f"{name:>15}" for name in Figures.__struct_fields__)


def row(minute: str, figures: Figures) -> str:
    """A line below the header."""
    return f"{minute:<14}" + "".join(f"{getattr(figures, name):>15}" for name in Figures.__struct_fields__)


class Stretch(msgspec.Struct, frozen=True):
    """How long the parts of a soak take, in seconds."""

    warming: float
    round: float

    @classmethod
    def of(cls, seconds: float) -> Stretch:
        """A fifth to warm up, then at least eight rounds of at least ten seconds and at most two minutes."""
        warming = seconds / 5
        return cls(warming, min(120.0, max(10.0, (seconds - warming) / 8)))

"""Which engines give way when room is needed. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class Standing(enum.IntEnum):
    """What an engine is worth; the lowest goes first."""

    STALE = 0  # no model wants it on this device as it is now
    SPARE = 1  # a model wants it, and has a better one
    NEEDED = 2  # it serves, is about to, or an operator pinned it: never evicted


class Held(msgspec.Struct, frozen=True):
    """One engine in the store: its bytes, and when it was last used in seconds since the epoch."""

    key: str
    size: int
    used: float
    standing: Standing


class Choice(msgspec.Struct, frozen=True):
    """The engines to evict, in order; `short` is how many bytes are wanting even then, and then nothing is evicted."""

    evict: tuple[str, ...]
    short: int = 0


def choose(held: Iterable[Held], need: int, room: int) -> Choice:
    """What to evict so that `need` bytes fit where `room` are free (negative where there is too much already).

    Least worth first, then least recently used. Engines without files free nothing and stay.
    """
    chosen: list[str] = []
    able = [h for h in held if h.standing is not Standing.NEEDED and h.size > 0]
    for candidate in sorted(able, key=lambda h: (h.standing, h.used, h.key)):
        if room >= need:
            break
        chosen.append(candidate.key)
        room += candidate.size
    return Choice(tuple(chosen)) if room >= need else Choice((), need - room)

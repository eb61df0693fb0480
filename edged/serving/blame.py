"""Which model killed its engine host, and which are not to serve any more. Pure: no clock, no IO.

A host that dies takes along what its other models were doing, so a first death blames nobody for certain: everything
that was under way in it is suspect, and is opened in a host of its own from then on. What dies there has one suspect.
An engine that was blamed `DEATHS` times is not opened any more, as long as one of them was certain enough that chance
or a neighbour cannot have been all of it; another engine of the model may serve instead, which is given one death less.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

DEATHS = 3
WINDOW_SECONDS = 3600.0


class Suspect(msgspec.Struct, frozen=True, order=True):
    """An engine of a model; of two models that share an engine each is its own."""

    model: str
    engine: str  # its key's digest


class Death(msgspec.Struct, frozen=True):
    """One death of a host that an engine was in with something to do, in seconds since the epoch.

    is_alone: nobody else had anything to do in it, or it is known to have hung at this. is_outside: the host was killed
    by a signal that whoever may can send (an operator, a test, the kernel for want of memory that others took).
    """

    unix_s: float
    why: str
    is_alone: bool = True
    is_outside: bool = False


class Record(msgspec.Struct, frozen=True):
    """What is held against an engine: its deaths, oldest first, and since when it is quarantined (0: it is not)."""

    deaths: tuple[Death, ...] = ()
    quarantined_unix_s: float = 0.0

    @property
    def is_quarantined(self) -> bool:
        return self.quarantined_unix_s > 0


Records = dict[Suspect, Record]


def died(records: Records, suspects: Iterable[tuple[Suspect, bool]], death: Death) -> Records:
    """The records after a host's death. Each suspect comes with whether it had answered anything in that host.

    An engine that answered since is not to blame for an earlier death from outside.
    """
    after = dict(records)
    for suspect, has_answered in suspects:
        known = after.get(suspect, Record())
        deaths = tuple(
            each
            for each in known.deaths
            if death.unix_s - each.unix_s <= WINDOW_SECONDS and not (has_answered and each.is_outside)
        )
        deaths = (*deaths, death)
        quarantined = known.quarantined_unix_s
        if not quarantined and _is_enough(deaths, _allowed(after, suspect)):
            quarantined = death.unix_s
        after[suspect] = Record(deaths, quarantined)
    return after


def is_suspect(records: Records, suspect: Suspect, unix_s: float) -> bool:
    """Whether an engine is opened in a host of its own."""
    record = records.get(suspect)
    return record is not None and any(unix_s - death.unix_s <= WINDOW_SECONDS for death in record.deaths)


def live(records: Records, unix_s: float) -> Records:
    """Without what is forgotten: deaths long ago of engines that are not quarantined."""
    return {s: r for s, r in records.items() if r.is_quarantined or is_suspect(records, s, unix_s)}


def forgiven(records: Records, model: str, engine: str = "") -> Records:
    """Without what is held against a model, or one engine of it."""
    return {s: r for s, r in records.items() if s.model != model or engine not in ("", s.engine)}


def _is_enough(deaths: tuple[Death, ...], allowed: int) -> bool:
    """In company an engine counts as killer once at most: from then on it is alone."""
    alone = sum(death.is_alone for death in deaths)
    return alone > 0 and alone + min(1, len(deaths) - alone) >= allowed


def _allowed(records: Records, suspect: Suspect) -> int:
    siblings = (r for s, r in records.items() if s.model == suspect.model and s.engine != suspect.engine)
    return DEATHS - 1 if any(record.is_quarantined for record in siblings) else DEATHS

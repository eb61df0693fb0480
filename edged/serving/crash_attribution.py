"""Decides which engine killed its host, and which engines are quarantined. Pure: no clock, no IO.

A host is a process that runs engines. If the host dies, all of its engines are interrupted, so one death proves little:

- If the host was killed from outside, by an operator or by the kernel for lack of memory, its engines are not blamed.
  Only an engine that had work at two such deaths in a row, without an answer between them, becomes a suspect.
- Otherwise every engine that had work is a suspect. Several suspects may share the highest number of deaths. Half of
  these move to another host, so that the next death has half as many suspects. If only one suspect is left, it gets its
  own host. Memory limits the number of hosts for suspects.
- An engine that was blamed `DEATHS` times is quarantined, if it was alone in at least one of these deaths. Another
  engine of the model may serve instead. This other engine is quarantined after `DEATHS - 1` deaths.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

DEATHS = 3
WINDOW_SECONDS = 3600.0
APART_SECONDS = 600.0  # after this time without a death, a suspect returns to the shared host


class EngineId(msgspec.Struct, frozen=True, order=True):
    """Identifies an engine of a model. If two models share an engine, each model has its own id for the engine."""

    model: str
    engine: str  # its key's digest


class Death(msgspec.Struct, frozen=True):
    """The death of a host while an engine had work in it; `unix_s` is in seconds since the epoch.

    is_alone: no other engine had work in the host, or this engine is known to have made the host hang. is_outside: the
    host was killed by another process, or by the kernel for lack of memory.
    """

    unix_s: float
    why: str
    is_alone: bool = True
    is_outside: bool = False


class Record(msgspec.Struct, frozen=True):
    """The history of an engine. `deaths` has the oldest death first. `quarantined_unix_s` is the time when the engine
    was quarantined, 0 if it is not. `host` is the number of the host that opens the engine, 0 for the shared host."""

    deaths: tuple[Death, ...] = ()
    quarantined_unix_s: float = 0.0
    host: int = 0

    @property
    def is_quarantined(self) -> bool:
        return self.quarantined_unix_s > 0

    @property
    def weight(self) -> int:
        """The number of deaths that the engine may have caused."""
        return len(_counted(self.deaths))


Records = dict[EngineId, Record]


def died(records: Records, suspects: Iterable[tuple[EngineId, bool]], death: Death, most_hosts: int = 1) -> Records:
    """Return the records after a host's death. `suspects` has each suspected engine, and whether it answered any
    request in that host. If an engine did, its earlier deaths from outside do not count. All suspects together get at
    most `most_hosts` hosts."""
    after, involved = dict(records), list(suspects)
    for suspect, has_answered in involved:
        known = after.get(suspect, Record())
        deaths = tuple(
            each
            for each in known.deaths
            if abs(death.unix_s - each.unix_s) <= WINDOW_SECONDS and not (has_answered and each.is_outside)
        )
        deaths = (*deaths, death)
        quarantined = known.quarantined_unix_s
        if not quarantined and _is_enough(deaths, _allowed(after, suspect)):
            quarantined = death.unix_s
        host = host_of(records, suspect, death.unix_s) if _counted(deaths) else 0  # not suspected: the shared host
        after[suspect] = Record(deaths, quarantined, host)
    _move(after, sorted(suspect for suspect, _ in involved), most_hosts, death.unix_s)
    return after


def host_of(records: Records, suspect: EngineId, unix_s: float) -> int:
    """Return the number of the host that opens an engine; 0 for the shared host."""
    record = records.get(suspect)
    if record is None or record.is_quarantined or abs(unix_s - record.deaths[-1].unix_s) > APART_SECONDS:
        return 0
    return record.host


def live(records: Records, unix_s: float) -> Records:
    """Return the records of quarantined engines, and of engines whose last death is recent. A death far in the future
    counts as old: the clock may have been set back."""
    return {s: r for s, r in records.items() if r.is_quarantined or abs(unix_s - r.deaths[-1].unix_s) <= WINDOW_SECONDS}


def forgiven(records: Records, model: str, engine: str = "") -> Records:
    """Return the records without the records of a model. If `engine` is given, drop only this engine's record."""
    return {s: r for s, r in records.items() if s.model != model or engine not in ("", s.engine)}


def _move(records: Records, involved: list[EngineId], most_hosts: int, now: float) -> None:
    """Move half of the engines that most likely caused a death to another host. Do nothing if an involved engine is
    quarantined, or if there is only one likely engine and it is alone in its host."""
    heaviest = max((records[suspect].weight for suspect in involved), default=0)
    if not heaviest or any(records[suspect].is_quarantined for suspect in involved):
        return
    likeliest = [suspect for suspect in involved if records[suspect].weight == heaviest]
    movers = likeliest[: max(1, len(likeliest) // 2)]
    others: dict[int, list[EngineId]] = {}  # the other suspects that are not in the shared host, by host
    for suspect in records:
        if suspect not in movers and (number := host_of(records, suspect, now)):
            others.setdefault(number, []).append(suspect)
    place = records[movers[0]].host
    if len(likeliest) == 1 and place and place not in others:
        return  # the only suspect is alone in its host already
    place = 1 + max((place, *others))
    for suspect in movers:
        records[suspect] = msgspec.structs.replace(records[suspect], host=place)
    lightest_first = sorted(others, key=lambda number: (max(records[each].weight for each in others[number]), number))
    for number in lightest_first[: len(others) + 1 - max(1, most_hosts)]:
        for suspect in others[number]:
            records[suspect] = msgspec.structs.replace(records[suspect], host=0)


def _is_enough(deaths: tuple[Death, ...], allowed: int) -> bool:
    """Whether the deaths suffice for a quarantine, which requires `allowed` deaths. All deaths in which other engines
    also had work count as one death. The engine must have been alone in at least one death, because an engine that
    kills hosts gets a host alone sooner or later."""
    counted = _counted(deaths)
    alone = sum(death.is_alone for death in counted)
    return alone > 0 and alone + min(1, len(counted) - alone) >= allowed


def _counted(deaths: tuple[Death, ...]) -> tuple[Death, ...]:
    """Return the deaths without the first death from outside, because a single death from outside proves nothing."""
    first = next((death for death in deaths if death.is_outside), None)
    return tuple(death for death in deaths if death is not first)


def _allowed(records: Records, suspect: EngineId) -> int:
    siblings = (r for s, r in records.items() if s.model == suspect.model and s.engine != suspect.engine)
    return DEATHS - 1 if any(record.is_quarantined for record in siblings) else DEATHS

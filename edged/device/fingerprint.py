"""The fingerprint of a box: named facts that decide whether a compiled engine is valid on it.

A fact is one line of printable text under a dotted name; what is not known is absent. Facts do not change
between two readings of an unchanged box (no clock speeds, free memory, uptime) and tell nothing about its
owner (no host name, serial number or UUID). Which facts an engine depends on is told by
`edged.device.validity`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec

from edged.device import cpu, intel, jetson, nvidia, runtimes, system
from edged.device.root import Root

Probe: TypeAlias = Callable[[Root], dict[str, str]]

# In order: what an earlier one found stays, so the driver's own answer about a GPU precedes what a Jetson's
# SoC implies.
PROBES: tuple[Probe, ...] = (cpu.probe, system.probe, runtimes.probe, nvidia.probe, jetson.probe, intel.probe)

_DIGEST_FORMAT = b"edged fingerprint 1\n"
_LONGEST = 200  # characters; longer is not a fact but a damaged file


class Change(msgspec.Struct, frozen=True):
    """One fact that differs; None stands for absent."""

    name: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.name}: {self.old or 'absent'} -> {self.new or 'absent'}"


class Fingerprint(msgspec.Struct, frozen=True):
    """Facts by name, in the order of their names."""

    facts: dict[str, str] = {}

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "facts", dict(sorted(self.facts.items())))

    @property
    def digest(self) -> str:
        """SHA-256 over all facts, 64 hex digits: equal exactly when nothing differs."""
        return hashlib.sha256(_DIGEST_FORMAT + msgspec.json.encode(self.facts)).hexdigest()

    def subset(self, prefixes: Iterable[str]) -> Fingerprint:
        """Only the facts with these names or below them: "cpu" keeps `cpu.isa`, "cpu.i" keeps nothing."""
        wanted = tuple(prefix.rstrip(".") for prefix in prefixes)
        return Fingerprint({name: value for name, value in self.facts.items() if _is_within(name, wanted)})

    def diff(self, other: Fingerprint) -> tuple[Change, ...]:
        """What changes on the way from this one to `other`, by name."""
        names = sorted(self.facts.keys() | other.facts.keys())
        changes = (Change(name, self.facts.get(name), other.facts.get(name)) for name in names)
        return tuple(change for change in changes if change.old != change.new)


def probe(root: Path = Path("/")) -> Fingerprint:
    """Read the facts below a root; nothing there makes it raise. On `/` it also asks NVML and nvpmodel.

    It blocks for some milliseconds (seconds where NVML must wake a GPU): call it outside the event loop.
    """
    facts: dict[str, str] = {}
    where = Root(root)
    for each in PROBES:
        found = {name: _one_line(value) for name, value in each(where).items()}
        facts = {name: value for name, value in found.items() if value} | facts
    return Fingerprint(facts)


def _one_line(value: str) -> str:
    """Printable characters and single spaces: facts are shown in terminals, logs and keys."""
    printable = "".join(char if char.isprintable() else " " for char in value[:_LONGEST])
    return " ".join(printable.split())


def _is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)

"""The fingerprint of a box: named facts that decide whether a compiled engine is valid on it.

A fact is one line of printable text under a dotted name; unknown facts are absent. Facts are stable on an unchanged
box (no clock speeds, free memory, uptime) and do not identify its owner (no host name, serial number or UUID).
`edged.device.validity` lists the facts that an engine depends on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from edged.device import cpu, intel, jetson, nvidia, runtimes, system
from edged.device.root import Root

Probe: TypeAlias = Callable[[Root], dict[str, str]]

# If two probes report a fact, the earlier probe counts: the NVIDIA driver knows a GPU better than `jetson`, which
# derives facts from the SoC.
PROBES: tuple[Probe, ...] = (cpu.probe, system.probe, runtimes.probe, nvidia.probe, jetson.probe, intel.probe)

_DIGEST_FORMAT = b"edged fingerprint 1\n"
_LONGEST = 200  # characters of a value; only a damaged file has more


class Change(msgspec.Struct, frozen=True):
    """One fact that differs between two fingerprints; `old` or `new` is None if that fingerprint lacks the fact."""

    name: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.name}: {self.old or 'absent'} -> {self.new or 'absent'}"


class Fingerprint(msgspec.Struct, frozen=True):
    """The facts of a box: values by name, sorted by name."""

    facts: dict[str, str] = {}

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "facts", dict(sorted(self.facts.items())))

    @property
    def digest(self) -> str:
        """The SHA-256 of all facts, 64 hexadecimal digits."""
        return hashlib.sha256(_DIGEST_FORMAT + msgspec.json.encode(self.facts)).hexdigest()

    def diff(self, other: Fingerprint) -> tuple[Change, ...]:
        """Return the changes from this fingerprint to `other`, sorted by name."""
        names = sorted(self.facts.keys() | other.facts.keys())
        changes = (Change(name, self.facts.get(name), other.facts.get(name)) for name in names)
        return tuple(change for change in changes if change.old != change.new)


def probe(root: Path = Path("/")) -> Fingerprint:
    """Read the facts below a root; never raises. On `/` it also queries NVML and nvpmodel.

    Blocks for some milliseconds (seconds if NVML must wake a GPU): call it outside the event loop.
    """
    facts: dict[str, str] = {}
    base = Root(root)
    for each in PROBES:
        found = {name: _one_line(value) for name, value in each(base).items()}
        facts = {name: value for name, value in found.items() if value} | facts
    return Fingerprint(facts)


def _one_line(value: str) -> str:
    """Return the first 200 characters, printable and with single spaces: facts appear in terminals and keys."""
    printable = "".join(char if char.isprintable() else " " for char in value[:_LONGEST])
    return " ".join(printable.split())


class Device(msgspec.Struct, frozen=True):
    """An accelerator or the CPU."""

    name: str  # "cpu", "cuda:0", "intel-gpu:0", "intel-npu:0"
    kind: str  # "cpu", "cuda", "intel-gpu", "intel-npu"
    description: str
    memory_mb: int | None = None  # MiB that work on it may use, possibly shared; None if unknown
    index: int = 0  # within its kind, by PCI address: the N of `gpu.N.*` or `intel.npu.N.*`
    compute_capability: str | None = None  # of CUDA devices, "8.7"; None if unknown
    is_integrated: bool = False  # part of the processor, uses the system's memory


def devices(fingerprint: Fingerprint) -> tuple[Device, ...]:
    """Return the devices that the facts describe: the CPU, then NVIDIA's, then Intel's, each kind sorted by number."""
    return (_cpu(fingerprint), *_cuda(fingerprint), *_intel(fingerprint))


def _cpu(fingerprint: Fingerprint) -> Device:
    facts = fingerprint.facts
    model = facts.get("cpu.model", "unknown CPU")
    count = facts.get("cpu.quota") or facts.get("cpu.threads")
    return Device("cpu", "cpu", f"{model}, {count} CPUs" if count else model, _system_memory(fingerprint))


def _cuda(fingerprint: Fingerprint) -> Iterator[Device]:
    facts = fingerprint.facts
    for index in _indices(fingerprint, "gpu"):
        prefix = f"gpu.{index}"
        shared = facts.get(f"{prefix}.integrated") == "yes"
        # An integrated GPU reports the name of its SoC, but people know the name of the module.
        name = facts.get("jetson.model", "") if shared else ""
        memory = _system_memory(fingerprint) if shared else _whole(facts.get(f"{prefix}.memory_mb"))
        capability = facts.get(f"{prefix}.compute_capability")
        description = name or facts.get(f"{prefix}.name", "NVIDIA GPU")
        if capability:
            description += f", compute capability {capability}"
        yield Device(f"cuda:{index}", "cuda", description, memory, index, capability, shared)


def _intel(fingerprint: Fingerprint) -> Iterator[Device]:
    facts = fingerprint.facts
    for kind, title in (("gpu", "Intel GPU"), ("npu", "Intel NPU")):
        for index in _indices(fingerprint, f"intel.{kind}"):
            code, driver = (facts.get(f"intel.{kind}.{index}.{name}") for name in ("device", "driver"))
            description = " ".join(part for part in (title, code, f"({driver})" if driver else None) if part)
            shared = facts.get(f"intel.{kind}.{index}.integrated") == "yes"
            memory = _system_memory(fingerprint) if shared else None  # sysfs does not report the memory of a card
            yield Device(f"intel-{kind}:{index}", f"intel-{kind}", description, memory, index, is_integrated=shared)


def _indices(fingerprint: Fingerprint, prefix: str) -> list[int]:
    pattern = re.compile(re.escape(prefix) + r"\.([0-9]{1,4})\.")
    return sorted({int(match[1]) for match in map(pattern.match, fingerprint.facts) if match})


def _system_memory(fingerprint: Fingerprint) -> int | None:
    """Return the memory of the box in MiB, or the limit of the daemon's cgroup if that is lower."""
    return _whole(fingerprint.facts.get("memory.limit_mb") or fingerprint.facts.get("memory.total_mb"))


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,15}", text) else None

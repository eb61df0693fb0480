"""The devices of a box, told from its fingerprint alone: the CPU, which is always there, and accelerators."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from edged.device.fingerprint import Fingerprint


class Device(msgspec.Struct, frozen=True):
    """One accelerator or CPU, and its limits."""

    name: str  # "cpu", "cuda:0", "intel-gpu:0", "intel-npu:0"
    kind: str  # "cpu", "cuda", "intel-gpu", "intel-npu"
    description: str
    memory_mb: int | None = None  # MiB that work on it may use, shared with others where it is; None when unknown
    index: int = 0  # among those of its kind, by PCI address: the N of `gpu.N.*` or `intel.npu.N.*`
    compute_capability: str | None = None  # of CUDA devices, "8.7"; None when unknown
    is_integrated: bool = False  # whether it is part of the processor and has the system's memory


def devices(fingerprint: Fingerprint) -> tuple[Device, ...]:
    """The CPU first, then NVIDIA and Intel devices by their number in the facts."""
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
        # The name of an integrated GPU is its SoC's; the module is what its owner knows it by.
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
            memory = _system_memory(fingerprint) if shared else None  # sysfs does not tell a card's own
            yield Device(f"intel-{kind}:{index}", f"intel-{kind}", description, memory, index, is_integrated=shared)


def _indices(fingerprint: Fingerprint, prefix: str) -> list[int]:
    pattern = re.compile(re.escape(prefix) + r"\.([0-9]{1,4})\.")
    return sorted({int(match[1]) for match in map(pattern.match, fingerprint.facts) if match})


def _system_memory(fingerprint: Fingerprint) -> int | None:
    """The box's memory, or the limit that is set on us below it."""
    return _whole(fingerprint.facts.get("memory.limit_mb") or fingerprint.facts.get("memory.total_mb"))


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,15}", text) else None

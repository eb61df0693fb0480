"""The record that the store keeps with an engine's files: everything known about it, as readable JSON."""

from __future__ import annotations

import hashlib

import msgspec

from edged.backends.artefact import FileRecord
from edged.backends.contract import Composition, Effort, Recipe


class Verdict(msgspec.Struct, frozen=True):
    """Outcome of comparing an engine with the reference: figures, whether they suffice, and why not."""

    accepted: bool
    reason: str
    figures: dict[str, float]


class BuildFacts(msgspec.Struct, frozen=True):
    """Facts about a build, for information only: seconds since the epoch, seconds, MiB."""

    created_unix_s: float
    build_s: float
    peak_memory_mb: float
    edged_version: str
    total_s: float = 0.0  # with golden answers, verification and timing
    effort: Effort = "full"


class EngineRecord(msgspec.Struct, frozen=True):
    """One engine in the store. A rejected engine has a verdict and no files, so that it is not built again."""

    parts: dict[str, str]
    model: str  # the name it was built for; the digest is among the parts
    recipe: Recipe
    files: dict[str, FileRecord]
    build: BuildFacts
    verdict: Verdict
    # Medians of inference of the engine and of the reference in turns, in a child of low priority under other load:
    # only their ratio is meaningful.
    latency_ms: float | None = None
    reference_ms: float | None = None
    load: float | None = None  # share of the box's processors, 0 to 1, that others used while it was timed
    standard: str = ""  # digest of the verification standard; a verdict by another one is out of date
    adopted_from: str = ""  # key of the engine for another driver whose files these are
    ahead: str = ""  # the other device that it was built for; it is verified there before it serves
    composition: Composition = Composition()  # what the runtime made of the model
    evicted: bool = False  # its files were removed to make room; verdict and times stay

    @property
    def is_usable(self) -> bool:
        """Whether it may serve: accepted, with its files."""
        return self.verdict.accepted and not self.evicted

    @property
    def is_unproven(self) -> bool:
        """Whether it was built ahead and is not verified yet."""
        return bool(self.ahead and self.files) and not self.verdict.accepted

    @property
    def cost(self) -> float | None:
        """Time of one inference as a share of the reference's; None if it was not measured."""
        if self.latency_ms is None or not self.reference_ms:
            return None
        return self.latency_ms / self.reference_ms

    @property
    def edition(self) -> str:
        """Tells builds of one key apart: 12 hexadecimal digits over its files; empty if it has none."""
        if not self.files:
            return ""
        content = "".join(f"{name}\0{file.sha256}\0" for name, file in sorted(self.files.items()))
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

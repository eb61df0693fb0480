"""What the store writes beside an engine's files: everything known about it, readable by a person."""

from __future__ import annotations

import hashlib

import msgspec

from edged.backends.artefact import FileRecord
from edged.backends.contract import Composition, Effort, Recipe


class Verdict(msgspec.Struct, frozen=True):
    """Outcome of comparing an engine with the reference: the figures, whether they suffice, and why not."""

    accepted: bool
    reason: str
    figures: dict[str, float]


class BuildFacts(msgspec.Struct, frozen=True):
    """Describes the build and decides nothing: seconds since the epoch, seconds, mebibytes."""

    created_unix_s: float
    build_s: float
    peak_memory_mb: float
    edged_version: str
    total_s: float = 0.0  # with asking the reference, verifying and timing
    effort: Effort = "full"


class EngineRecord(msgspec.Struct, frozen=True):
    """One engine in the store. A rejected engine has a verdict and no files: it is kept so as not to be built again."""

    parts: dict[str, str]
    model: str  # the name it was built for; the digest is among the parts
    recipe: Recipe
    files: dict[str, FileRecord]
    build: BuildFacts
    verdict: Verdict
    # Medians of one inference, of it and of the reference in turns with it: in a child of low priority, beside whatever
    # else the box did, so that only their ratio says anything.
    latency_ms: float | None = None
    reference_ms: float | None = None
    load: float | None = None  # share of the box's processors, 0 to 1, that others used while it was timed
    standard: str = ""  # digest of what it was held to; a verdict by another standard is out of date
    adopted_from: str = ""  # key of the engine whose files these are: built for another driver, proven with this one
    ahead: str = ""  # the device that it was built for on another; there its answers are compared before it may serve
    composition: Composition = Composition()  # what the runtime made of the model
    evicted: bool = False  # its files gave way to others; verdict and times are kept

    @property
    def is_usable(self) -> bool:
        """Whether it may serve: accepted, and its files are there."""
        return self.verdict.accepted and not self.evicted

    @property
    def is_unproven(self) -> bool:
        """Whether it was built ahead and nobody has compared its answers yet."""
        return bool(self.ahead and self.files) and not self.verdict.accepted

    @property
    def cost(self) -> float | None:
        """The time of one inference as a share of the reference's; None where it was not measured."""
        if self.latency_ms is None or not self.reference_ms:
            return None
        return self.latency_ms / self.reference_ms

    @property
    def edition(self) -> str:
        """Tells one build of a key from another: 12 hexadecimal digits over its files; empty where it has none."""
        if not self.files:
            return ""
        content = "".join(f"{name}\0{file.sha256}\0" for name, file in sorted(self.files.items()))
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

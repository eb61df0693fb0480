"""The record that the store keeps with an engine's files: everything that is known about the engine, as readable
JSON."""

from __future__ import annotations

import hashlib

import msgspec

from edged.backends.artefact import FileRecord
from edged.backends.contract import Composition, Effort, Parallelism, Recipe
from edged.store.judgement import Judgement


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of comparing an engine with the reference: the measured differences (figures), whether the engine is
    accepted, and if not, why."""

    accepted: bool
    reason: str
    figures: dict[str, float]


class BuildFacts(msgspec.Struct, frozen=True):
    """Facts about a build that do not decide whether the engine is valid. `build_s` is the time of the build alone."""

    created_unix_s: float
    build_s: float
    peak_memory_mb: float
    edged_version: str
    total_s: float = 0.0  # with golden answers, verification and timing
    effort: Effort = "full"


# Factor for costs that the timing does not show. A busy box also decodes pictures and answers requests, so that one
# inference on all cores often waits for its slowest thread. Several instances gain nothing if each request waits for
# the previous one.
_LESS_SUITED = 1.1


class Speed(msgspec.Struct, frozen=True):
    """The speed of an engine that is opened with `instances` instances, each with `threads` threads (0: all that the
    recipe allows).

    Engine and reference are timed alternately, in several blocks of inferences, unless the engine is the reference. For
    each of the three times, the fastest block counts. Only ratios of the times are meaningful, because the box has
    other work.

    `latency_ms` is the median time of an inference if they run one at a time, each after a pause. `interval_ms` is the
    mean time between two answers while all instances work. `reference_ms` is `latency_ms` of the reference.
    """

    instances: int
    threads: int
    latency_ms: float
    interval_ms: float
    reference_ms: float

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(self.instances, self.threads)

    def cost(self, *, is_busy: bool) -> float:
        """Return the time of an inference divided by the reference's time. One inference runs at a time or, with
        `is_busy`, many at once. The result is multiplied by `_LESS_SUITED` if the number of instances does not suit
        this load. Several instances do not suit one inference at a time, and one instance does not suit many."""
        has_several = self.instances > 1
        time_ms = self.interval_ms if is_busy else self.latency_ms
        return time_ms / self.reference_ms * (_LESS_SUITED if has_several is not is_busy else 1.0)


class Blocks(msgspec.Struct, frozen=True):
    """The times of an engine and of the reference, one inference at a time. Each value is the median time of an
    inference in one block (series of inferences), in milliseconds. Blocks of the engine and of the reference
    alternate; if the engine is the reference, both series are the same."""

    engine: tuple[float, ...] = ()
    reference: tuple[float, ...] = ()


class EngineRecord(msgspec.Struct, frozen=True):
    """One engine in the store. A rejected engine has a verdict and no files, so that it is not built again."""

    parts: dict[str, str]
    model: str  # name of the model that the engine was built for; `parts` has the model's digest
    recipe: Recipe
    files: dict[str, FileRecord]
    build: BuildFacts
    verdict: Verdict
    speeds: tuple[Speed, ...] = ()  # with each parallelism that it can be opened with; empty if it was not timed
    load: float | None = None  # share of the box's processors, 0 to 1, that other work used during the timing
    standard: str = ""  # digest of the verification standard; a verdict by another standard is out of date
    adopted_from: str = ""  # key of the engine, built ahead or for another driver, whose files it uses
    ahead: str = ""  # the other device that it was built for; it is verified there before it serves
    shared_by: str = ""  # the box that built it, if it came from a shared store; it was verified here
    composition: Composition = Composition()  # what the runtime made of the model
    evicted: bool = False  # its files were removed to make room, but verdict and times are kept
    judgement: Judgement | None = None  # on frames of cameras; None if it was not judged on any
    blocks: Blocks = Blocks()  # empty if it was not timed

    @property
    def is_usable(self) -> bool:
        """Whether the engine may serve: it is accepted, and its files were not removed."""
        return self.verdict.accepted and not self.evicted

    @property
    def is_unproven(self) -> bool:
        """Whether the engine was built ahead and is not verified yet."""
        return bool(self.ahead and self.files) and not self.verdict.accepted

    def fastest(self, *, is_busy: bool = False) -> Speed | None:
        """Return the speed with the parallelism that is fastest for one inference at a time, or, with `is_busy`, for
        many at once. None if the engine was not timed."""
        return min(self.speeds, key=lambda speed: speed.cost(is_busy=is_busy), default=None)

    @property
    def latency_ms(self) -> float | None:
        """The time of one inference at a time, in milliseconds; None if not timed. It depends on the other work of the
        box."""
        fastest = self.fastest()
        return None if fastest is None else fastest.latency_ms

    @property
    def reference_ms(self) -> float | None:
        """The time of the reference, in milliseconds, timed alternately with the engine; None if not timed."""
        fastest = self.fastest()
        return None if fastest is None else fastest.reference_ms

    @property
    def cost(self) -> float | None:
        """The time of one inference at a time divided by the reference's; None if the engine was not timed."""
        fastest = self.fastest()
        return None if fastest is None else fastest.cost(is_busy=False)

    @property
    def edition(self) -> str:
        """A digest of the files, 12 hexadecimal digits. It differs for each build of a key; empty without files."""
        if not self.files:
            return ""
        content = "".join(f"{name}\0{file.sha256}\0" for name, file in sorted(self.files.items()))
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

"""The suites, divided into parts that can run in parallel, and their outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.system.arm64.machine import TIMED_OUT
from tests.system.arm64.wheels import REPOSITORY


@dataclass(frozen=True)
class Suite:
    files: tuple[str, ...]  # patterns, the slowest first
    together: int  # files in one part, to save start-up time


# The slowest first, so that no processor is idle at the end.
SUITES = {
    "integration": Suite(
        tuple(f"tests/integration/test_{name}.py" for name in ("engine_life", "models", "open_shapes", "page", "*")), 4
    ),
    "system": Suite(
        ("tests/system/test_command_line.py",), 1
    ),  # without the demo: its timings mean nothing on an emulator
    "unit": Suite(("tests/unit/test_shapes_model.py", "tests/unit/test_*.py"), 20),
}
_KINDS = ("passed", "failed", "skipped", "left out")
_NOTHING_COLLECTED = 5  # pytest's exit status


@dataclass(frozen=True)
class Part:
    """Files or node ids for one run of pytest."""

    suite: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        names = [test.rpartition("/")[2] for test in self.tests]
        return f"{self.suite}: {names[0]}" + (f" to {names[-1]}" if names[1:] else "")


def parts(names: Sequence[str], chosen: Sequence[str]) -> list[Part]:
    """Return the parts of the named suites, or of the chosen tests if there are any."""
    if chosen:
        return [Part(test.split("/")[1], (test,)) for test in chosen]
    return [part for name in SUITES if name in names for part in _parts(name, SUITES[name])]


def _parts(name: str, suite: Suite) -> Iterator[Part]:
    found = [path.relative_to(REPOSITORY) for pattern in suite.files for path in sorted(REPOSITORY.glob(pattern))]
    files = list(dict.fromkeys(map(str, found)))
    for first in range(0, len(files), suite.together):
        yield Part(name, tuple(files[first : first + suite.together]))


@dataclass(frozen=True)
class Manner:
    """How to test. jobs: parts at a time. patience: factor for time limits. seconds: for everything. named: the user
    named the tests. options: for pytest; with options, all of its output is shown, else only the output of failures."""

    jobs: int
    patience: float
    seconds: float
    named: bool = False
    options: Sequence[str] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a part. counts: by kind, as in _KINDS; empty if the part was killed. status: pytest's exit status.
    processor: processor seconds of its programs, which, unlike `seconds`, do not depend on other load."""

    part: Part
    status: int
    seconds: float = 0.0
    processor: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    failures: Sequence[str] = ()

    @property
    def is_good(self) -> bool:
        """True if all tests passed, were skipped, left out, or not selected by pytest's options."""
        return self.status == 0 or (self.status == _NOTHING_COLLECTED and bool(self.counts))

    def __str__(self) -> str:
        reported = _counted(self.counts) if self.counts else "nothing counted"
        end = "" if self.is_good else f", exit status {self.status}"
        end = ", killed at the time limit" if self.status == TIMED_OUT else end
        return f"{self.part}: {reported}, {_took(self.seconds, self.processor)}{end}"


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """Return lines: why tests did not run, what failed, and the counts of each suite."""
    reasons = _sum(outcome.reasons for outcome in outcomes)
    lines = [f"  {count} {reason}" for reason, count in sorted(reasons.items())]
    for outcome in outcomes:
        lines += [f"  FAILED {test}" for test in outcome.failures]
        if not outcome.is_good and not outcome.failures:
            lines.append(f"  FAILED {outcome}")
    for name in SUITES:
        of_suite = [outcome for outcome in outcomes if outcome.part.suite == name]
        if of_suite:
            took = _took(sum(outcome.seconds for outcome in of_suite), sum(outcome.processor for outcome in of_suite))
            lines.append(f"{name}: {_counted(_sum(outcome.counts for outcome in of_suite))}, {took}")
    return lines


def _took(seconds: float, processor: float) -> str:
    return f"{seconds:.0f} s ({processor:.0f} s of a processor)"


def _sum(counts: Iterator[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts.get(kind, 0)} {kind}" for kind in _KINDS)

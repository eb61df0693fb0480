"""Run the parts of the suites, several at a time, and print each outcome."""

from __future__ import annotations

import json
import select
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.system.arm64.earlier import Earlier
from tests.system.arm64.machine import TIMED_OUT, Running
from tests.system.arm64.suites import Manner, Outcome, Part


class Tester(Protocol):
    """Starts pytest; see box.Box."""

    def test(self, arguments: Sequence[str], report: Path, manner: Manner, output: int) -> Running: ...


class _Turn:
    def __init__(self, box: Tester, part: Part, manner: Manner, folder: Path) -> None:
        self._part, self._start = part, time.monotonic()
        self._printed, self._report = folder / "printed", folder / "report" / "report.json"
        self._report.parent.mkdir()
        with self._printed.open("w") as output:
            arguments = [*manner.options, *part.tests]
            self.running: Running = box.test(arguments, self._report, manner, output.fileno())

    def fileno(self) -> int:
        return self.running.fileno()

    def printed(self) -> str:
        return self._printed.read_text(errors="replace")

    def outcome(self) -> Outcome:
        status = self.running.end()
        reported = json.loads(self._report.read_text()) if self._report.exists() else {}
        seconds = time.monotonic() - self._start
        return Outcome(self._part, status, seconds, self.running.processor_seconds, **reported)


def take(
    box: Tester, parts: Sequence[Part], manner: Manner, earlier: Earlier | None = None, *, is_continued: bool = False
) -> list[Outcome]:
    """Run all parts, and keep their outcomes in `earlier`; if `is_continued`, leave out the parts that have passed
    according to `earlier`. Return the outcomes of all parts. At the time limit, running parts are killed; these and all
    parts not yet started count as failed."""
    passed = earlier.passed() if earlier is not None and is_continued else {}
    outcomes = [passed[part] for part in parts if part in passed]
    for number, outcome in enumerate(outcomes, 1):
        print(f"{number}/{len(parts)}".rjust(6), outcome, "in an earlier run", flush=True)
    waiting, running = deque(part for part in parts if part not in passed), set[_Turn]()
    end = time.monotonic() + manner.seconds
    with tempfile.TemporaryDirectory(prefix="edged-arm64-") as scratch:
        try:
            while running or (waiting and time.monotonic() < end):
                while waiting and len(running) < manner.jobs and time.monotonic() < end:
                    running.add(_Turn(box, waiting.popleft(), manner, Path(tempfile.mkdtemp(dir=scratch))))
                ended, _, _ = select.select(list(running), [], [], max(0.0, end - time.monotonic()))
                for turn in ended or list(running):
                    outcomes.append(turn.outcome())
                    if earlier is not None:
                        earlier.add(outcomes[-1])
                    running.remove(turn)
                    _tell(f"{len(outcomes)}/{len(parts)}", outcomes[-1], turn.printed(), bool(manner.options))
        finally:
            for turn in running:
                turn.running.end()
    return [*outcomes, *(Outcome(part, TIMED_OUT) for part in waiting)]


def _tell(place: str, outcome: Outcome, printed: str, everything: bool) -> None:
    if everything or not outcome.is_good:
        print(printed.rstrip())
    print(f"{place:>6} {outcome}", flush=True)

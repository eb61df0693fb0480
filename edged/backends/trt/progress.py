"""Computes the progress of a build from the runtime's nested phases.

A phase has a number of steps. Its inner phases are part of its current step. The progress counts all steps as equally
long. Because phases overlap, the computed progress may decrease. A decrease would look like a fault, so the largest
progress so far is reported.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from operator import attrgetter

import msgspec

from edged.backends.trt.api import Trt, find

# Until the build has ended, the reported progress is not above this, even if all phases are done.
_MOST = 0.99
_LEAST_STEP = 0.001  # smaller changes are not reported


class _Phase(msgspec.Struct):
    parent: str | None
    steps: int
    done: int = 0


class Progress:
    """The progress of a build, 0 to 1. Several threads may report phases; `report` is called with increasing values."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report: Callable[[float], None] | None = report
        self._phases: dict[str, _Phase] = {}
        self._reported = 0.0
        self._lock = threading.Lock()

    def start(self, name: str, parent: str | None, steps: int) -> None:
        with self._lock:
            self._phases[name] = _Phase(parent if parent != name else None, max(1, steps))
            self._update()

    def step(self, name: str, step: int) -> None:
        with self._lock:
            phase = self._phases.get(name)
            if phase is not None:
                phase.done = min(phase.steps, max(phase.done, step + 1))
                self._update()

    def finish(self, name: str) -> None:
        with self._lock:
            phase = self._phases.get(name)
            if phase is not None:
                phase.done = phase.steps
                self._update()
                del self._phases[name]

    def end(self) -> None:
        """Report that the build has succeeded."""
        with self._lock:
            self._say(1.0)

    def _update(self) -> None:
        roots = [name for name, phase in self._phases.items() if phase.parent not in self._phases]
        share = max((self._share(name, 0) for name in roots), default=0.0)
        if share >= self._reported + _LEAST_STEP:
            self._say(min(share, _MOST))

    def _share(self, name: str, depth: int) -> float:
        phase = self._phases[name]
        if phase.done >= phase.steps or depth > len(self._phases):  # so deep only if phases contain each other
            return min(1.0, phase.done / phase.steps)
        inner = (self._share(n, depth + 1) for n, other in self._phases.items() if other.parent == name)
        return (phase.done + max(inner, default=0.0)) / phase.steps

    def _say(self, share: float) -> None:
        if self._report is None or share <= self._reported:
            return
        self._reported = share
        try:
            self._report(share)
        except Exception:  # the parent's pipe is closed; the build goes on
            self._report = None


def watch(trt: Trt, progress: Progress) -> object | None:
    """Return a monitor of the runtime's type that reports to `progress`; None if the runtime has no monitors. The
    monitor must outlive the build."""
    base = find(trt, "IProgressMonitor")
    if not isinstance(base, type):
        return None
    start_native: Callable[[object], None] = attrgetter("__init__")(base)

    def begin(self: object) -> None:
        start_native(self)

    # The callers are C++, where an exception would end the process. `step_complete` returns whether to continue.
    def phase_start(self: object, name: str, parent: str | None, steps: int) -> None:
        with contextlib.suppress(BaseException):
            progress.start(name, parent, steps)

    def step_complete(self: object, name: str, step: int) -> bool:
        with contextlib.suppress(BaseException):
            progress.step(name, step)
        return True

    def phase_finish(self: object, name: str) -> None:
        with contextlib.suppress(BaseException):
            progress.finish(name)

    members = {"phase_start": phase_start, "step_complete": step_complete, "phase_finish": phase_finish}
    monitor: object = type("Monitor", (base,), {"__init__": begin, **members})()
    return monitor

"""How far a build is, from the runtime's phases within phases.

A phase has steps, and its inner phases belong to the step that is being done; so the share of a build that is done is
what the phases themselves claim, however long each step takes. The largest share so far is reported: phases overlap,
and progress that goes back looks like a fault.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from operator import attrgetter

import msgspec

from edged.backends.trt.api import Trt, find

# Only the end of the build is its end, whatever phases claim.
_MOST = 0.99
_LEAST_STEP = 0.001  # a frame for less is not worth sending


class _Phase(msgspec.Struct):
    parent: str | None
    steps: int
    done: int = 0


class Progress:
    """The share of a build that is done, 0 to 1. Several threads report phases; `report` gets growing shares."""

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
        """The build is over and there is an engine."""
        with self._lock:
            self._say(1.0)

    def _update(self) -> None:
        roots = [name for name, phase in self._phases.items() if phase.parent not in self._phases]
        share = max((self._share(name, 0) for name in roots), default=0.0)
        if share >= self._reported + _LEAST_STEP:
            self._say(min(share, _MOST))

    def _share(self, name: str, depth: int) -> float:
        phase = self._phases[name]
        if phase.done >= phase.steps or depth > len(self._phases):  # deeper only if phases contain each other
            return min(1.0, phase.done / phase.steps)
        inner = (self._share(n, depth + 1) for n, other in self._phases.items() if other.parent == name)
        return (phase.done + max(inner, default=0.0)) / phase.steps

    def _say(self, share: float) -> None:
        if self._report is None or share <= self._reported:
            return
        self._reported = share
        try:
            self._report(share)
        except Exception:  # the parent's pipe is closed, which is no reason to lose an engine
            self._report = None


def watch(trt: Trt, progress: Progress) -> object | None:
    """The runtime's kind of monitor, telling `progress`; None if it has none. It has to outlive the build."""
    base = find(trt, "IProgressMonitor")
    if not isinstance(base, type):
        return None
    start_native: Callable[[object], None] = attrgetter("__init__")(base)

    def begin(self: object) -> None:
        start_native(self)

    # The callers are C++: an exception there ends the process. What is answered to a step is whether to go on.
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

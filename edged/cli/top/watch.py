"""Polls boxes, each in its own thread, and keeps the last state of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from edged.api_types import LoadInfo
from edged.cli import common
from edged.cli.inventory import Box
from edged.cli.targets import client_of
from edged.errors import EdgedError


class BoxState(msgspec.Struct, frozen=True):
    """The state of one box. `rates` maps each model to its rate between the last two answers. A rate is the number of
    requests and frames together, per second. A model that is missing in one of these answers is left out.

    `last_answer` and `tried` are the times of the last answer and the last call, in seconds since the epoch, 0 for
    never. `answers` counts answers. `error` is why the last call failed; empty if it succeeded.
    """

    name: str
    load: LoadInfo | None = None
    rates: dict[str, float] = {}
    last_answer: float = 0.0
    tried: float = 0.0
    answers: int = 0
    error: str = ""

    def answered(self, load: LoadInfo, now: float) -> BoxState:
        """Return the state after an answer."""
        return BoxState(self.name, load, rates(self.load, load), now, now, self.answers + 1)

    def failed(self, error: str, now: float) -> BoxState:
        """Return the state after a failed call."""
        return msgspec.structs.replace(self, error=error, tried=now)

    def json(self) -> dict[str, Any] | None:
        """Return plain values; None before the first answer."""
        if self.load is None:
            return None
        return self.load.json() | {"requests_per_second": self.rates}


def rates(before: LoadInfo | None, after: LoadInfo) -> dict[str, float]:
    """Return a mapping from each model to its requests and frames, together, per second. After a restart of the daemon
    the mapping is empty. A model whose counts fell, because it was reloaded, is left out."""
    if before is None or before.status.epoch != after.status.epoch or after.mono_s <= before.mono_s:
        return {}
    seconds = after.mono_s - before.mono_s
    earlier = {model.name: model.answered + model.failed for model in before.models}
    counted = {model.name: model.answered + model.failed - earlier.get(model.name, 0) for model in after.models}
    return {name: count / seconds for name, count in counted.items() if name in earlier and count >= 0}


_PATIENCE_S = 5.0  # seconds to wait for one answer; a later answer would be outdated


class Watch:
    """Polls boxes from its creation until `close`. `changed` is set whenever a state changes; clear it before you call
    `seen`."""

    def __init__(self, boxes: Sequence[Box], interval: float) -> None:
        self.changed = threading.Event()
        self._interval = interval
        self._seen = {box.name: BoxState(box.name) for box in boxes}
        self._over = threading.Event()
        for box in boxes:
            patience = min(box.settings.timeout_s or _PATIENCE_S, _PATIENCE_S)
            hurried = msgspec.structs.replace(box, settings=msgspec.structs.replace(box.settings, timeout_s=patience))
            threading.Thread(target=self._watch, args=(hurried,), daemon=True).start()

    def seen(self) -> list[BoxState]:
        """Return the current states in the order of the boxes."""
        return list(self._seen.values())

    def wait(self, enough: Callable[[BoxState], bool], seconds: float) -> list[BoxState]:
        """Wait until `enough` is true for every state, or until `seconds` have passed, and return the states."""
        end = time.monotonic() + seconds
        while True:
            self.changed.clear()
            found = self.seen()
            left = end - time.monotonic()
            if left <= 0 or all(map(enough, found)):
                return found
            self.changed.wait(left)

    def close(self) -> None:
        """Stop polling; a running call is not awaited."""
        self._over.set()

    def _watch(self, box: Box) -> None:
        """Poll a box until `close`. After an error try again: bad credentials or a missing daemon may be temporary."""
        while not self._over.is_set():
            try:
                with client_of(box) as client:
                    while not self._over.is_set():
                        began = time.monotonic()
                        load = client.load()
                        self._update(self._seen[box.name].answered(load, time.time()))
                        self._over.wait(max(0.0, self._interval - (time.monotonic() - began)))
            except EdgedError as error:
                problem = error.message
            except OSError as error:
                problem = common.refused_by_system(error)
            else:
                return
            self._update(self._seen[box.name].failed(problem, time.time()))
            self._over.wait(min(self._interval, 1.0))

    def _update(self, state: BoxState) -> None:
        self._seen[state.name] = state  # only the thread of this box writes it
        self.changed.set()

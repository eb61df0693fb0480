"""Asks boxes again and again, each from a thread of its own, and keeps what was last seen of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from edged.api_types import LoadInfo
from edged.cli import common
from edged.cli.inventory import Box
from edged.cli.targets import client_of
from edged.errors import EdgedError


class BoxState(msgspec.Struct, frozen=True):
    """One box. `rates` are requests and frames a second by model, of the time between the last two words; a model is
    not among them where that is not known. `heard` is when it last answered and `tried` when it was last asked, both in
    seconds since the epoch, 0 for never; `looks` counts its words, and `error` is why the last one is not of now, empty
    where it is."""

    name: str
    load: LoadInfo | None = None
    rates: dict[str, float] = {}
    heard: float = 0.0
    tried: float = 0.0
    looks: int = 0
    error: str = ""

    def answered(self, load: LoadInfo, now: float) -> BoxState:
        """It spoke."""
        return BoxState(self.name, load, rates(self.load, load), now, now, self.looks + 1)

    def failed(self, error: str, now: float) -> BoxState:
        """It did not."""
        return msgspec.structs.replace(self, error=error, tried=now)

    def json(self) -> dict[str, Any] | None:
        """Plain values; None before the first word."""
        if self.load is None:
            return None
        return self.load.json() | {"requests_per_second": self.rates}


def rates(before: LoadInfo | None, after: LoadInfo) -> dict[str, float]:
    """Requests and frames a second by model. Of another run of the daemon nothing is told, nor of a model that was
    loaded anew in between, whose counts began again."""
    if before is None or before.status.epoch != after.status.epoch or after.mono_s <= before.mono_s:
        return {}
    seconds = after.mono_s - before.mono_s
    earlier = {model.name: model.answered + model.failed for model in before.models}
    counted = {model.name: model.answered + model.failed - earlier.get(model.name, 0) for model in after.models}
    return {name: count / seconds for name, count in counted.items() if name in earlier and count >= 0}


_PATIENCE_S = 5.0  # with one answer; what comes later than that is no picture of now


class Watch:
    """Begins at once. `changed` is set whenever something new was seen; clear it before sample_run."""

    def __init__(self, boxes: Sequence[Box], interval: float) -> None:
        self.changed = threading.Event()
        self._interval = interval
        self._lock = threading.Lock()
        self._seen = {box.name: BoxState(box.name) for box in boxes}
        self._over = threading.Event()
        for box in boxes:
            patience = min(box.settings.timeout_s or _PATIENCE_S, _PATIENCE_S)
            hurried = msgspec.structs.replace(box, settings=msgspec.structs.replace(box.settings, timeout_s=patience))
            threading.Thread(target=self._watch, args=(hurried,), daemon=True).start()

    def seen(self) -> list[BoxState]:
        """Of every box, in their order."""
        with self._lock:
            return list(self._seen.values())

    def wait(self, enough: Callable[[BoxState], bool], seconds: float) -> list[BoxState]:
        """What was seen once it is enough of every box, or time is up."""
        end = time.monotonic() + seconds
        while True:
            self.changed.clear()
            found = self.seen()
            left = end - time.monotonic()
            if left <= 0 or all(map(enough, found)):
                return found
            self.changed.wait(left)

    def close(self) -> None:
        """Asks nobody any more; an answer that is awaited is not waited for."""
        self._over.set()

    def _watch(self, box: Box) -> None:
        """A box whose credentials cannot be used, or which is away, may come right: it is tried again."""
        while not self._over.is_set():
            try:
                with client_of(box) as client:
                    while not self._over.is_set():
                        began = time.monotonic()
                        load = client.load()
                        self._keep(box.name, partial(BoxState.answered, load=load, now=time.time()))
                        self._over.wait(max(0.0, self._interval - (time.monotonic() - began)))
            except EdgedError as error:
                told = error.message
            except OSError as error:
                told = common.refused_by_system(error)
            else:
                return
            self._keep(box.name, partial(BoxState.failed, error=told, now=time.time()))
            self._over.wait(min(self._interval, 1.0))

    def _keep(self, name: str, change: Callable[[BoxState], BoxState]) -> None:
        with self._lock:
            self._seen[name] = change(self._seen[name])
        self.changed.set()

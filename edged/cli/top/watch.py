"""Asks boxes again and again, each from a thread of its own, and keeps what was last seen of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from edged.cli import common
from edged.cli.inventory import Box
from edged.cli.reach import client_of
from edged.cli.top.seen import Seen
from edged.errors import EdgedError

_PATIENCE_S = 5.0  # with one answer; what comes later than that is no picture of now


class Watch:
    """Begins at once. `changed` is set whenever something new was seen; clear it before looking."""

    def __init__(self, boxes: Sequence[Box], interval: float) -> None:
        self.changed = threading.Event()
        self._interval = interval
        self._lock = threading.Lock()
        self._seen = {box.name: Seen(box.name) for box in boxes}
        self._over = threading.Event()
        for box in boxes:
            patience = min(box.settings.timeout_s or _PATIENCE_S, _PATIENCE_S)
            hurried = msgspec.structs.replace(box, settings=msgspec.structs.replace(box.settings, timeout_s=patience))
            threading.Thread(target=self._watch, args=(hurried,), daemon=True).start()

    def seen(self) -> list[Seen]:
        """Of every box, in their order."""
        with self._lock:
            return list(self._seen.values())

    def wait(self, enough: Callable[[Seen], bool], seconds: float) -> list[Seen]:
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
                        self._keep(box.name, partial(Seen.answered, load=load, now=time.time()))
                        self._over.wait(max(0.0, self._interval - (time.monotonic() - began)))
            except EdgedError as error:
                told = error.message
            except OSError as error:
                told = common.refused_by_system(error)
            else:
                return
            self._keep(box.name, partial(Seen.failed, error=told, now=time.time()))
            self._over.wait(min(self._interval, 1.0))

    def _keep(self, name: str, change: Callable[[Seen], Seen]) -> None:
        with self._lock:
            self._seen[name] = change(self._seen[name])
        self.changed.set()

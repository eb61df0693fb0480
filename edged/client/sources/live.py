"""Cameras: what is not there yet, or goes away, is tried again for as long as somebody wants it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

from edged.client.backoff import Backoff
from edged.client.sources.address import redact
from edged.client.sources.source import Reader, Shot
from edged.errors import Unsupported

_log = logging.getLogger("edged.client")

Connect: TypeAlias = Callable[["Live"], AbstractContextManager[Iterator[Shot]]]
"""Opens the camera; the shots end or raise when it goes away, and between two of them `stopped` is looked at."""


class Live(Reader):
    """A camera. `wait` and `clock`, in seconds, are replaced by tests."""

    paced = True

    def __init__(
        self,
        name: str,
        connect: Connect,
        *,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(redact(name))
        self._connect = connect
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._wait = wait or self.stopped.wait
        self._working_since: float | None = None

    def shots(self) -> Generator[Shot, None, None]:
        while not self.stopped.is_set():
            self._working_since = None
            reason = yield from self._session()
            if self.stopped.is_set():
                return
            pause = self._backoff.after(0.0 if self._working_since is None else self._clock() - self._working_since)
            _log.warning("camera %s: %s; trying again in %g s", self.name, reason, pause)
            self._wait(pause)

    def _session(self) -> Generator[Shot, None, str]:
        """One connection, until it ends; why it did."""
        try:
            with self._connect(self) as shots:
                for shot in shots:
                    if self._working_since is None:
                        self._working_since = self._clock()
                    yield shot
                    if self.stopped.is_set():
                        break
        except Unsupported:  # what is not installed will not come by waiting
            raise
        except Exception as error:  # whatever a camera or a driver does, the next attempt may work
            return redact(str(getattr(error, "strerror", None) or error) or type(error).__name__)
        return "the stream ended"

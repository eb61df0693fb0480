"""Cameras: connected again when they are missing or go away, until they are closed."""

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
"""Opens the camera. The shots end or raise when it goes away; `stopped` is checked between two of them."""


class Live(Reader):
    """A camera. Tests replace `wait` and `clock`, both in seconds."""

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
        """Yield the shots of one connection; return why it ended."""
        try:
            with self._connect(self) as shots:
                for shot in shots:
                    if self._working_since is None:
                        self._working_since = self._clock()
                    yield shot
                    if self.stopped.is_set():
                        break
        except Unsupported:  # a missing package does not appear by waiting
            raise
        except Exception as error:  # whatever the camera or driver raises, the next attempt may work
            return redact(str(getattr(error, "strerror", None) or error) or type(error).__name__)
        return "the stream ended"

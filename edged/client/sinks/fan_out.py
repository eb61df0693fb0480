"""Several sinks behind one stream."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from edged.client.frames import Captured, Picture
from edged.client.result import Result
from edged.client.sinks.answered import Answered
from edged.client.sinks.kept import Kept
from edged.client.sinks.sink import Sink
from edged.errors import EdgedError

if TYPE_CHECKING:
    from typing_extensions import Self

Added = TypeVar("Added", bound=Sink)

_log = logging.getLogger("edged.client")


class Sinks:
    """Gives every result to every sink. One that fails is closed and left out, with a warning; the failure of the last
    one is raised, since the stream is for nobody then."""

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks = list(sinks)
        self._kept: Kept | None = None

    def add(self, sink: Added) -> Added:
        """Before `tap`."""
        self._sinks.append(sink)
        return sink

    def tap(self, frames: Iterable[Picture | Captured]) -> Iterable[Picture | Captured]:
        """What to stream in place of `frames`, so that pictures are there when their answers come; `frames` as they are
        where no sink wants pictures."""
        if not any(sink.wants_pictures for sink in self._sinks):
            return frames
        self._kept = Kept(frames)
        return self._kept

    def on_result(self, result: Result) -> None:
        picture = None if self._kept is None else self._kept.take(result.sequence)
        answered = Answered(result, picture)
        for sink in tuple(self._sinks):
            try:
                sink.on_answer(answered)
            except (OSError, EdgedError) as error:
                self._leave_out(sink, error)

    def close(self) -> None:
        """All of them, even if one cannot; then what the first raised."""
        failure: Exception | None = None
        while self._sinks:
            try:
                self._sinks.pop(0).close()
            except (OSError, EdgedError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _leave_out(self, sink: Sink, error: Exception) -> None:
        self._sinks.remove(sink)
        with contextlib.suppress(OSError, EdgedError):  # it failed already
            sink.close()
        if not self._sinks:
            raise error
        _log.warning("%s: %s; the stream goes on without it", sink.name, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

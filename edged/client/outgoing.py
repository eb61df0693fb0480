"""Frames on their way out: pulled from what the user gave, one by one, by whichever thread sends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from edged.client.frames import Captured, FrameMaker, Picture
from edged.client.ledger import Ledger
from edged.client.result import Result
from edged.proto import cameras_pb2 as pb


class Outgoing(Iterator[pb.Frame]):
    """The requests of one stream.

    An exception from the user's frames ends the requests and is kept in `failure`: what was sent before it is still
    answered, then the receiving side raises it. With `lossless` the next frame leaves only when none waits for its
    answer, so that the daemon never skips one.
    """

    def __init__(
        self, frames: Iterable[Picture | Captured], maker: FrameMaker, ledger: Ledger, *, lossless: bool = False
    ) -> None:
        self.ledger = ledger
        self.failure: Exception | None = None
        self.exhausted = False
        self._frames = iter(frames)
        self._maker = maker
        self._lossless = lossless
        self._stopped = False
        self._closed = False
        self._changed = threading.Condition()
        self._pulling = threading.Lock()

    def __next__(self) -> pb.Frame:
        with self._pulling:
            frame = self._pull()
        if self._stopped:  # looked at after the lock is free, since `stop` leaves the closing to its holder
            self.stop()
            raise StopIteration
        if frame is None:
            raise StopIteration
        self.ledger.on_sent()
        return frame

    def on_result(self, result: Result) -> None:
        """Enters an answer into the account, and lets the next frame out."""
        self.ledger.on_result(result)
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Sends no more and closes the user's frames, from any thread. A frame that is being pulled from a generator
        cannot be interrupted; it is then closed as soon as it has given that frame."""
        self._stopped = True
        with self._changed:
            self._changed.notify_all()
        interrupt = getattr(self._frames, "interrupt", None)
        if interrupt is not None:
            interrupt()
        if self._pulling.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._pulling.release()

    def _pull(self) -> pb.Frame | None:
        """The next frame; None at the end, for whatever reason."""
        if self._stopped or self.exhausted:
            return None
        try:
            frame = self._maker.make(next(self._frames))
        except StopIteration:
            self._close()
            return None
        except Exception as error:  # the user's own, of any class
            self.failure = error
            self._close()
            return None
        if self._lossless:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self.ledger.waiting <= 0)
        return frame

    def _close(self) -> None:
        self.exhausted = True
        close = getattr(self._frames, "close", None)
        if self._closed or close is None:
            return
        self._closed = True
        try:
            close()
        except Exception as error:
            self.failure = self.failure or error

"""The requests of a stream: the user's frames, pulled one by one by the thread that sends, and their counts."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from edged.client.frames import Captured, FrameMaker, OutgoingFrame, Picture
from edged.client.result import Result, Skips
from edged.errors import InvalidInput

_FRESH_NS = 1_000_000_000
_WINDOW = 6  # frames that wait for their answers, with `every_frame`, when one more leaves


def most_waiting(lossless: bool, every_frame: bool) -> int | None:
    """How many frames of a stream may wait for their answers when another one leaves; None for any number."""
    return 0 if lossless else _WINDOW if every_frame else None


class FrameCounts:
    """Counts the frames of one stream: each that was sent is answered, skipped or failed, or still waits. The sending
    side writes `sent`, the receiving side the rest, so that no lock is needed.

    `reasons` counts skipped frames by reason. `lost` counts the failed frames that were in flight when the daemon went
    away. `unreported` are skipped frames that no result reports, since none came after them; `skipped` is the sum over
    all results and `unreported`.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.answered = 0
        self.skipped = 0
        self.failed = 0
        self.lost = 0
        self.reasons: Counter[str] = Counter()
        self.unreported: tuple[Skips, ...] = ()
        self.gave_up = False  # set when a stream is ended because of `silence`
        self._unreported = 0
        self._last = time.monotonic()

    @property
    def waiting(self) -> int:
        """Frames in flight."""
        return self.sent - self.answered - self.skipped - self.failed

    def on_sent(self) -> None:
        if self.waiting == 0:
            self._last = time.monotonic()
        self.sent += 1

    def on_skips(self, skipped: int, skips: Sequence[Skips]) -> None:
        """Count skipped frames that came without an answer; the next result reports them."""
        self._count(skipped, skips)
        self.unreported += tuple(skips)
        self._unreported += skipped

    def on_result(self, result: Result) -> Result:
        """Count a result; return it with the skipped frames that no earlier one reported."""
        self._count(result.skipped, result.skips)
        if result.error is None:
            self.answered += 1
        else:
            self.failed += 1
        if not self._unreported:
            return result
        whole = msgspec.structs.replace(
            result, skipped=self._unreported + result.skipped, skips=self.unreported + result.skips
        )
        self.unreported, self._unreported = (), 0
        return whole

    def on_lost(self) -> None:
        """Count frames in flight as failed: their call is over."""
        lost = max(0, self.waiting)
        self.failed += lost
        self.lost += lost
        self.gave_up = False

    def silence(self) -> float:
        """Return the seconds that frames have waited without any result, also of skips; 0 while none waits."""
        return time.monotonic() - self._last if self.waiting > 0 else 0.0

    def _count(self, skipped: int, skips: Sequence[Skips]) -> None:
        self.skipped += skipped
        for each in skips:
            self.reasons[each.reason] += each.count
        self._last = time.monotonic()


class FrameRequests:
    """The requests of one stream, which may take several calls.

    An exception from the user's frames ends the requests: frames that were sent before it are still answered, then
    the receiving side raises it from `failure`. A frame leaves only when at most `most_waiting` frames wait for their
    answers; None for any number.
    """

    def __init__(self, frames: Iterable[Picture | Captured], maker: FrameMaker, most_waiting: int | None) -> None:
        if isinstance(frames, (str, bytes, os.PathLike)):  # a text is an iterable as well, of single characters
            raise InvalidInput(f"frames cannot be a {type(frames).__name__}; give edged.open_source(...) of the video")
        self.counts = FrameCounts()
        self.failure: Exception | None = None
        self.exhausted = False
        self._maker = maker
        self._most_waiting = most_waiting
        self._frames = iter(frames)
        self._stopped = False
        self._closed = False
        self._changed = threading.Condition()
        self._pulling = threading.Lock()
        self._leaving = threading.Lock()
        self._call = 0
        self._introduced = 0  # the call whose first frame has left
        self._pending: OutgoingFrame | None = None

    def new_call(self) -> Iterator[bytes]:
        """Return the requests of the next call. The one before is over: its frames in flight are lost, and its sender,
        which may still wait for the user's next frame, gets no more."""
        with self._leaving:
            self._call += 1
            self.counts.on_lost()
        self._on_turn()
        return self._of_call(self._call)

    def on_result(self, result: Result) -> Result:
        """Count an answer and let the next frame out. Return the result with the skips that no earlier one reported."""
        whole = self.counts.on_result(self._maker.on_result(result))
        self._on_turn()
        return whole

    def on_skips(self, skipped: int, skips: Sequence[Skips]) -> None:
        """Count frames that the daemon skipped and let the next frame out."""
        self.counts.on_skips(skipped, skips)
        self._on_turn()

    def stop(self) -> None:
        """Send no more and close the user's frames, from any thread. A generator that is running cannot be closed;
        it is closed as soon as it has given its frame."""
        self._stopped = True
        self._on_turn()
        interrupt = getattr(self._frames, "interrupt", None)
        if interrupt is not None:
            interrupt()
        if self._pulling.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._pulling.release()

    def finish(self) -> None:
        """Release what frames needed until they were answered: the stream is over."""
        self._maker.close()

    def _of_call(self, call: int) -> Iterator[bytes]:
        while (data := self._next(call)) is not None:
            yield data
            del data  # it is large, and the next may take long to come

    def _next(self, call: int) -> bytes | None:
        with self._pulling:
            frame, self._pending = (self._take_pending() or self._pull()), None
            leaving = None if frame is None else self._leave(frame, call)
            if leaving is None:
                self._pending = frame  # for the call that came after
        if self._stopped:  # after the lock is free, since `stop` leaves closing to the holder of the lock
            self.stop()
            return None
        return None if leaving is None else leaving.data

    def _take_pending(self) -> OutgoingFrame | None:
        """Return a frame that no call has sent yet, unless it has become old: a camera has a newer one."""
        frame = self._pending
        if frame is None or self._most_waiting is not None or not frame.captured_mono_ns:
            return frame
        return frame if time.monotonic_ns() - frame.captured_mono_ns < _FRESH_NS else None

    def _leave(self, frame: OutgoingFrame, call: int) -> OutgoingFrame | None:
        """Return the frame as it is sent; None if the call is over."""
        with self._leaving:
            if call != self._call or self._stopped:
                return None
            if self._introduced != call:
                self._introduced = call
                frame = self._maker.introduce(frame)
            self.counts.on_sent()
            return frame

    def _pull(self) -> OutgoingFrame | None:
        """Return the next frame; None at the end or after a failure."""
        if self._stopped or self.exhausted:
            return None
        try:
            item = next(self._frames)
            taken = item if isinstance(item, Captured) else Captured.now(item)
            self._wait_for_turn()
            # Only now, since an earlier answer may show that the daemon cannot read shared memory.
            return self._maker.make(taken)
        except StopIteration:
            self._close()
        except Exception as error:  # the user's own, of any class
            self.failure = error
            self._close()
        return None

    def _wait_for_turn(self) -> None:
        most = self._most_waiting
        if most is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self.counts.waiting <= most)

    def _on_turn(self) -> None:
        """Fewer frames wait for their answers."""
        with self._changed:
            self._changed.notify_all()

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

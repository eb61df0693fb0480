"""The requests of a stream: gRPC's sending thread pulls the user's frames one by one, and the frames are counted."""

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
_WINDOW = 6  # with `every_frame`, a frame is sent while at most this many are unanswered


def most_waiting(lossless: bool, every_frame: bool) -> int | None:
    """Return how many frames of a stream may be unanswered when another frame is sent; None means no limit."""
    return 0 if lossless else _WINDOW if every_frame else None


class FrameCounts:
    """Counts the frames of one stream: each sent frame is answered, skipped, failed or still in flight. The sending
    side writes `sent` and the receiving side the other counts, so no lock is needed.

    `reasons` counts skipped frames by reason. `lost` counts the failed frames that were in flight when the daemon went
    away. `unreported` are skipped frames that no result has reported yet. `skipped` counts reported and unreported
    frames.
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
        """The number of frames in flight."""
        return self.sent - self.answered - self.skipped - self.failed

    def on_sent(self) -> None:
        if self.waiting == 0:
            self._last = time.monotonic()
        self.sent += 1

    def on_skips(self, skipped: int, skips: Sequence[Skips]) -> None:
        """Count skipped frames from a message that only reports skips. `on_result` adds these frames to the skips of
        the next result."""
        self._count(skipped, skips)
        self.unreported += tuple(skips)
        self._unreported += skipped

    def on_result(self, result: Result) -> Result:
        """Count a result; return it with the skipped frames that no earlier result reported."""
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
        """Count all frames in flight as failed, since their call has ended."""
        lost = max(0, self.waiting)
        self.failed += lost
        self.lost += lost
        self.gave_up = False

    def silence(self) -> float:
        """Return the seconds without any result or skip report while frames were in flight; 0 if no frame is in
        flight."""
        return time.monotonic() - self._last if self.waiting > 0 else 0.0

    def _count(self, skipped: int, skips: Sequence[Skips]) -> None:
        self.skipped += skipped
        for each in skips:
            self.reasons[each.reason] += each.count
        self._last = time.monotonic()


class FrameRequests:
    """The requests of one stream, which may consist of several gRPC calls.

    If the user's frames raise an exception, the requests end. Earlier frames are still answered. Then the receiving
    side raises the exception, which is in `failure`. A frame is sent only while at most `most_waiting` sent frames are
    unanswered; None means no limit.
    """

    def __init__(self, frames: Iterable[Picture | Captured], maker: FrameMaker, most_waiting: int | None) -> None:
        if isinstance(frames, (str, bytes, os.PathLike)):  # a str would be iterated over its characters
            raise InvalidInput(
                f"'frames' is a {type(frames).__name__}, not an iterable of frames; give edged.open_source(...) of the"
                " video"
            )
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
        self._introduced = 0  # the last call whose first frame was sent
        self._pending: OutgoingFrame | None = None

    def new_call(self) -> Iterator[bytes]:
        """Return the requests of the next call. The previous call has ended, so its frames in flight count as lost. The
        sending thread of that call may still wait for the user's next frame; the next call gets this frame."""
        with self._leaving:
            self._call += 1
            self.counts.on_lost()
        self._on_turn()
        return self._of_call(self._call)

    def on_result(self, result: Result) -> Result:
        """Count a result and allow the next frame. Return the result with the skips that no earlier result reported."""
        whole = self.counts.on_result(self._maker.on_result(result))
        self._on_turn()
        return whole

    def on_skips(self, skipped: int, skips: Sequence[Skips]) -> None:
        """Count frames that the daemon skipped and allow the next frame."""
        self.counts.on_skips(skipped, skips)
        self._on_turn()

    def stop(self) -> None:
        """Send no more frames and close the user's frames; any thread may call this. A generator that is running now is
        closed after it has yielded its frame."""
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
        """Release the shared memory of frames; call this after the last answer."""
        self._maker.close()

    def _of_call(self, call: int) -> Iterator[bytes]:
        while (data := self._next(call)) is not None:
            yield data
            del data  # frees a large frame before a possibly long wait for the next one

    def _next(self, call: int) -> bytes | None:
        with self._pulling:
            frame, self._pending = (self._take_pending() or self._pull()), None
            leaving = None if frame is None else self._leave(frame, call)
            if leaving is None:
                self._pending = frame  # kept for the next call
        if self._stopped:  # after the lock is released, since `stop` closes the frames only if it gets the lock
            self.stop()
            return None
        return None if leaving is None else leaving.data

    def _take_pending(self) -> OutgoingFrame | None:
        """Return the frame that was pulled but not sent, or None. If frames may be skipped, an old frame is dropped,
        since the camera has a newer one."""
        frame = self._pending
        if frame is None or self._most_waiting is not None or not frame.captured_mono_ns:
            return frame
        return frame if time.monotonic_ns() - frame.captured_mono_ns < _FRESH_NS else None

    def _leave(self, frame: OutgoingFrame, call: int) -> OutgoingFrame | None:
        """Count a frame as sent and return it, with the stream's options if the frame is the call's first. Return None
        if the call has ended."""
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
            # Made after the wait, since an earlier answer may show that the daemon cannot read shared memory.
            return self._maker.make(taken)
        except StopIteration:
            self._close()
        except Exception as error:  # the user's frames may raise any class
            self.failure = error
            self._close()
        return None

    def _wait_for_turn(self) -> None:
        most = self._most_waiting
        if most is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self.counts.waiting <= most)

    def _on_turn(self) -> None:
        """Wake the sending thread, because fewer frames are unanswered now or because the stream has stopped."""
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

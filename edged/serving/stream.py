"""Keeps account of the frames of one client's call: which frames wait, are in flight, are delivered or are skipped.

Each frame that `put` receives is delivered with a result or skipped. Skipped frames are counted in the `skips` of a
later result of the same camera, or in those of a `SkipReport`. A few frames of a camera are in flight at a time. The
mode decides what happens while the client does not read. In mode `freshest`, only the newest frame waits here, and
older frames are skipped. In mode `every_frame`, `room` waits until the client reads.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Generic, TypeVar

from edged.errors import EdgedError, FrameSkipped, Overloaded
from edged.serving.camera import Cameras, StreamOptions
from edged.serving.sound import AnySlot
from edged.serving.stream_camera import EVERY_IN_FLIGHT, FULL, OVERTAKEN, RATE, Entry, Skips, StreamCamera
from edged.serving.taps import copy_of
from edged.serving.tracking import Tracking
from edged.serving.work import Answered, FrameWork

_MOST_CAMERAS = 256  # of one call; each may hold several pictures in memory

Tag = TypeVar("Tag")


@dataclass(frozen=True, slots=True)
class Delivery(Generic[Tag]):
    """The outcome of one frame, with the caller's tag, and the frames of the camera that were skipped before it.

    The picture in `work` has been released. `age_ms` is the time from capture (or from receipt if the capture time is
    unknown) to delivery. `tracker_ids` has one id for each detection (-1 for none), or is empty.
    """

    camera: str
    tag: Tag
    work: FrameWork
    answer: Answered | EdgedError
    skips: tuple[Skips, ...]
    age_ms: float
    received_ns: int
    tracker_ids: tuple[int, ...] = ()

    @property
    def skipped(self) -> int:
        return sum(run.count for run in self.skips)


@dataclass(frozen=True, slots=True)
class SkipReport:
    """Frames of a camera that were skipped, and that no result has reported yet."""

    camera: str
    skips: tuple[Skips, ...]

    @property
    def skipped(self) -> int:
        return sum(run.count for run in self.skips)


class Stream(Generic[Tag]):
    """The stream of one call. Use it from one event loop: `put` frames, iterate over `results`, and always `close`."""

    def __init__(
        self,
        cameras: Cameras | None = None,
        tracking: Tracking | None = None,
        protocol: str = "grpc",
        report_seconds: float = 1.0,
    ) -> None:
        """`protocol` names how frames are received. Skips that no result has reported for `report_seconds` get a
        separate report."""
        self._records, self._tracking, self._protocol = cameras or Cameras(), tracking, protocol
        self._report_seconds = report_seconds
        self._cameras: dict[str, StreamCamera[Tag]] = {}
        # None instead of a frame stands for a report of skipped frames.
        self._ready: deque[tuple[StreamCamera[Tag], Entry[Tag] | None]] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._closed = False
        self._failure: BaseException | None = None

    def put(
        self,
        camera: str,
        tag: Tag,
        work: FrameWork,
        slot: AnySlot | EdgedError,
        *,
        sequence: int = 0,
        captured_ns: int = 0,
        options: StreamOptions | None = None,
    ) -> None:
        """Add a frame. If `slot` is an error, this error is the answer to the frame. Otherwise the frame goes to the
        slot, and an error that the slot raises becomes the answer.

        `sequence` is the client's number of the frame, `captured_ns` the client's wall clock at capture (0: unknown).
        `options` apply from this frame on; None leaves them unchanged. Raises InvalidInput if the camera id is invalid,
        Overloaded if the call has too many cameras.
        """
        state = self._cameras.get(camera) or self._join(camera)
        received_ns = time.time_ns()
        record = state.record(slot, self._records, self._protocol)
        if options is not None and options != state.options:
            state.adopt(options)
        if record is not None:
            record.options = state.options
            record.receive(work.received, received_ns)
        if state.options.max_staleness:
            age = max(0, received_ns - captured_ns) / 1e9 if captured_ns > 0 else 0.0
            work.expires = min(work.expires, work.received + state.options.max_staleness - age)
            if age >= state.options.max_staleness and record is not None:
                record.note_old_frame(age, received_ns / 1e9)
        entry = Entry(tag, work, slot, state.places, sequence, captured_ns, received_ns, record)
        state.places += 1
        self._admit(state, entry)

    async def room(self, camera: str) -> None:
        """Wait until the camera has room for another frame. Returns at once in mode `freshest`."""
        state = self._cameras.get(camera)
        while state is not None and state.options.mode == "every_frame" and state.is_full and not self._closed:
            self._room.clear()
            await self._room.wait()

    def end(self, failure: BaseException | None = None) -> None:
        """Announce that no more frames will be put. If `failure` is given, `results` raises it after the last
        result."""
        self._ended, self._failure = True, failure
        self._changed.set()

    async def results(self) -> AsyncGenerator[Delivery[Tag] | SkipReport, None]:
        """Yield deliveries as they become ready, in order for each camera, until all frames are answered or reported as
        skipped."""
        while True:
            while self._ready:
                state, entry = self._ready.popleft()
                if entry is not None:
                    yield self._delivery(state, entry)
                    self._mark_read(state)
                elif state.skips:
                    yield SkipReport(state.name, state.skips.take())
            if self._ended and not any(c.pending or c.held for c in self._cameras.values()):
                break
            self._changed.clear()
            await self._changed.wait()
        for state in self._cameras.values():
            if state.skips:
                yield SkipReport(state.name, state.skips.take())
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Drop all frames that have not been delivered, and remove this call from the cameras' records."""
        if self._closed:
            return
        self._closed = True
        self._room.set()
        for _, entry in self._ready:
            if entry is not None:
                entry.drop()
        self._ready.clear()
        for state in self._cameras.values():
            for entry in (*state.pending, *([state.held] if state.held is not None else [])):
                if not isinstance(entry.slot, EdgedError):
                    entry.slot.withdraw(state.queue_key, entry.work)
                entry.drop()
            state.pending.clear()
            state.held = None
            if state.reporting is not None:
                state.reporting.cancel()
            state.leave(self._records)
            if self._tracking is not None:
                for tracks in state.tracks.values():
                    self._tracking.forget(tracks)

    # -- incoming frames ---------------------------------------------------------------------------------------------

    def _join(self, camera: str) -> StreamCamera[Tag]:
        if len(self._cameras) >= _MOST_CAMERAS:
            raise Overloaded(f"a stream can have at most {_MOST_CAMERAS} cameras; open another stream for more")
        state = self._cameras[camera] = StreamCamera[Tag](camera, self)
        return state

    def _admit(self, state: StreamCamera[Tag], entry: Entry[Tag]) -> None:
        freshest = state.options.mode == "freshest"
        if state.held is not None and not freshest:  # this frame changed the mode
            held, state.held = state.held, None
            self._hand_over(state, held)
        if state.held is None and not state.limit.admits(entry.work.received):
            self._skip(state, entry, RATE)
        elif state.held is not None and freshest:
            self._skip(state, state.held, OVERTAKEN)
            state.held = entry
        elif not state.is_full:
            self._hand_over(state, entry)
        elif freshest:
            state.held = entry
        elif state.in_flight < 2 * EVERY_IN_FLIGHT:
            self._hand_over(state, entry)  # the client may have sent it while the queue had room
        else:
            self._skip(state, entry, FULL)

    def _hand_over(self, state: StreamCamera[Tag], entry: Entry[Tag]) -> None:
        overtaken = None
        if isinstance(entry.slot, EdgedError):
            entry.work.future.set_exception(entry.slot)
        else:
            if self._records.taps:
                entry.copy = copy_of(self._records.taps, entry.slot, state.name, entry.work)
            try:
                if state.options.mode == "freshest":
                    overtaken = entry.slot.offer(state.queue_key, entry.work, state.options.share)
                else:
                    entry.slot.queue(state.queue_key, entry.work, state.options.share)
            except EdgedError as error:
                entry.work.future.set_exception(error.with_traceback(None))  # a traceback keeps the picture alive
        if overtaken is not None:
            for each in state.pending:
                if each.work is overtaken:
                    state.pending.remove(each)
                    self._skip(state, each, OVERTAKEN)
                    break
        state.pending.append(entry)
        entry.work.future.add_done_callback(lambda _: self._finish(state, entry))

    def _skip(self, state: StreamCamera[Tag], entry: Entry[Tag], reason: str) -> None:
        entry.work.future.cancel()
        state.skips.add(entry.place, entry.sequence, reason)
        if entry.record is not None:
            entry.record.skipped[reason] += 1
        if state.reporting is None:
            self._report_later(state)

    def _report_later(self, state: StreamCamera[Tag]) -> None:
        state.reporting = asyncio.get_running_loop().call_later(self._report_seconds, self._report, state)

    def _report(self, state: StreamCamera[Tag]) -> None:
        """Queue a report of the skipped frames that no result has reported."""
        state.reporting = None
        if not state.skips or self._closed:
            return
        if state.unread:  # the next result reports them; look again later, because that result may be sent already
            self._report_later(state)
        elif (state, None) not in self._ready:
            self._ready.append((state, None))
            self._changed.set()

    # -- results -----------------------------------------------------------------------------------------------------

    def _finish(self, state: StreamCamera[Tag], entry: Entry[Tag]) -> None:
        copy, entry.copy, future = entry.copy, None, entry.work.future
        entry.work.data = b""  # frees the picture: the answer may wait long for a client that does not read
        self._flush(state)
        # The last step, so that a tap that raises harms no result.
        if copy is not None and not future.cancelled() and future.exception() is None:
            copy.give(state.name, entry.work)

    def _flush(self, state: StreamCamera[Tag]) -> None:
        """Move finished frames from the head of the queue to the results that are ready."""
        while state.pending and state.pending[0].work.future.done() and not self._closed:
            entry = state.pending[0]
            if not entry.work.future.cancelled():
                error = entry.work.future.exception()
                if error is not None and not isinstance(error, EdgedError):
                    raise error
                if error is None and state.options.track and not self._is_followed(state, entry):
                    return
                if isinstance(error, FrameSkipped):
                    self._skip(state, entry, error.reason)
                else:
                    self._ready.append((state, entry))
                    state.unread += 1
            state.pending.popleft()
        self._changed.set()
        self._offer_held(state)

    def _is_followed(self, state: StreamCamera[Tag], entry: Entry[Tag]) -> bool:
        """Whether the frame has its tracker ids or needs none. Asks the tracker for ids on the first call."""
        found = entry.work.future.result().detections
        if entry.ids is None and self._tracking is not None and entry.record is not None and found is not None:
            entry.ids = self._tracking.follow(state.tracks_of(entry.record), entry.captured, found)
            entry.ids.add_done_callback(lambda _: self._flush(state))
        return entry.ids is None or entry.ids.done()

    def _delivery(self, state: StreamCamera[Tag], entry: Entry[Tag]) -> Delivery[Tag]:
        answer = entry.work.future.exception() or entry.work.future.result()
        assert isinstance(answer, Answered | EdgedError)
        now = time.time()
        # The age would be negative if the camera's clock is ahead of the box's.
        age_ms = max(0.0, now - entry.captured) * 1e3
        if entry.record is not None and isinstance(answer, Answered):
            entry.record.answer(time.monotonic(), age_ms, answer.width, answer.height)
        elif entry.record is not None:
            entry.record.fail(str(answer), now)
        ids = entry.ids.result() if entry.ids is not None and not entry.ids.cancelled() else ()
        return Delivery(state.name, entry.tag, entry.work, answer, state.skips.take(), age_ms, entry.received_ns, ids)

    def _mark_read(self, state: StreamCamera[Tag]) -> None:
        state.unread -= 1
        self._offer_held(state)

    def _offer_held(self, state: StreamCamera[Tag]) -> None:
        """Offer the held frame, if any, once the camera has room for it."""
        self._room.set()
        if state.held is not None and not state.is_full and not self._closed:
            entry, state.held = state.held, None
            self._hand_over(state, entry)

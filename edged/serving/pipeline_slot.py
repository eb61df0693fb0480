"""Runs a pipeline: sends frames to the slot of the first model, and crops of its detections to the slot of the second
model. A slot holds the waiting work of a model.

A pipeline has the methods of a slot, so streams use pipelines and slots in the same way. While a frame waits for the
first model, a newer frame of the camera may replace it. After the first model has answered, newer frames do not replace
the frame. Its crops wait in the second model's schedule, in a separate queue of the camera and with the camera's weight
and priority. That queue is short, because a stream limits the number of its frames in both steps together.

All crops of a frame are sent together (`CropsWork`), so the second model's host gets and decodes the picture once. On
one core, decoding a JPEG of 1920x1080 takes 8.6 ms, and fitting eight crops into an input of 224x224 takes 1.1 ms.
Decoding the picture for each crop would take 69 ms. The first model's host could cut out the crops, which would save
the second decoding. But this host would then need the rule of each pipeline, and keep the pixels of every picture until
the answer.

How frames end:

- If the first step fails, the frame fails with the error of that step.
- If the frame becomes too old in the second step, or that step has no room for it, the whole frame is skipped or fails.
  The client can send it again.
- The second step may fail for another reason: the model was removed or cannot read the crop. The frame is then answered
  with its detections, and each detection with a crop has the error.
- If the client disconnects, the work for the frame is dropped, whether it waits or runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from edged.errors import DeadlineExceeded, EdgedError, EngineUnusable, FrameSkipped, Overloaded
from edged.serving.schedule import Share
from edged.serving.slot import Slot
from edged.serving.work import Answered, Blob, CropsWork, FrameWork, SecondStep, Source
from edged.vision.crops import CropRule, Crops, choose
from edged.vision.detections import Detections

T = TypeVar("T")

_EQUAL = Share()


class PipelineRule(msgspec.Struct, frozen=True):
    """The models of a pipeline, and which detections of `detect` get a crop for `then`."""

    detect: str
    then: str
    crops: CropRule = CropRule()


class Steps(NamedTuple):
    """The slots that serve the two models now."""

    detect: Slot
    then: Slot


class PipelineCounts:
    """Frames and crops of a pipeline since the daemon started."""

    def __init__(self) -> None:
        self.answered = self.failed = 0  # frames
        self.crops_answered = self.crops_failed = self.crops_left_out = 0


class PipelineSlot:
    """One pipeline. `steps` returns its slots, or raises the error for frames that cannot be answered now."""

    def __init__(self, name: str, rule: PipelineRule, steps: Callable[[], Steps], counts: PipelineCounts) -> None:
        self.model, self.rule = name, rule
        self._steps, self._counts = steps, counts
        self._frames: dict[FrameWork, _Frame] = {}

    @property
    def in_flight(self) -> int:
        """The number of frames that wait or run, in both steps."""
        return len(self._frames)

    def require_ready(self) -> None:
        """Raise the error for frames that cannot be answered now, if there is one."""
        self._steps()

    def offer(self, camera: Hashable, frame: FrameWork, share: Share = _EQUAL) -> FrameWork | None:
        """Like `Slot.offer`."""
        overtaken = self._begin(
            frame,
            lambda slot, first: slot.offer((self, camera), first, share),
            lambda slot, crops: slot.queue((self, camera, "crops"), crops, share),
        )
        return overtaken.frame if isinstance(overtaken, _FirstStep) else None

    def queue(self, camera: Hashable, frame: FrameWork, share: Share = _EQUAL) -> None:
        """Like `Slot.queue`."""
        self._begin(
            frame,
            lambda slot, first: slot.queue((self, camera), first, share),
            lambda slot, crops: slot.queue((self, camera, "crops"), crops, share),
        )

    def push(self, frame: FrameWork) -> None:
        """Like `Slot.push`."""
        self._begin(frame, Slot.push, Slot.push)

    def withdraw(self, camera: Hashable, frame: FrameWork) -> bool:
        """Remove a frame that waits for the first model; return whether it was still waiting there."""
        state = self._frames.get(frame)
        return state is not None and state.slot.withdraw((self, camera), state.first)

    def _begin(
        self, frame: FrameWork, give: Callable[[Slot, _FirstStep], T], give_crops: Callable[[Slot, CropsWork], None]
    ) -> T:
        """Send a frame to the first model with `give`, and later its crops to the second model with `give_crops`."""
        data = frame.data if isinstance(frame.data, bytes | memoryview) else _Kept(frame.data)
        first = _FirstStep(frame, data)
        try:
            slot = self._steps().detect
            given = give(slot, first)
        except EdgedError:
            self._counts.failed += 1
            raise
        state = self._frames[frame] = _Frame(frame, data, slot, first, give_crops)
        first.future.add_done_callback(lambda _: self._detected(state))
        frame.future.add_done_callback(lambda _: self._end(state))
        return given

    def _end(self, state: _Frame) -> None:
        """Remove a frame that was answered or skipped, or that no client waits for, and count the outcome."""
        del self._frames[state.frame]
        state.first.future.cancel()
        if state.second is not None:
            state.second.future.cancel()
        if state.frame.future.cancelled():
            return
        error = state.frame.future.exception()
        self._counts.answered += error is None
        self._counts.failed += error is not None and not isinstance(error, FrameSkipped)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def _detected(self, state: _Frame) -> None:
        """Continue a frame after the first model's answer or error."""
        state.first.data = b""
        if state.first.future.cancelled():
            return
        error = state.first.future.exception()
        if not state.frame.is_wanted:
            return
        if error is None:
            self._cut(state, state.first.future.result())
        else:
            state.frame.future.set_exception(error)

    def _cut(self, state: _Frame, answer: Answered) -> None:
        """Send the crops of a frame to the second model."""
        try:
            crops = self._crops(answer, state.frame)
        except ValueError as error:  # a hostile model may have taken over the host
            what = f"model {self.rule.detect!r} answered with invalid detections: {error}"
            state.frame.future.set_exception(EngineUnusable(what))
            return
        self._counts.crops_left_out += crops.left_out
        second = SecondStep(self.rule.then, crops.rows, left_out=crops.left_out)
        if not crops.rows:
            state.frame.future.set_result(replace(answer, second=second))
            return
        state.second = work = CropsWork(state.frame, state.data, crops.regions)
        work.future.add_done_callback(lambda _: self._answered(state, answer, second, work))
        try:
            state.give_crops(self._steps().then, work)
        except EdgedError as refusal:
            work.future.set_exception(refusal.with_traceback(None))  # a traceback would keep the picture

    def _crops(self, answer: Answered, frame: FrameWork) -> Crops:
        found = Detections.unpack(answer.detections or b"")
        names, rotation = answer.engine.recognition.names, frame.roi.rotation if frame.roi is not None else 0
        return choose(found, names, self.rule.crops, answer.width, answer.height, rotation)

    def _answered(self, state: _Frame, answer: Answered, second: SecondStep, work: CropsWork) -> None:
        """Answer a frame whose crops are answered."""
        work.data = b""
        if work.future.cancelled():
            return
        error = work.future.exception()
        if not state.frame.is_wanted:
            return
        if error is not None and _is_of_frame(error, state.frame):
            state.frame.future.set_exception(error)
            return
        total_ms = (time.monotonic() - work.received) * 1e3
        if isinstance(error, EdgedError):
            second = replace(second, answers=(error,) * len(second.rows), total_ms=total_ms)
        else:
            found = work.future.result()
            timed = {"queue_ms": found.queue_ms, "times": found.times, "total_ms": total_ms}
            second = replace(second, answers=found.crops, engine=found.engine, **timed)
        failed = sum(isinstance(each, EdgedError) for each in second.answers)
        self._counts.crops_failed += failed
        self._counts.crops_answered += len(second.answers) - failed
        state.frame.future.set_result(replace(answer, second=second))


# A slot that answers frames: of a model, or of a pipeline.
FrameSlot: TypeAlias = "Slot | PipelineSlot"


class _FirstStep(FrameWork):
    """The work for the first model; `frame` is the frame of the pipeline."""

    __slots__ = ("frame",)

    def __init__(self, frame: FrameWork, data: Blob) -> None:
        super().__init__(
            data,
            frame.pixel_format,
            frame.width,
            frame.height,
            frame.stride,
            frame.thresholds,
            frame.roi,
            frame.expires,
            frame.must_answer,
        )
        self.received, self.frame = frame.received, frame


class _Frame:
    """A frame in the pipeline. `first` is its work in `slot`. `second` is its work for the second model, None until
    that work begins."""

    __slots__ = ("data", "first", "frame", "give_crops", "second", "slot")

    def __init__(
        self, frame: FrameWork, data: Blob, slot: Slot, first: _FirstStep, give_crops: Callable[[Slot, CropsWork], None]
    ) -> None:
        self.frame, self.data, self.slot, self.first, self.give_crops = frame, data, slot, first, give_crops
        self.second: CropsWork | None = None


class _Kept:
    """A picture outside the daemon's memory. The first read keeps a copy for the second model, because the client may
    reuse the memory after that."""

    __slots__ = ("_copy", "_source", "size")

    def __init__(self, source: Source) -> None:
        self._source, self._copy = source, b""
        self.size = source.size

    def read_into(self, place: memoryview) -> None:
        """Copy the picture into `place`. Raises the errors of the source."""
        if self._copy:
            place[:] = self._copy
        else:
            self._source.read_into(place)
            self._copy = bytes(place)


def _is_of_frame(error: BaseException, frame: FrameWork) -> bool:
    """Whether the whole frame fails because of an error of the second step. This is so if the error is temporary, so
    that the client can send the frame again."""
    if isinstance(error, DeadlineExceeded):  # also raised if a crop takes the model too long
        return frame.expires <= time.monotonic()
    return isinstance(error, FrameSkipped | Overloaded)

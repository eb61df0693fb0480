"""Classifies sound. A source receives frames of samples and answers with classes. It has the methods of a slot, so
streams use sources and slots in the same way.

A source cuts windows from its frames, and sends them to the model's slot as tensor requests. It sends one window at a
time, because the next window needs the state that the model returns. The source keeps the state, and samples that fill
no window yet. So the engine may be replaced between two windows. A window that was lost with its host is sent again
with the same state.

The source starts again, with an empty window and no state, if samples are missing. They are missing after a skipped or
failed frame, and for a new connection. The source also starts again if another version replaces the model.

Each frame has one answer: the highest score of each class in the windows that it completes. If it completes none, the
answer has no content.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import TypeAlias

import numpy as np

from edged.errors import EdgedError, EngineUnusable, InvalidInput, NotReady
from edged.ipc.messages import Times
from edged.serving.pipeline_slot import FrameSlot
from edged.serving.schedule import Share
from edged.serving.slot import Slot
from edged.serving.work import Answered, EngineRef, FrameWork, InputTensor, OutputTensor, TensorWork
from edged.tensors import Array, to_array
from edged.vision.families.decoding import Floats
from edged.vision.family import Recognition, Thresholds, open_sound
from edged.vision.sound import Windows, samples_of

_EQUAL = Share()
_DATATYPES = {"f": "FP32", "i": "INT64"}


class SoundWork(FrameWork):
    """A frame of samples. `place` is its number among all frames of its source; skipped frames count too. `is_whole`:
    the frame is a whole recording, so its last window is filled up with zeros."""

    __slots__ = ("form", "is_whole", "place")

    def __init__(
        self,
        data: bytes | memoryview,
        form: str,
        place: int = 0,
        thresholds: Thresholds | None = None,
        expires: float = math.inf,
        is_whole: bool = False,
    ) -> None:
        super().__init__(data, thresholds=thresholds, expires=expires, must_answer=is_whole)
        self.form, self.place, self.is_whole = form, place, is_whole


class SoundSource:
    """One source of sound for one version of a model, whose digest is `digest`."""

    def __init__(self, slot: Slot, recognition: Recognition, digest: str) -> None:
        """Raises Unsupported if the model takes no sound."""
        self.slot, self.digest, self.recognition = slot, digest, recognition
        self.places = 0  # frames so far, skipped ones included
        self._family = open_sound(recognition)
        self._waiting: deque[_Turn] = deque()
        self._current: _Turn | None = None
        self._next = 0  # the place of the frame that continues the sound
        self._start_again()

    @property
    def model(self) -> str:
        return self.slot.model

    def take_place(self) -> int:
        """Return the place of the next frame."""
        self.places += 1
        return self.places - 1

    def offer(self, camera: Hashable, frame: FrameWork, share: Share = _EQUAL) -> FrameWork | None:
        """Like `queue`. A newer frame never replaces a waiting frame, because the samples of that frame would be
        missing."""
        self.queue(camera, frame, share)
        return None

    def queue(self, camera: Hashable, frame: FrameWork, share: Share = _EQUAL) -> None:
        """Queue a frame behind the earlier frames of the source. The caller limits their number."""
        self._add(frame, lambda window: self.slot.queue((self, camera), window, share))

    def push(self, frame: FrameWork) -> None:
        """Queue a frame that belongs to no camera, such as a whole recording."""
        self._add(frame, self.slot.push)

    def withdraw(self, camera: Hashable, frame: FrameWork) -> bool:
        """Remove a frame that waits for earlier frames. Return whether it was waiting."""
        found = next((turn for turn in self._waiting if turn.frame is frame), None)
        if found is not None:
            self._waiting.remove(found)
        return found is not None

    # -- frames, one after the other ---------------------------------------------------------------------------------

    def _add(self, frame: FrameWork, give: Callable[[TensorWork], None]) -> None:
        assert isinstance(frame, SoundWork)
        turn = _Turn(frame, give)
        frame.future.add_done_callback(lambda _: self._leave(turn))
        self._waiting.append(turn)
        self._advance()

    def _advance(self) -> None:
        """Begin the frames that wait, one after the other, until one of them has sent a window to the slot."""
        while self._current is None and self._waiting:
            turn = self._waiting.popleft()
            if turn.frame.is_wanted:
                self._current = turn
                self._begin(turn)

    def _begin(self, turn: _Turn) -> None:
        frame = turn.frame
        if frame.place != self._next:
            self._start_again()
        self._next = frame.place + 1
        try:
            assert isinstance(frame.data, bytes | memoryview)
            samples = samples_of(frame.data, frame.form, self._family.sound.rate)
        except InvalidInput as error:
            self._fail(turn, error)
            return
        frame.data = b""
        turn.windows.extend(self._windows.feed(samples))
        if frame.is_whole:
            turn.windows.extend(self._windows.rest())
        self._continue(turn)

    def _continue(self, turn: _Turn) -> None:
        """Send the next window of a frame to the slot, or answer the frame if no window is left."""
        if not turn.windows:
            self._current = None
            turn.frame.future.set_result(self._answer(turn))
            return
        inputs = self._family.sound.inputs(turn.windows.popleft(), self._states)
        window = turn.asked = _WindowWork(inputs, turn.frame)
        window.future.add_done_callback(lambda _: self._answered(turn, window))
        try:
            turn.give(window)
        except EdgedError as error:
            window.future.set_exception(error.with_traceback(None))

    def _answered(self, turn: _Turn, window: TensorWork) -> None:
        """Record the scores in the answer to a window, and the state for the next window."""
        if window.future.cancelled() or not turn.frame.is_wanted:
            return
        error = window.future.exception()
        try:
            if error is None:
                self._take(turn, window.future.result())
        except EdgedError as found:
            error = found.with_traceback(None)
        if error is None:
            self._continue(turn)
        else:
            self._fail(turn, error)

    def _take(self, turn: _Turn, answer: Answered) -> None:
        if answer.engine.model != self.digest:
            raise NotReady(f"model {self.model!r} was replaced while it answered this frame; send the next frame")
        outputs = {each.name: _array(each) for each in answer.outputs}
        began = time.perf_counter()
        scores = self._family.scores(outputs)
        if turn.scores is not None and turn.scores.shape != scores.shape:
            raise EngineUnusable(
                f"the engine returned {len(scores)} classes for a window, but {len(turn.scores)} classes for the"
                " previous windows; export the model with a fixed number of classes"
            )
        turn.scores = scores if turn.scores is None else np.maximum(turn.scores, scores)
        for state in self._family.sound.states:
            kept = outputs.get(state.output)
            if kept is None or kept.shape != state.shape or kept.dtype != np.float32:
                what = "nothing" if kept is None else f"{kept.dtype}{list(kept.shape)}"
                raise EngineUnusable(f"the engine returned {what} as {state.output!r}, not FP32{list(state.shape)}")
            self._states[state.input] = kept
        turn.add(answer, (time.perf_counter() - began) * 1e3)

    def _answer(self, turn: _Turn) -> Answered:
        engine = turn.engine or EngineRef("", "", self.digest, self.recognition)
        thresholds = turn.frame.thresholds or self.recognition.thresholds
        content = None if turn.scores is None else self._family.classes(turn.scores, thresholds)
        return Answered(engine, None, (), 0, 0, turn.queue_ms, turn.times, content)

    def _fail(self, turn: _Turn, error: BaseException) -> None:
        """Answer a frame with an error. Its samples are missing now, so the source starts again."""
        self._current = None
        self._start_again()
        turn.frame.future.set_exception(error)

    def _leave(self, turn: _Turn) -> None:
        """Begin the next frame after a frame was answered or cancelled."""
        if turn.asked is not None:
            turn.asked.future.cancel()
        if self._current is turn:  # it was cancelled
            self._current = None
            self._start_again()
        self._advance()

    def _start_again(self) -> None:
        self._windows = Windows(self._family.sound)
        self._states: dict[str, Array] = {}


# The slot of a model, of a pipeline or of a source of sound: it answers the frames of a stream.
AnySlot: TypeAlias = "FrameSlot | SoundSource"


class SoundSources:
    """The sources of sound of one client's call: one source for each camera."""

    def __init__(self) -> None:
        self._sources: dict[str, SoundSource] = {}

    def of(self, camera: str, slot: Slot, recognition: Recognition, digest: str) -> SoundSource:
        """Return the source for a camera's next frame. The source is new if the model, its version or its settings have
        changed since the camera's previous frame. Raises Unsupported if the model takes no sound."""
        known = self._sources.get(camera)
        if known is None or known.slot is not slot or (known.digest, known.recognition) != (digest, recognition):
            known = self._sources[camera] = SoundSource(slot, recognition, digest)
        return known


class _WindowWork(TensorWork):
    """The request for one window. It expires with its frame."""

    __slots__ = ("frame",)

    def __init__(self, inputs: dict[str, Array], frame: SoundWork) -> None:
        tensors = (
            InputTensor(name, _DATATYPES[array.dtype.kind], array.shape, array.tobytes())
            for name, array in inputs.items()
        )
        super().__init__(tuple(tensors), None, frame.expires)
        self.frame = frame

    def too_late(self) -> EdgedError:
        return self.frame.too_late()


class _Turn:
    """A frame that waits or is being answered. `windows` has the windows of the frame that are still to be sent. `give`
    sends a window to the slot. `scores` and `times` come from the windows that were answered so far."""

    __slots__ = ("asked", "engine", "frame", "give", "queue_ms", "scores", "times", "windows")

    def __init__(self, frame: SoundWork, give: Callable[[TensorWork], None]) -> None:
        self.frame, self.give = frame, give
        self.windows: deque[Floats] = deque()
        self.asked: TensorWork | None = None
        self.engine: EngineRef | None = None
        self.scores: Floats | None = None
        self.queue_ms, self.times = 0.0, Times()

    def add(self, answer: Answered, decode_ms: float) -> None:
        """Record which engine answered a window, and add the times of this answer. `decode_ms` is how long it took to
        compute the scores of the window."""
        if self.engine is None:
            self.queue_ms = (time.monotonic() - self.frame.received) * 1e3 - answer.times.infer_ms
        self.engine = answer.engine
        self.times = Times(
            infer_ms=self.times.infer_ms + answer.times.infer_ms,
            postprocess_ms=self.times.postprocess_ms + decode_ms,
        )


def _array(output: OutputTensor) -> Array:
    return to_array(output.name, output.datatype, tuple(int(dim) for dim in output.shape), output.data)

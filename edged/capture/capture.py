"""Opens a camera's source, streams it to the daemon, and passes the results to its outputs, until stopped."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edged.backoff import Backoff
from edged.capture.outputs import Outputs
from edged.client.client import Client
from edged.client.frames import Captured, Picture, Region
from edged.client.result import Result
from edged.client.sources import PICTURE_SUFFIXES, Source, open_source
from edged.config.cameras import Camera
from edged.errors import EdgedError, redact
from edged.ipc.capture_messages import Begin, Description, FromCapture, Report, State, Watch

_PERIOD = 1.0  # seconds between two reports
_PICTURES_FPS = 2.0  # rate of a camera that reads pictures from files
_LONGEST_GAP = 60.0  # the largest limit, in seconds, that follows from the gap between frames
_USUAL_GAP = 5.0  # seconds without a frame while the source is open, before the camera counts as not streaming
_JOIN_SECONDS = 4.0  # how long to wait for a source that is stuck in the kernel; the daemon waits a little longer


class CameraHealth:
    """Derives a camera's state from the times of its frames and from its failures. Pure; times are monotonic seconds.

    `lost_seconds`: a camera that sends no frame for this time is lost; 0 means never. `max_fps`: the camera's highest
    rate, 0 for no limit.

    A camera no longer counts as streaming after 5 s without a frame. For a slow camera, this limit is twice the time
    between its last two frames, at most 60 s. If `max_fps` is low, this limit and `lost_seconds` are at least two frame
    periods.
    """

    def __init__(self, lost_seconds: float, now: float, max_fps: float = 0.0) -> None:
        self.frames = 0
        self.error = ""
        two_frames = 2 / max_fps if max_fps else 0.0
        self._usual_gap = max(_USUAL_GAP, two_frames)
        self._lost_seconds = max(lost_seconds, two_frames) if lost_seconds else 0.0
        self._began = now
        self._last: float | None = None
        self._last_gap = 0.0
        self._is_answered = self._has_failed = self._has_ended = False

    def frame(self, now: float) -> None:
        """Record that a frame arrived."""
        self.frames += 1
        self._last_gap = 0.0 if self._last is None else now - self._last
        self._last = now

    def failed(self, error: str) -> None:
        """Record that streaming failed, for example because the source is invalid or the daemon refuses the camera."""
        self.error, self._is_answered, self._has_failed = error, False, True

    def works(self) -> None:
        """Record that a frame was answered."""
        self.error, self._is_answered, self._has_failed = "", True, False

    def ended(self) -> None:
        """Record that a file was played to its end."""
        self._has_ended = True

    def state(self, now: float, problem: str) -> tuple[State, str]:
        """Return the state, and its reason or the last error, if any. `problem` is the problem of the source, or empty
        while the source delivers frames."""
        if self._has_ended:
            return State.ENDED, self.error
        if self._has_failed:
            return State.FAILED, self.error
        silent = now - (self._began if self._last is None else self._last)
        if self._lost_seconds and silent >= self._lost_seconds:
            return State.LOST, problem or f"no frame came for {silent:.0f} s"
        if not self._is_answered or problem or silent > max(self._usual_gap, min(2 * self._last_gap, _LONGEST_GAP)):
            return State.CONNECTING, problem or self.error
        return State.STREAMING, self.error


class Capture:
    """One running camera: a thread streams, another thread reports."""

    def __init__(self, begin: Begin, send: Callable[[FromCapture], None]) -> None:
        self._begin, self._camera, self._send = begin, begin.camera, send
        self._health = CameraHealth(begin.camera.lost_seconds, time.monotonic(), begin.camera.max_fps)
        self._outputs = Outputs(begin, send)
        self._source: Source | None = None
        self._size = (0, 0)
        self._stopped = threading.Event()
        self._news = threading.Event()
        self._streaming = threading.Thread(target=self._stream_again, name="edged-stream", daemon=True)
        self._reporting = threading.Thread(target=self._report, name="edged-report", daemon=True)

    def start(self) -> None:
        self._streaming.start()
        self._reporting.start()

    def watch(self, watch: Watch) -> None:
        """Set the rate, width and quality of pictures for viewers."""
        self._outputs.viewer.watch(watch)

    def describe(self, described: Description) -> None:
        """Publish a language model's description of the camera's picture."""
        self._outputs.publish_description(described.rule, described.text, described.unix_s)

    def forget(self) -> None:
        """Let `stop` remove what the outputs announced, because the camera was removed."""
        self._outputs.forget()

    def stop(self) -> None:
        """End the stream, and close the outputs."""
        self._stopped.set()
        self._news.set()
        if (source := self._source) is not None:
            source.interrupt()
        self._streaming.join(_JOIN_SECONDS)
        self._outputs.close()

    def _stream_again(self) -> None:
        """Stream until stopped; try again after failures."""
        backoff = Backoff()
        while not self._stopped.is_set():
            began, frames = time.monotonic(), self._health.frames
            try:
                self._stream()
                if self._stopped.is_set():
                    return
                if self._health.frames == frames:
                    self._health.failed("the source ended without a picture that can be decoded")
                elif self._camera.loop:
                    continue
                if not self._camera.loop:
                    self._health.ended()
                    self._news.set()
                    return
            except EdgedError as error:
                self._health.failed(redact(str(error)))
            except Exception as error:  # drivers and libraries raise any class
                self._health.failed(redact(f"{type(error).__name__}: {error}"))
            self._news.set()
            self._stopped.wait(backoff.after(time.monotonic() - began))

    def _stream(self) -> None:
        """Stream until the source ends. Raises errors of the source and the daemon."""
        camera, begin = self._camera, self._begin
        newest = camera.mode == "freshest"
        with (
            open_source(
                camera.source,
                latest=newest and not _is_file(camera.source),
                max_fps=_fps(camera),
                loop=camera.loop,
                hardware=camera.hardware,
            ) as source,
            Client(begin.target) as client,
        ):
            self._source = source
            if self._stopped.is_set():
                return
            results = client.stream(
                camera.model,
                _Counted(self._outputs.tap(source), source, self._on_frame),
                camera=begin.name,
                score=camera.score,
                every_frame=camera.mode == "every_frame",
                max_fps=camera.max_fps,
                max_staleness=camera.max_staleness,
                weight=camera.weight,
                priority=camera.priority,
                track=camera.is_tracked,
                region=_region(camera),
                rotation=camera.rotation,
                class_agnostic=camera.class_agnostic or None,
                reconnect=True,
            )
            with results:
                for result in results:
                    self._on_result(result)

    def _on_frame(self) -> None:
        first = self._health.frames == 0
        self._health.frame(time.monotonic())
        if first:
            self._news.set()

    def _on_result(self, result: Result) -> None:
        if result.error is None:
            self._health.works()
            self._size = result.width, result.height
        else:
            self._health.error = result.error[1]
        self._outputs.on_result(result)

    def _report(self) -> None:
        """Send a report about once a second, and immediately after the first frame, a failure or the end."""
        while not self._stopped.is_set():
            self._send_report()
            self._news.wait(_PERIOD)
            self._news.clear()

    def _send_report(self) -> None:
        now, source, outputs = time.monotonic(), self._source, self._outputs
        state, error = self._health.state(now, "" if source is None else redact(source.problem))
        outputs.pass_time(now, is_streaming=state is State.STREAMING)
        with contextlib.suppress(BrokenPipeError):  # the daemon has ended, and this process ends too
            self._send(
                Report(
                    state,
                    error,
                    frames=self._health.frames,
                    damaged=0 if source is None else source.damaged,
                    reconnections=0 if source is None else source.reconnections,
                    width=self._size[0],
                    height=self._size[1],
                    dark_s=outputs.scene.dark_s,
                    frozen_s=outputs.scene.frozen_s,
                    zones=outputs.zones(),
                    lines=outputs.lines(),
                    sinks=outputs.problems(),
                )
            )


class _Counted(Iterator[Picture | Captured]):
    """Iterates over the frames of a source, and calls `on_frame` for each frame."""

    def __init__(self, frames: Iterator[Picture | Captured], source: Source, on_frame: Callable[[], None]) -> None:
        self._frames, self._source, self._on_frame = frames, source, on_frame

    def __next__(self) -> Picture | Captured:
        frame = next(self._frames)
        self._on_frame()
        return frame

    def interrupt(self) -> None:
        self._source.interrupt()

    def close(self) -> None:
        self._source.close()


def _is_file(source: str) -> bool:
    return "://" not in source and not source.startswith(("/dev/", "webcam:", "gst:"))


def _fps(camera: Camera) -> float:
    """Return the source's highest rate in frames a second, 0 for no limit. Picture files have no times, so they get a
    default rate."""
    source = Path(camera.source)
    is_picture = _is_file(camera.source) and (source.is_dir() or source.suffix.lower() in PICTURE_SUFFIXES)
    return camera.max_fps or (_PICTURES_FPS if is_picture else 0.0)


def _region(camera: Camera) -> Region | None:
    if not camera.region:
        return None
    x, y, width, height = camera.region
    return x, y, width, height

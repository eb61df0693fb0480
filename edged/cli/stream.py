"""`edged stream`: sends a camera, a video or a folder of pictures to a model and shows the results."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.text import Text

from edged.cli import common
from edged.cli import stream_options as options
from edged.errors import EdgedError, InvalidInput

if TYPE_CHECKING:
    from edged.client.requests import FrameCounts
    from edged.client.result import Result
    from edged.client.sources import Source

_WINDOW_S = 2.0


class StreamStats:
    """Looks at results as they pass. Rate and age are means over the last two seconds. `line` may be called by
    another thread."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._busy = threading.Lock()
        self._recent: deque[tuple[float, float]] = deque()
        self._skipped = self._failed = 0
        self._last: Result | None = None
        self.error = ""

    def on_result(self, result: Result) -> None:
        self._skipped += result.skipped
        if result.error is not None:
            self._failed += 1
            self.error = f"{result.error[1]} ({result.error[0]})"
            return
        with self._busy:
            self._last = result
            self._recent.append((time.monotonic(), result.age_ms))

    def line(self) -> str:
        now = time.monotonic()
        with self._busy:
            while self._recent and now - self._recent[0][0] > _WINDOW_S:
                self._recent.popleft()
            ages = [age for _, age in self._recent]
        if self._last is None:
            return f"failed {self._failed}: {self.error}" if self.error else "waiting for the first result"
        rate = len(ages) / max(0.001, min(_WINDOW_S, now - self._start))
        age = sum(ages) / max(1, len(ages))
        parts = [f"{rate:.1f} fps", f"age {age:.0f} ms", f"skipped {self._skipped}"]
        parts += [f"{len(self._last.detections)} detections", *([self._last.backend] if self._last.backend else [])]
        if self._failed:
            parts.append(f"failed {self._failed}: {self.error}")
        return "  ".join(parts)

    def summary(self, counts: FrameCounts, source: Source) -> str:
        """Return the final counts; those that are usually zero only if they are not."""
        took = time.monotonic() - self._start
        parts = [
            f"{counts.sent} frames sent",
            f"{counts.answered} answered",
            f"{counts.skipped} skipped",
            f"{counts.failed} failed",
        ]
        if counts.waiting > 0:
            parts.append(f"{counts.waiting} without an answer")
        if source.skipped:
            parts.append(f"{source.skipped} skipped at the source")
        if source.damaged:
            parts.append(f"{source.damaged} damaged")
        return f"{', '.join(parts)} in {took:.1f} s ({counts.answered / max(took, 0.001):.1f} fps)"


if TYPE_CHECKING:
    from edged.client.result import Result
    from edged.client.sinks import Sink, Sinks
    from edged.client.sources import Source
    from edged.client.stream import Stream


def stream(
    model: Annotated[str, typer.Argument(help="The model's name; see edged models.")],
    source: Annotated[
        str,
        typer.Argument(
            help="A video file, a picture or a folder of them; rtsp://..., http://... (Motion JPEG, HLS); /dev/video0 "
            "or v4l2:///dev/video0?width=1280&height=720; csi://0; gst:PIPELINE; shm://NAME."
        ),
    ],
    target: common.Target = None,
    json: common.Json = False,
    camera: Annotated[str, typer.Option("--camera", metavar="NAME", help="The camera's name in results.")] = "camera",
    score: common.Score = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0.0, help="Stop after so many seconds.")] = None,
    pace: options.Pace = True,
    loop: options.Loop = False,
    latest: options.Latest = None,
    send_fps: options.SendFps = 0.0,
    hardware: options.Hardware = True,
    every_frame: options.EveryFrame = False,
    max_fps: options.MaxFps = 0.0,
    max_staleness: options.MaxStaleness = 0.0,
    weight: options.Weight = 1.0,
    priority: options.Priority = 0,
    track: options.Track = False,
    region: options.RegionText = None,
    rotation: options.Rotation = 0,
    class_agnostic: options.ClassAgnostic = None,
    reconnect: options.Reconnect = True,
    lines: options.Lines = None,
    save: options.Save = None,
    preview: options.PreviewAt = None,
    mqtt: options.MqttUrl = None,
) -> None:
    """Stream a video or camera to the daemon; print the results.

    Prints a line each second: rate, age of the answer, skipped frames, detections.
    It reopens a camera that goes away, and reconnects to a restarted daemon. It ends with a summary, also after Ctrl-C,
    which completes files.

    \b
    edged stream doors rtsp://user:password@camera/main --camera hall --preview 8090
    edged stream doors hall.mp4 --no-pace --save found.mp4 --lines found.jsonl
    edged stream doors /dev/video0 --max-fps 5 --track --json | jq .predictions
    edged stream doors 'gst:v4l2src ! videoconvert' --region 0,200,640,0
    edged stream doors csi://0 --mqtt mqtt://edged@homeassistant.local/edged
    """
    from edged.client.client import Client
    from edged.client.sources import open_source

    with (
        open_source(source, pace=pace, latest=latest, max_fps=send_fps, loop=loop, hardware=hardware) as frames,
        Client(target) as client,
        _sinks(json, lines, save, preview, mqtt, camera, lossless=not frames.paced or every_frame) as sinks,
    ):
        results = client.stream(
            model,
            sinks.tap(frames),
            camera=camera,
            score=score,
            lossless=not frames.paced and not every_frame,
            every_frame=every_frame,
            max_fps=max_fps,
            max_staleness=max_staleness,
            weight=weight,
            priority=priority,
            track=track,
            region=options.region(region),
            rotation=rotation,
            class_agnostic=class_agnostic,
            reconnect=reconnect,
        )
        with results, _limited(frames, seconds):
            stats = StreamStats()
            _follow(results, frames, stats, sinks, json)
    if not results.counts.answered and (results.counts.failed or not results.counts.sent):
        raise EdgedError(f"no frame was answered: {stats.error or 'the source gave none'}")


@contextlib.contextmanager
def _sinks(
    json: bool,
    lines: Path | None,
    save: Path | None,
    preview: str | None,
    mqtt: str | None,
    camera: str,
    lossless: bool,
) -> Iterator[Sinks]:
    """Open the requested sinks; close them together, also if one cannot be opened."""
    from edged.client import sinks as kinds
    from edged.client.sinks.mqtt import broker

    asked: list[Callable[[], Sink]] = []
    if json:
        asked.append(kinds.JsonLines)
    if lines is not None:
        asked.append(lambda: kinds.JsonLines(lines))
    if save is not None:
        if save.suffix.lower() != ".mp4":
            raise InvalidInput(f"--save {str(save)!r} does not end in .mp4; only MP4 is written")
        asked.append(lambda: kinds.Mp4(save, lossless=lossless))
    if preview is not None:
        host, port = options.listening(preview)
        asked.append(lambda: kinds.Preview(port, host, camera))
    if mqtt is not None:
        asked.append(lambda: kinds.Mqtt(broker(mqtt), camera))
    with kinds.Sinks([]) as opened:
        for open_one in asked:
            sink = opened.add(open_one())
            if isinstance(sink, kinds.Preview):
                common.err.print(f"preview at {sink.url}", soft_wrap=True)
        yield opened


def _follow(results: Stream, source: Source, stats: StreamStats, sinks: Sinks, json: bool) -> None:
    """Show the results to the end of the stream: a live line on a terminal, a line a second in a log or pipe. The
    summary is printed unless the daemon refused the stream."""
    redraws = common.out.is_terminal and not common.out.is_dumb_terminal and not json
    # Redrawn by its own thread, so that a camera that stops sending is seen to stop.
    live = Live(
        get_renderable=lambda: Text(stats.line(), no_wrap=True, overflow="ellipsis"), console=common.out, transient=True
    )
    due = time.monotonic() + 1.0
    is_refused = False
    try:
        with live if redraws else contextlib.nullcontext():
            for result in results:
                stats.on_result(result)
                sinks.on_result(result)
                if not redraws and not json and time.monotonic() >= due:
                    due = time.monotonic() + 1.0
                    common.out.print(stats.line(), soft_wrap=True)
    except EdgedError:
        is_refused = not (results.counts.answered or results.counts.failed)
        raise
    finally:
        if not is_refused:
            # If a program reads standard output, it holds results only.
            (common.err if json else common.out).print(stats.summary(results.counts, source), soft_wrap=True)


@contextlib.contextmanager
def _limited(frames: Source, seconds: float | None) -> Iterator[None]:
    """Ends the frames after so long; what was sent by then is still answered."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, frames.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

"""`edged stream`: sends a camera, a video or a folder of pictures to the daemon and shows the results."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.text import Text

from edged.cli import common
from edged.errors import EdgedError, InvalidInput
from edged.formatting import many

if TYPE_CHECKING:
    from edged.client.requests import FrameCounts
    from edged.client.result import Result
    from edged.client.sinks import Sink, Sinks
    from edged.client.sources import Source
    from edged.client.stream import Stream

_WINDOW_S = 2.0
_MOST_CLASSES = 10  # most classes in the summary


class StreamStats:
    """Statistics of a stream's results. Rate and age are means over the last two seconds. Any thread can call
    `line`."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._busy = threading.Lock()
        self._recent: deque[tuple[float, float]] = deque()
        self._skipped = self._failed = 0
        self._last: Result | None = None
        self._found: Counter[str] = Counter()  # detections by label
        self._objects: dict[str, set[int]] = {}  # ids of tracked objects by label
        self.error = ""

    def on_result(self, result: Result) -> None:
        self._skipped += result.skipped
        if result.error is not None:
            self._failed += 1
            self.error = f"{result.error[1]} ({result.error[0]})"
            return
        for each in result.detections:
            self._found[each.label] += 1
            if each.tracker_id is not None:
                self._objects.setdefault(each.label, set()).add(each.tracker_id)
        if best := next(iter(result.classes), None):
            self._found[best.label] += 1
        with self._busy:
            self._last = result
            self._recent.append((time.monotonic(), result.age_ms))
            self._forget(self._recent[-1][0])

    def _forget(self, now: float) -> None:
        while self._recent and now - self._recent[0][0] > _WINDOW_S:
            self._recent.popleft()

    def line(self) -> str:
        now = time.monotonic()
        with self._busy:
            self._forget(now)
            ages = [age for _, age in self._recent]
        if self._last is None:
            return f"failed {self._failed}: {self.error}" if self.error else "waiting for the first result"
        rate = len(ages) / max(0.001, min(_WINDOW_S, now - self._start))
        age = sum(ages) / max(1, len(ages))
        parts = [f"{rate:.1f} fps", f"age {age:.0f} ms", f"skipped {self._skipped}"]
        parts += [many(len(self._last.detections), "detection"), *([self._last.backend] if self._last.backend else [])]
        if self._failed:
            parts.append(f"failed {self._failed}: {self.error}")
        return "  ".join(parts)

    def summary(self, counts: FrameCounts, source: Source) -> str:
        """Return the final counts, and the detections by class. Rare counts, such as damaged frames, are left out if
        they are zero."""
        took = time.monotonic() - self._start
        parts = [
            f"{many(counts.sent, 'frame')} sent",
            f"{counts.answered} answered",
            f"{counts.skipped} skipped",
            f"{counts.failed} failed",
        ]
        if counts.waiting > 0:
            parts.append(f"{counts.waiting} without an answer")
        line = f"{', '.join(parts)} in {took:.1f} s ({counts.answered / max(took, 0.001):.1f} fps)"
        rare = {"skipped": source.skipped, "damaged": source.damaged}
        lost = ", ".join(f"{count} {how}" for how, count in rare.items() if count)
        return "\n".join([line, *([f"at the source: {lost}"] if lost else []), *self._classes()])

    def _classes(self) -> Iterator[str]:
        """Yield one line of counts by class; no line if nothing was found. With tracking, each tracked object counts
        once. Without tracking, the detections of all frames count."""
        counts = Counter({label: len(ids) for label, ids in self._objects.items()}) or self._found
        if counts:
            what = "objects" if self._objects else "detections in all frames"
            shown = [f"{label} {count}" for label, count in counts.most_common(_MOST_CLASSES)]
            rest = len(counts) - len(shown)
            yield f"{what}: {', '.join([*shown, *([f'and {rest} more'] if rest else [])])}"


def stream(
    model: Annotated[
        str, typer.Argument(help="The model's or pipeline's name; see edged models list, edged pipelines.")
    ],
    source: Annotated[
        str,
        typer.Argument(
            help="A video file, a picture or a folder of them; a WAV file (mono, 16 bits); "
            "rtsp://..., http://... (Motion JPEG, HLS); /dev/video0 "
            "or v4l2:///dev/video0?width=1280&height=720; csi://0; gst:PIPELINE; shm://NAME."
        ),
    ],
    target: common.Target = None,
    json: common.Json = False,
    camera: Annotated[str, typer.Option("--camera", metavar="NAME", help="The camera's name in results.")] = "camera",
    score: common.Score = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0.0, help="Stop after this many seconds.")] = None,
    pace: Annotated[
        bool,
        typer.Option("--pace/--no-pace", help="Play a video in real time, or as fast as frames are answered."),
    ] = True,
    loop: Annotated[bool, typer.Option("--loop", help="Repeat a file or folder.")] = False,
    latest: Annotated[
        bool | None,
        typer.Option(
            "--latest/--in-order",
            help="Send only the newest frame, or every frame. Default: newest for cameras, every for files.",
        ),
    ] = None,
    send_fps: Annotated[
        float, typer.Option("--send-fps", min=0.0, metavar="N", help="Send at most N frames a second; 0: no limit.")
    ] = 0.0,
    hardware: Annotated[
        bool, typer.Option("--hardware/--no-hardware", help="Decode video in hardware if possible.")
    ] = True,
    every_frame: Annotated[
        bool, typer.Option("--every-frame", help="Answer all frames in order, without skipping any.")
    ] = False,
    max_fps: Annotated[
        float, typer.Option("--max-fps", min=0.0, metavar="N", help="Answer at most N frames a second; 0: no limit.")
    ] = 0.0,
    max_staleness: Annotated[
        float,
        typer.Option(
            "--max-staleness",
            min=0.0,
            metavar="SECONDS",
            help="Skip frames that are older than this when their turn comes; 0: no limit.",
        ),
    ] = 0.0,
    weight: Annotated[
        float, typer.Option("--weight", help="Share of the engine relative to other cameras of the model.")
    ] = 1.0,
    priority: Annotated[
        int, typer.Option("--priority", min=-100, max=100, help="Cameras with a higher priority always go first.")
    ] = 0,
    track: Annotated[
        bool, typer.Option("--track", help="Give each object an id that it keeps from frame to frame.")
    ] = False,
    region: Annotated[
        str | None,
        typer.Option(
            "--region", metavar="X,Y,W,H", help="Use only this part of the picture, in pixels; size 0: to the edge."
        ),
    ] = None,
    rotation: Annotated[
        int,
        typer.Option("--rotation", metavar="DEGREES", help="Rotate the picture 90, 180 or 270 degrees clockwise."),
    ] = 0,
    class_agnostic: Annotated[
        bool | None,
        typer.Option("--class-agnostic/--by-class", help="Whether boxes of different classes suppress each other."),
    ] = None,
    reconnect: Annotated[
        bool, typer.Option("--reconnect/--no-reconnect", help="If the daemon goes away, reconnect or end.")
    ] = True,
    lines: Annotated[
        Path | None,
        typer.Option("--lines", metavar="FILE", help="Append each result to a file, as one line of JSON."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE.mp4", help="Write a video of the answered frames with their detections."),
    ] = None,
    preview: Annotated[
        str | None,
        typer.Option(
            "--preview",
            metavar="[HOST:]PORT",
            help="Show the live picture in browsers, by default only on this machine.",
        ),
    ] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(
            "--mqtt",
            metavar="URL",
            help="Publish detections to a broker and Home Assistant: mqtt://user@host:1883/prefix?rate=2, or mqtts://. "
            "The password is read from EDGED_MQTT_PASSWORD, or the file in EDGED_MQTT_PASSWORD_FILE.",
        ),
    ] = None,
) -> None:
    """Stream a video or camera to the daemon; print the results.

    It prints a line each second: rate, age of the answers, skipped frames, detections. It reopens a camera that goes
    away, and reconnects to a restarted daemon. At the end, also after Ctrl-C, it completes files and prints a summary.

    \b
    edged stream doors rtsp://user:password@camera/main --camera hall --preview 8090
    edged stream doors hall.mp4 --no-pace --save found.mp4 --lines found.jsonl
    edged stream doors /dev/video0 --max-fps 5 --track --json | jq .predictions
    edged stream doors 'gst:v4l2src ! videoconvert' --region 0,200,640,0
    edged stream doors csi://0 --mqtt mqtt://edged@homeassistant.local/edged
    """
    from edged.client.client import Client
    from edged.client.sources import open_source
    from edged.client.sources.wav import Wav

    with contextlib.ExitStack() as stack:
        opened = open_source(source, pace=pace, latest=latest, max_fps=send_fps, loop=loop, hardware=hardware)
        frames = stack.enter_context(opened)
        is_sound = isinstance(frames, Wav)
        if is_sound and (save is not None or preview is not None or send_fps):
            raise InvalidInput("--save, --preview and --send-fps cannot be used with a sound; leave them out")
        client = stack.enter_context(Client(target))
        lossless = not frames.paced or every_frame
        sinks = stack.enter_context(_sinks(json, lines, save, preview, mqtt, camera, lossless=lossless))
        in_order = every_frame or (is_sound and frames.paced)  # a skipped chunk would cut the sound
        results = client.stream(
            model,
            sinks.tap(frames),
            camera=camera,
            score=score,
            lossless=not frames.paced and not every_frame,
            every_frame=in_order,
            max_fps=max_fps,
            max_staleness=max_staleness,
            weight=weight,
            priority=priority,
            track=track,
            region=common.parse_region(region),
            rotation=rotation,
            class_agnostic=class_agnostic,
            reconnect=reconnect,
        )
        with results, _limited(frames, seconds):
            stats = StreamStats()
            _follow(results, frames, stats, sinks, json)
    if not results.counts.answered and (results.counts.failed or not results.counts.sent):
        raise EdgedError(f"no frame was answered: {stats.error or 'the source had no frames'}")


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
    """Open the requested sinks and close all of them at the end, also if a sink cannot be opened."""
    from edged.client import sinks as kinds
    from edged.client.sinks.mqtt import broker
    from edged.client.sinks.preview import parse_address

    asked: list[Callable[[], Sink]] = []
    if json:
        asked.append(kinds.JsonLines)
    if lines is not None:
        asked.append(lambda: kinds.JsonLines(lines))
    if save is not None:
        if save.suffix.lower() != ".mp4":
            raise InvalidInput(f"--save {str(save)!r} does not end in .mp4; only MP4 is supported")
        asked.append(lambda: kinds.Mp4(save, lossless=lossless))
    if preview is not None:
        place = parse_address(preview)
        asked.append(lambda: kinds.Preview(*place, camera))
    if mqtt is not None:
        asked.append(lambda: kinds.Mqtt(broker(mqtt), camera))
    with kinds.Sinks([]) as opened:
        for open_one in asked:
            sink = opened.add(open_one())
            if isinstance(sink, kinds.Preview):
                common.err.print(f"preview at {sink.url}", soft_wrap=True)
        yield opened


def _follow(results: Stream, source: Source, stats: StreamStats, sinks: Sinks, json: bool) -> None:
    """Show the results until the stream ends: a live line on a terminal, a line per second in a log or pipe. Print the
    summary unless the daemon refused the stream."""
    redraws = common.out.is_terminal and not common.out.is_dumb_terminal and not json
    # A thread redraws the line, so that it also changes when a camera stops sending.
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
            # With --json, standard output contains only results.
            (common.err if json else common.out).print(stats.summary(results.counts, source), soft_wrap=True)


@contextlib.contextmanager
def _limited(frames: Source, seconds: float | None) -> Iterator[None]:
    """Stop reading frames after `seconds`. Frames that were sent before are still answered."""
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

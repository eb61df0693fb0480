"""`edged stream`: a camera, a video or a folder of pictures through a model, for as long as it lasts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.live import Live
from rich.text import Text

from edged.cli import common
from edged.cli.meter import Meter
from edged.errors import EdgedError

if TYPE_CHECKING:
    from edged.client.result import Result
    from edged.client.sources import Source
    from edged.client.stream import Stream

Show = Callable[["Result"], None]


def stream(
    model: Annotated[str, typer.Argument(help="The model's name; see edged models.")],
    source: Annotated[
        str, typer.Argument(help="rtsp://..., /dev/video0, webcam:0, a video file, or a folder of pictures.")
    ],
    target: common.Target = None,
    json: common.Json = False,
    camera: Annotated[str, typer.Option("--camera", metavar="NAME", help="The camera's name in results.")] = "camera",
    score: common.Score = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.0, help="Stop after so many seconds.", show_default=False)
    ] = None,
    pace: Annotated[
        bool, typer.Option("--pace/--no-pace", help="Play a video at its own speed, or send the next when answered.")
    ] = True,
) -> None:
    """Stream frames to the daemon and show what comes back: rate, age, skipped frames, detections.

    With --json one object a line for every result. Ends with a summary; Ctrl-C ends it at any time.
    """
    from edged.client.client import Client
    from edged.client.sources import open_source

    with open_source(source, pace=pace) as frames, Client(target) as client:
        results = client.stream(model, frames, camera=camera, score=score, lossless=not frames.paced)
        with results, _limited(frames, seconds):
            meter = Meter()
            _follow(results, frames, meter, json)
    if results.ledger.failed and not results.ledger.answered:
        raise EdgedError(f"no frame was answered: {meter.error}")


def register(app: typer.Typer) -> None:
    app.command("stream")(common.command(stream))


def _follow(results: Stream, source: Source, meter: Meter, json: bool) -> None:
    """To the end of the stream, however it ends; the summary is always printed."""
    redraws = common.out.is_terminal and not common.out.is_dumb_terminal
    display = _json_lines() if json else _live_line(meter) if redraws else _plain_lines(meter)
    try:
        with display as show:
            for result in results:
                meter.on_result(result)
                show(result)
    finally:
        # Standard output is for results alone where a program reads it.
        (common.err if json else common.out).print(meter.summary(results.ledger, source), soft_wrap=True)


@contextlib.contextmanager
def _json_lines() -> Iterator[Show]:
    yield lambda result: common.print_json(msgspec.json.encode(_line(result)))


@contextlib.contextmanager
def _live_line(meter: Meter) -> Iterator[Show]:
    """Redrawn by its own thread, so that a camera that stops sending is seen to stop."""
    with Live(
        get_renderable=lambda: Text(meter.line(), no_wrap=True, overflow="ellipsis"),
        console=common.out,
        transient=True,
    ):
        yield lambda _: None


@contextlib.contextmanager
def _plain_lines(meter: Meter) -> Iterator[Show]:
    """One line a second, for a log or a pipe."""
    due = time.monotonic() + 1.0

    def show(_: Result) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + 1.0
            common.out.print(meter.line(), soft_wrap=True)

    yield show


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


def _line(result: Result) -> dict[str, object]:
    error = None if result.error is None else {"code": result.error[0], "message": result.error[1]}
    return {
        "camera": result.camera,
        "sequence": result.sequence,
        "age_ms": result.age_ms,
        "skipped": result.skipped,
        "error": error,
        **result.json(),
    }

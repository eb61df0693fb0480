"""The output of a demo: a live table on a terminal, otherwise a line every two seconds; then the summary."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edged.api_types import EngineInfo
from edged.client.frames import Picture
from edged.client.result import Result
from edged.client.sinks.sink import paint
from edged.demo.life import Life, Line, answering, cosine, outcome, title
from edged.demo.report import IOU, SCORE, FrameCounts, Outcome, Report
from edged.formatting import many
from edged.vision.draw import encode_jpeg
from edged.vision.image import Image

_PLAIN_S = 2.0
_MOST_CAMERAS = 12  # rows; a terminal has about 24
_COLOURS = {
    "serving": "bold green",
    "ready": "green",
    "building": "yellow",
    "verifying": "yellow",
    "queued": "yellow",
    "failed": "red",
    "rejected": "red",
}


class View:
    """Shows a demo. Times are seconds since the daemon's launch. On a terminal, events scroll above a table that each
    `show` redraws. Otherwise `show` prints a line about the cameras every two seconds, and a line about the engines if
    they changed."""

    def __init__(self, console: Console, live: Live | None = None) -> None:
        self._console, self._live = console, live
        self._shown = 0.0
        self._engines = ""

    def heading(self, text: str) -> None:
        self._shown = 0.0
        self._print(Text(text, "bold"), 0)

    def page(self, address: str) -> None:
        self._console.print(Text.assemble("page: ", (address, "bold cyan")), soft_wrap=True)

    def event(self, line: Line) -> None:
        self._print(Text.assemble((f"{line.at_s:6.1f} s  ", "cyan"), line.text), 10)

    def show(self, now: float, counts: FrameCounts, life: Life) -> None:
        if self._live is not None:
            self._live.update(Group(Text(), _cameras(counts), Text(), _engines(life)), refresh=True)
            return
        if now < self._shown + _PLAIN_S:
            return
        self._shown = now
        self._console.print(f"{now:6.1f} s    {_cameras_line(counts)}", soft_wrap=True)
        engines = " | ".join(" ".join(filter(None, _engine_row(engine))) for engine in life.engines) or "no engine"
        if engines != self._engines:
            self._console.print(f"            {engines}", soft_wrap=True)
        self._engines = engines

    def _print(self, text: Text, indent: int) -> None:
        self._console.print(wrapped(text, self._console, indent), soft_wrap=True)


def wrapped(text: Text, console: Console, indent: int) -> Text:
    """Wrap a line at the terminal's width; further lines are indented. If the output is not a terminal, or if a word
    (such as a path) would be broken, return the line unchanged."""
    width = max(console.width - indent, 20)
    if not console.is_terminal or any(len(word) > width for word in text.plain.split()):
        return text
    lines = text.wrap(console, width)
    for line in lines[1:]:
        line.pad_left(indent)
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


@contextlib.contextmanager
def open_view(console: Console) -> Iterator[View]:
    """Open the view for a console: live for a terminal, otherwise plain."""
    if not console.is_terminal:
        yield View(console)
        return
    # Redrawn only on changes, not by a thread, since the cameras need the processor.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield View(console, live)


def _cameras_line(counts: FrameCounts) -> str:
    """Describe every camera in a few words."""
    words = [
        f"{name} {rate} fps, {age}, {skipped} skipped" + (f", {failed} failed" if failed != "0" else "")
        for name, rate, age, skipped, failed in _camera_rows(counts)[:_MOST_CAMERAS]
    ]
    return " | ".join(words + _more(counts))


def _cameras(counts: FrameCounts) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("camera", no_wrap=True)
    for name in ("fps", "age", "skipped", "failed"):
        table.add_column(name, justify="right", no_wrap=True, min_width=7)
    for row in _camera_rows(counts)[:_MOST_CAMERAS]:
        table.add_row(*row)
    for more in _more(counts):
        table.add_row(more)
    return table


def _engines(life: Life) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in ("engine", "state"):
        table.add_column(name, no_wrap=True, min_width=10)
    for name in ("inference", "agreement"):
        table.add_column(name, justify="right", no_wrap=True)
    for engine in life.engines:
        name, state, latency = _engine_row(engine)
        agreement = cosine(engine)
        table.add_row(
            name, Text(state, _COLOURS.get(state, "dim")), latency, "" if agreement is None else f"{agreement:.4f}"
        )
    return table


def _camera_rows(counts: FrameCounts) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for camera in counts.cameras:
        (rate, age), total = camera.lately(), camera.totals()
        shown = "no answer" if age is None else f"{age:.0f} ms"
        rows.append((camera.name, f"{rate:.1f}", shown, str(total.skipped), str(total.failed)))
    return rows


def _more(counts: FrameCounts) -> list[str]:
    hidden = len(counts.cameras) - _MOST_CAMERAS
    return [f"and {hidden} more"] if hidden > 0 else []


def _engine_row(engine: EngineInfo) -> tuple[str, str, str]:
    speed = "" if engine.speed is None or engine.is_reference else f"{engine.speed:.1f}x"
    return title(engine), engine.state, speed


_LABEL = 9  # characters
_NEXT = "Now try your own model and camera: edged up MODEL.onnx rtsp://USER:PASSWORD@CAMERA"


def render(result: Outcome, files: tuple[Path, ...], console: Console) -> Text:
    """Return the summary: both runs, the measurements, the written `files`, and the verdict if the demo had no
    problems. The caller prints problems as errors."""
    report = result.report
    labelled = [
        *_events("start", result.cold, None),
        *_events("restart", result.warm, result.cold),
        *_others(result.warm if result.warm.engines else result.cold),
        *_figures(report),
        *(_line("wrote", str(path)) for path in files),
    ]
    last = [] if report.problems else [Text(), _verdict(report), Text(_NEXT)]
    lines = [wrapped(line, console, _LABEL) for line in labelled] + [wrapped(line, console, 0) for line in last]
    return Text("\n").join([Text(), *lines])


def _events(label: str, life: Life, before: Life | None) -> Iterator[Text]:
    for key, at in life.first_by.items():
        yield _line(label, Text.assemble((f"{at:.1f} s  ", "cyan"), answering(life, key, before)))
        label = ""


def _others(life: Life) -> Iterator[Text]:
    """Yield lines about engines that do not serve."""
    for engine in life.engines:
        if engine.state in ("rejected", "failed"):
            yield _line("not used", Text(outcome(engine), "red"))
        elif engine.state == "ready":
            yield _line("reserve", outcome(engine))


def _figures(report: Report) -> Iterator[Text]:
    yield _line(
        "frames",
        f"{report.frames_sent} sent = {report.frames_answered} answered"
        f" + {report.frames_skipped} skipped (overtaken by newer ones) + {report.frames_failed} failed",
    )
    yield _line("rate", f"{report.fps:.1f} answers a second; {many(report.cameras, 'camera')}, {report.seconds:.0f} s")
    if report.p50_ms is not None and report.p99_ms is not None:
        yield _line("age", f"p50 {report.p50_ms:.1f} ms, p99 {report.p99_ms:.1f} ms from capture to answer")
    if report.precision is not None and report.recall is not None:
        found = f"precision {report.precision:.3f}, recall {report.recall:.3f} against what was drawn"
        yield _line("found", f"{found} (IoU {IOU:g}, score {SCORE:g})")


def _verdict(report: Report) -> Text:
    if report.unfinished:
        busy = f"No frame failed. Your box is busy: the faster engine is still being built ({report.unfinished})."
        return Text(busy, "bold green")
    none = "no frame failed, no engine is faster here than the unoptimised one"
    swaps = f"{many(report.swaps, 'swap')} without a failed frame" if report.swaps else none
    return Text(f"All checks passed: {swaps}, and the restart built nothing.", "bold green")


def _line(label: str, words: Text | str) -> Text:
    return Text.assemble((f"{label:<{_LABEL}}", "dim"), words)


MAX_TILES = 9  # cameras on one picture
_TILE_WIDTH = 640


def paint_snapshot(seen: Iterable[tuple[Picture, Result]]) -> bytes:
    """Return a JPEG with the annotated pictures side by side. If there are several, each is at most 640 pixels wide."""
    tiles = [_tile(picture, result) for picture, result in seen]
    return encode_jpeg(tiles[0] if len(tiles) == 1 else _mosaic(tiles))


def _tile(picture: Picture, result: Result) -> Image:
    return paint(picture, result, f"{result.camera}  {result.backend}  {result.timings.infer_ms:.1f} ms")


def _mosaic(tiles: Sequence[Image]) -> Image:
    """Arrange the tiles in a grid that is as square as possible. Resize each tile to the size of the first tile, at
    most 640 pixels wide. Unused places stay dark."""
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    width = min(_TILE_WIDTH, tiles[0].shape[1])
    height = max(1, round(tiles[0].shape[0] * width / tiles[0].shape[1]))
    canvas = np.full((rows * height, columns * width, 3), 24, np.uint8)
    for number, tile in enumerate(tiles):
        y, x = number // columns * height, number % columns * width
        canvas[y : y + height, x : x + width] = cv2.resize(tile, (width, height), interpolation=cv2.INTER_AREA)
    return canvas

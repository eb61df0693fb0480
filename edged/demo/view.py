"""What is on the screen while a demonstration runs: a live table on a terminal, otherwise a line now and then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edged.api_types import EngineInfo
from edged.demo.life import Life, cosine, title
from edged.demo.story import Line
from edged.demo.tally import Tally

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


class View(Protocol):
    """Is told what happens. Times are seconds since the daemon was launched."""

    def heading(self, text: str) -> None: ...
    def event(self, line: Line) -> None: ...
    def show(self, now: float, tally: Tally, life: Life) -> None: ...


class LiveView:
    """Events scroll by above a table that is drawn anew at each look."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console, self._live = console, live

    def heading(self, text: str) -> None:
        self._console.print(Text(text, "bold"))

    def event(self, line: Line) -> None:
        self._console.print(event(line), soft_wrap=True)

    def show(self, now: float, tally: Tally, life: Life) -> None:
        self._live.update(Group(Text(), _cameras(tally), Text(), _engines(life)), refresh=True)


class PlainView:
    """Events as they come, and every two seconds a line on the cameras, with one on the engines where they changed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0.0
        self._engines = ""

    def heading(self, text: str) -> None:
        self._shown = 0.0
        self._console.print(text, soft_wrap=True)

    def event(self, line: Line) -> None:
        self._console.print(event(line), soft_wrap=True)

    def show(self, now: float, tally: Tally, life: Life) -> None:
        if now < self._shown + _PLAIN_S:
            return
        self._shown = now
        self._console.print(f"{now:6.1f} s    {cameras_line(tally)}", soft_wrap=True)
        engines = engines_line(life)
        if engines != self._engines:
            self._console.print(f"            {engines}", soft_wrap=True)
        self._engines = engines


@contextlib.contextmanager
def open_view(console: Console) -> Iterator[View]:
    """The view that suits where the console writes to."""
    if not console.is_terminal:
        yield PlainView(console)
        return
    # Drawn when there is something new and not by a thread of its own: the cameras need the processor.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveView(console, live)


def event(line: Line) -> Text:
    return Text.assemble((f"{line.at_s:6.1f} s  ", "cyan"), line.text)


def cameras_line(tally: Tally) -> str:
    """Every camera in a few words."""
    words = [
        f"{name} {rate} fps, {age}, {skipped} skipped" + (f", {failed} failed" if failed != "0" else "")
        for name, rate, age, skipped, failed in _camera_rows(tally)[:_MOST_CAMERAS]
    ]
    return " | ".join(words + _more(tally))


def engines_line(life: Life) -> str:
    """Every engine in a few words."""
    return " | ".join(" ".join(word for word in _engine_row(engine) if word) for engine in life.engines) or "no engine"


def _cameras(tally: Tally) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("camera", no_wrap=True)
    for name in ("fps", "age", "skipped", "failed"):
        table.add_column(name, justify="right", no_wrap=True, min_width=7)
    for row in _camera_rows(tally)[:_MOST_CAMERAS]:
        table.add_row(*row)
    for more in _more(tally):
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


def _camera_rows(tally: Tally) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for camera in tally.cameras:
        rate, age = camera.lately()
        shown = "no answer" if age is None else f"{age:.0f} ms"
        rows.append((camera.name, f"{rate:.1f}", shown, str(camera.skipped), str(camera.failed)))
    return rows


def _more(tally: Tally) -> list[str]:
    hidden = len(tally.cameras) - _MOST_CAMERAS
    return [f"and {hidden} more"] if hidden > 0 else []


def _engine_row(engine: EngineInfo) -> tuple[str, str, str]:
    speed = "" if engine.speed is None else f"{engine.speed:.1f}x"
    return title(engine), engine.state, speed

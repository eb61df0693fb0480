"""The screen of `edged top` in a terminal. It reads keys, draws lines, and restores the terminal at the end."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from edged.cli.top.picture import Order, picture
from edged.cli.top.watch import Watch

_TICK_S = 0.1  # seconds between checks for keys and changes
_STALE_S = 1.0  # seconds after which the picture is drawn again even if nothing changed, since it shows durations
_HELP = "q quit   s sort: {order}   j k scroll"
_ARROWS = {"\x1b[A": "k", "\x1bOA": "k", "\x1b[B": "j", "\x1bOB": "j", "\x1b[5~": "b", "\x1b[6~": " "}


class Screen:
    """Draws the states that a `Watch` keeps, until q is pressed or a signal ends the process."""

    def __init__(self, console: Console, watch: Watch) -> None:
        self._console, self._watch = console, watch
        self._order, self._offset = Order.NAME, 0
        self._lines: list[Text] = []

    def run(self) -> None:
        """Run until q is pressed. Raises KeyboardInterrupt for Ctrl-C, SystemExit for SIGTERM and SIGHUP."""
        live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        with _keyboard() as keys, live:
            drawn = 0.0
            while True:
                pressed = _pressed(keys, _TICK_S)
                if any(key in ("q", "Q", "\x04") for key in pressed):
                    return
                for key in pressed:
                    self._on_key(key)
                if pressed or self._watch.changed.is_set() or time.monotonic() - drawn > _STALE_S:
                    self._watch.changed.clear()
                    live.update(self._picture(), refresh=True)
                    drawn = time.monotonic()

    def _on_key(self, key: str) -> None:
        page = max(1, self._console.height - 2)
        steps = {"j": 1, "k": -1, " ": page, "b": -page, "g": -len(self._lines), "G": len(self._lines)}
        if key in ("s", "S"):
            self._order, self._offset = self._order.next(), 0
        self._offset += steps.get(key, 0)

    def _picture(self) -> Text:
        width, height = self._console.size
        self._lines = picture(self._watch.seen(), width, self._order, time.time())
        room = max(1, height - 1)
        self._offset = max(0, min(self._offset, len(self._lines) - room))
        shown = self._lines[self._offset : self._offset + room]
        below = len(self._lines) - self._offset - len(shown)
        footer = _HELP.format(order=self._order.value) + (f"   {below} more lines" if below else "")
        filler = [Text("")] * (room - len(shown))
        # Joined to one text, so that the `end` of each line has no effect.
        return Text("\n", no_wrap=True, end="").join((*shown, *filler, Text(footer[:width], "dim")))


@contextlib.contextmanager
def _keyboard() -> Iterator[int | None]:
    """Turn off line editing and echo, and yield the descriptor of standard input. Yield None if standard input is not a
    terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)
        yield handle
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _pressed(handle: int | None, seconds: float) -> list[str]:
    """Return the keys pressed within `seconds`. Arrow keys are returned as the letters with the same effect."""
    if handle is None:
        time.sleep(seconds)
        return []
    if not select.select([handle], [], [], seconds)[0]:
        return []
    read = os.read(handle, 64)
    text = read.decode(errors="ignore") if read else "\x04"  # the terminal is closed
    for sequence, letter in _ARROWS.items():
        text = text.replace(sequence, letter)
    return list(text)

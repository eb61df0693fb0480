"""What a child prints, as log lines of the child's name: who reads the log knows whose they are, and how bad.

Runtimes print what they like, in forms of their own. However much it is, only so many lines come through.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time

_CHUNK = 1 << 16  # bytes read at once: other work of the loop comes in between
_LAST_CHUNKS = 16  # a pipe holds one; somebody whom the child left behind may go on writing
_LONGEST = 1000  # characters of a line
_BURST, _LINES_A_SECOND = 100.0, 20.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
# ONNX Runtime: "... [E:onnxruntime:...]"; TensorRT: "[E] ..."; OpenVINO: "[ ERROR ] ..."; glog and abseil: "E1121 ...".
_SEVERITY = re.compile(
    r"\[\s*([VDIWEF]|VERBOSE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\s*[:\]]|^([IWEF])\d{4}\s|^.{0,200}:\d+: \w*(Warning):"
)
_LEVELS = {"V": logging.DEBUG, "D": logging.DEBUG, "I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR}


class ChildLogForwarder:
    """Fed with bytes, says lines. `most`: the highest level at which it does."""

    def __init__(self, child: str, most: int = logging.ERROR, **about: str) -> None:
        self._log = logging.getLogger(f"edged.{child.replace(' ', '.')}")
        self._most, self._about = most, {"child": child, **about}
        self._begun = b""
        self._room, self._then = _BURST, time.monotonic()
        self._unsaid = 0

    def feed(self, data: bytes) -> None:
        """What was read last."""
        now = time.monotonic()
        self._room, self._then = min(_BURST, self._room + (now - self._then) * _LINES_A_SECOND), now
        *lines, rest = (self._begun + data).split(b"\n", int(self._room))
        for line in lines:
            self._say(line)
        self._unsaid += rest.count(b"\n")
        self._begun = rest[rest.rfind(b"\n") + 1 :]
        if len(self._begun) > _LONGEST * 4:  # a line without an end
            if self._room >= 1:
                self._say(self._begun)
            else:
                self._unsaid += 1
            self._begun = b""

    def close(self) -> None:
        """Nothing comes any more."""
        if self._begun:
            self._say(self._begun)
            self._begun = b""
        self._tell_unsaid()

    def _say(self, line: bytes) -> None:
        text = _COLOUR.sub("", line.decode(errors="replace")).strip()
        if not text:
            return
        self._tell_unsaid()
        self._room -= 1
        extra = {**self._about, "alike": _NUMBER.sub("#", text[:200])}
        self._log.log(min(self._most, level(text)), "%s", text[:_LONGEST], extra=extra)

    def _tell_unsaid(self) -> None:
        if self._unsaid:
            count, self._unsaid = self._unsaid, 0
            self._log.warning("printed %d lines more than are told", count, extra=self._about)


class Pipe:
    """A pipe that a child gets as its standard error; read in the loop as bytes come, so that the child never waits.

    Made in the loop, before the child; `child` is its end of it, to be given up by `started` once it has it.
    """

    def __init__(self, heard: ChildLogForwarder) -> None:
        """OSError where the box has no descriptor left."""
        self._heard = heard
        self._reader, self.child = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)

    def started(self) -> None:
        """The child has its end, or will never have it."""
        if self.child >= 0:
            os.close(self.child)
            self.child = -1

    def close(self) -> None:
        """Takes what is still in it, and gives it up."""
        self.started()
        for _ in range(_LAST_CHUNKS):
            if self._reader < 0 or not self._read():
                break
        self._end()

    def _read(self) -> bool:
        """Whether there was something, and there may be more."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            data = os.read(self._reader, _CHUNK)
            if data:
                self._heard.feed(data)
                return len(data) == _CHUNK
            self._end()
        return False

    def _end(self) -> None:
        if self._reader >= 0:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            self._reader = -1
            self._heard.close()


def level(line: str) -> int:
    """How bad a line says that it is. One that does not say is a warning: a runtime that is well is silent."""
    found = _SEVERITY.search(line[:300])
    if found is None:
        return logging.WARNING
    word = found[1] or found[2] or "W"
    return _LEVELS.get(word[0], logging.ERROR)

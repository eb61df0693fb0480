"""Forwards the output of child processes to the log, under the child's name and at the level that each line states.

Runtimes print in many formats and without limit, so the rate of lines is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time

_CHUNK = 1 << 16  # bytes that are read at once; other work of the loop runs in between
_LAST_CHUNKS = 16  # most chunks read at the end: a pipe holds one, but a process that outlives the child may write on
_LONGEST = 1000  # characters of a line that are logged
_BURST, _LINES_A_SECOND = 100.0, 20.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
# ONNX Runtime: "... [E:onnxruntime:...]"; TensorRT: "[E] ..."; OpenVINO: "[ ERROR ] ..."; glog and abseil: "E1121 ...".
_SEVERITY = re.compile(
    r"\[\s*([VDIWEF]|VERBOSE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\s*[:\]]|^([IWEF])\d{4}\s|^.{0,200}:\d+: \w*(Warning):"
)
_LEVELS = {"V": logging.DEBUG, "D": logging.DEBUG, "I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR}


class ChildLogForwarder:
    """Splits a child's output into lines and logs them. `most` is the highest level: lines with a higher level are
    logged at this level."""

    def __init__(self, child: str, most: int = logging.ERROR, **about: str) -> None:
        self._log = logging.getLogger(f"edged.{child.replace(' ', '.')}")
        self._most, self._about = most, {"child": child, **about}
        self._begun = b""
        self._room, self._then = _BURST, time.monotonic()
        self._omitted = 0

    def feed(self, data: bytes) -> None:
        """Process the next bytes of the output, and log each line that is now complete."""
        now = time.monotonic()
        self._room, self._then = min(_BURST, self._room + (now - self._then) * _LINES_A_SECOND), now
        *lines, rest = (self._begun + data).split(b"\n", int(self._room))
        for line in lines:
            self._log_line(line)
        self._omitted += rest.count(b"\n")
        self._begun = rest[rest.rfind(b"\n") + 1 :]
        if len(self._begun) > _LONGEST * 4:  # a line without an end
            if self._room >= 1:
                self._log_line(self._begun)
            else:
                self._omitted += 1
            self._begun = b""

    def close(self) -> None:
        """Log the rest of the output, and how many lines were omitted."""
        if self._begun:
            self._log_line(self._begun)
            self._begun = b""
        self._log_omitted()

    def _log_line(self, line: bytes) -> None:
        text = _COLOUR.sub("", line.decode(errors="replace")).strip()
        if not text:
            return
        self._log_omitted()
        self._room -= 1
        extra = {**self._about, "alike": _NUMBER.sub("#", text[:200])}
        self._log.log(min(self._most, level(text)), "%s", text[:_LONGEST], extra=extra)

    def _log_omitted(self) -> None:
        if self._omitted:
            count, self._omitted = self._omitted, 0
            self._log.warning("printed %d more lines, which are not logged", count, extra=self._about)


class Pipe:
    """A pipe for a child's standard error. The event loop reads bytes as they arrive, so that the child never waits.

    Create it in the event loop, before the child starts. `child` is the file descriptor of the child's end; `started`
    closes the daemon's copy of this descriptor.
    """

    def __init__(self, forwarder: ChildLogForwarder) -> None:
        """Raises OSError if no file descriptor is free."""
        self._forwarder = forwarder
        self._reader, self.child = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)

    def started(self) -> None:
        """Close the daemon's copy of the child's end: the child has its own copy, or did not start."""
        if self.child >= 0:
            os.close(self.child)
            self.child = -1

    def close(self) -> None:
        """Read the rest and close the pipe."""
        self.started()
        for _ in range(_LAST_CHUNKS):
            if self._reader < 0 or not self._read():
                break
        self._end()

    def _read(self) -> bool:
        """Read once; return whether a whole chunk was read, so that there may be more."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            data = os.read(self._reader, _CHUNK)
            if data:
                self._forwarder.feed(data)
                return len(data) == _CHUNK
            self._end()
        return False

    def _end(self) -> None:
        if self._reader >= 0:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            self._reader = -1
            self._forwarder.close()


def level(line: str) -> int:
    """Return the log level that a line states, or WARNING for a line without a level, because a healthy runtime prints
    nothing."""
    found = _SEVERITY.search(line[:300])
    if found is None:
        return logging.WARNING
    word = found[1] or found[2] or "W"
    return _LEVELS.get(word[0], logging.ERROR)

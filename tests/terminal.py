"""`edged` on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from typing import Any


class Terminal:
    """The program on its own terminal, and everything that it has written."""

    def __init__(
        self,
        *words: str,
        columns: int = 90,
        lines: int = 12,
        environment: Mapping[str, str] = os.environ,
        stdout: int | None = None,
    ) -> None:
        """Run `edged` with these arguments. Standard output is the terminal, unless `stdout` is given."""
        self._ours, self._its = pty.openpty()
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(self._its)
        self.written = b""
        environment = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
        environment["TERM"] = "xterm-256color"
        command = [sys.executable, "-m", "edged", *words]
        self.process = subprocess.Popen(
            command,
            stdin=self._its,
            stdout=stdout or self._its,
            stderr=self._its,
            env=environment,
            start_new_session=True,
        )

    def shows(self, text: str, seconds: float = 30.0) -> None:
        """Wait until the program writes the text from now on, ignoring colours."""
        start, end = len(self.written), time.monotonic() + seconds
        while text not in plain(self.written[start:]):
            assert time.monotonic() < end, plain(self.written[start:])[-2000:]
            self._read(0.2)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def ended(self, seconds: float = 30.0) -> int:
        """Wait for the end; return the exit status."""
        end = time.monotonic() + seconds
        while self._read(0.1) or self.process.poll() is None:
            assert time.monotonic() < end
        return self.process.wait()

    def picture(self) -> str:
        """Return the last complete screen. Each screen begins at the top left corner."""
        self._read(0.2)
        return plain(self.written.split(b"\x1b[H")[-2])

    @property
    def text(self) -> str:
        """Everything written so far, without colours."""
        return plain(self.written)

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._its)

    def _read(self, seconds: float) -> bool:
        """Read output; return False if there was none."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        self.written += os.read(self._ours, 65536)
        return True

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._its)


def plain(written: bytes) -> str:
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])", "", written.decode(errors="replace"))

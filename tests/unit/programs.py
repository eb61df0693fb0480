"""Commands of edged as processes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys


def program(*words: str) -> subprocess.Popen[str]:
    """Start a command with pipes."""
    command, environment = [sys.executable, "-m", "edged", *words], os.environ | {"TERM": "dumb"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def at_terminal(*words: str, stdout: int | None = None) -> tuple[str, str]:
    """Run a command at a terminal to its end, with status 0; return what it drew, and its standard output if that is a
    pipe."""
    master, slave = pty.openpty()
    command, environment = [sys.executable, "-m", "edged", *words], os.environ | {"TERM": "xterm", "COLUMNS": "160"}
    process = subprocess.Popen(command, stdin=slave, stdout=stdout or slave, stderr=slave, env=environment)
    os.close(slave)
    drawn = b""
    with open(master, "rb", buffering=0) as terminal:
        try:
            while chunk := terminal.read(4096):
                drawn += chunk
        except OSError:  # how Linux reports that the other end is closed
            pass
    printed, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    return drawn.decode(), (printed or b"").decode()

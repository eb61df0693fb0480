"""`edged logs`: shows the service's log from systemd's journal."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Annotated

import typer

from edged.errors import InvalidInput, NotFound

_UNIT = "edged.service"
_LEVELS = {"error": "err", "warning": "warning", "info": "info", "debug": "debug"}


def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also show new lines, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Only this many of the newest lines.")] = 100,
    since: Annotated[str, typer.Option("--since", help="All lines since then: today, '1 hour ago', 2026-05-01.")] = "",
    level: Annotated[str, typer.Option("--level", help="The lowest level: error, warning, info or debug.")] = "debug",
    model: Annotated[str, typer.Option("--model", help="Only lines about this model.")] = "",
    camera: Annotated[str, typer.Option("--camera", help="Only lines about this camera.")] = "",
) -> None:
    """Show the log of the service on this box.

    The service logs to systemd's journal. A daemon that you start yourself logs to its terminal.
    """
    if level not in _LEVELS:
        raise InvalidInput(f"unknown log level {level!r}; give one of {', '.join(_LEVELS)}")
    journal = shutil.which("journalctl")
    if journal is None:
        raise NotFound("the journalctl program is not installed; a daemon without systemd logs to its terminal")
    if not _is_installed():
        raise NotFound(f"{_UNIT} is not installed here; a daemon that you started yourself logs to its terminal")
    words = [journal, "--unit", _UNIT, "--priority", _LEVELS[level], "--output", "short-iso"]
    words += ["--since", since] if since else ["--lines", str(lines)]
    words += ["--follow"] if follow else []
    words += [f"EDGED_{key}={value}" for key, value in (("MODEL", model), ("CAMERA", camera)) if value]
    os.execv(journal, words)  # noqa: S606 (journalctl then has its own pager, colours and Ctrl-C)


def _is_installed() -> bool:
    words = ["systemctl", "cat", _UNIT]
    try:
        return subprocess.run(words, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False

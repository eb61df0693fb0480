"""edged's commands as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def program(*words: str) -> subprocess.Popen[str]:
    """Start a command with pipes."""
    command, environment = [sys.executable, "-m", "edged", *words], os.environ | {"TERM": "dumb"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def edged(
    *words: str, environment: Mapping[str, str] | None = None, folder: Path | None = None, seconds: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `environment` replaces the present one."""
    command = [sys.executable, "-m", "edged", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, env=environment, cwd=folder
    )

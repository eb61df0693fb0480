"""Two minutes of `make soak`, with another seed each time: what fails tells which it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_a_daemon_to_which_everything_happens_at_once_does_not_grow() -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", "2"]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=600)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-4000:]
    assert "nothing grew" in ended.stdout

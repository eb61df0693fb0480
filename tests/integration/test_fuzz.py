"""A short run of `make fuzz` in child processes, with a new seed each time; a failure prints the seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("part", "count"), [("handlers", 1500), ("live", 400)])
def test_fuzzed_requests_never_end_as_internal_errors(part: str, count: int) -> None:
    counts = {"handlers": 0, "live": 0} | {part: count}
    command = [sys.executable, "-m", "tests.fuzz", *(f"--{name}={number}" for name, number in counts.items())]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-4000:]
    assert "seed" in ended.stdout

"""How much memory hosts get, and how much a process uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edged.serving import memory


@pytest.mark.parametrize(("box", "hosts"), [(8192, 8192 - 819), (2048, 2048 - 512), (600, 300), (0, 0)])
def test_derived_mb_leaves_memory_for_the_rest_of_the_box(box: int, hosts: int) -> None:
    assert memory.derived_mb(box) == hosts
    assert memory.box_mb() > 0


def test_used_mb_is_the_memory_of_one_process() -> None:
    code = "import os, sys; held = bytearray(os.urandom(1 << 20) * 64); print(flush=True); sys.stdin.read()"
    # Another process: this one frees memory of earlier tests whenever it likes.
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert 64 < memory.used_mb(process.pid) < 128
        process.communicate()
    assert memory.used_mb(process.pid) == 0

"""Memory of hosts, the number of hosts that fit, memory of a process, and kills by the kernel."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edged.config.child_limits import box_mb
from edged.serving import memory


@pytest.mark.parametrize(("box", "hosts"), [(8192, 8192 - 819), (2048, 2048 - 512), (600, 300), (0, 0)])
def test_derived_mb_leaves_memory_for_the_rest_of_the_box(box: int, hosts: int) -> None:
    assert memory.derived_mb(box) == hosts
    assert box_mb() > 0


def test_used_mb_is_the_memory_of_one_process() -> None:
    code = "import os, sys; held = bytearray(os.urandom(1 << 20) * 64); print(flush=True); sys.stdin.read()"
    # Measure another process: this one may release memory of earlier tests at any time.
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert 64 < memory.used_mb(process.pid) < 128
        process.communicate()
    assert memory.used_mb(process.pid) == 0


@pytest.mark.parametrize(("available_mb", "hosts"), [(0, 1), (200, 1), (1023, 1), (1024, 2), (2048, 4), (64_000, 4)])
def test_hosts_for_depends_on_available_memory(available_mb: int, hosts: int) -> None:
    assert memory.hosts_for(available_mb) == hosts


def test_available_mb_is_part_of_the_box() -> None:
    assert 0 < memory.available_mb() <= box_mb()


def test_kernel_kills_never_decrease() -> None:
    before = memory.kernel_kills()
    assert 0 <= before <= memory.kernel_kills()

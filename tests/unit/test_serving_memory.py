"""How much memory hosts get, and how much a process uses."""

from __future__ import annotations

import os

import pytest

from edged.serving import memory


@pytest.mark.parametrize(("box", "hosts"), [(8192, 8192 - 819), (2048, 2048 - 512), (600, 300), (0, 0)])
def test_derived_mb_leaves_memory_for_the_rest_of_the_box(box: int, hosts: int) -> None:
    assert memory.derived_mb(box) == hosts
    assert memory.box_mb() > 0


def test_used_mb_is_the_memory_of_one_process() -> None:
    before = memory.used_mb(os.getpid())
    held = bytearray(os.urandom(1 << 20) * 64)
    assert memory.used_mb(os.getpid()) - before > 48
    del held
    assert memory.used_mb(2**22 + 1) == 0  # no process has such a number

"""Memory of hosts: how many more there is room for, and what the kernel killed."""

from __future__ import annotations

import pytest

from edged.serving import memory


@pytest.mark.parametrize(("available_mb", "hosts"), [(0, 1), (200, 1), (1023, 1), (1024, 2), (2048, 4), (64_000, 4)])
def test_hosts_for_suspects_by_available_memory(available_mb: int, hosts: int) -> None:
    assert memory.hosts_for(available_mb) == hosts


def test_available_memory_is_some_of_the_box() -> None:
    assert 0 < memory.available_mb() <= memory.box_mb()


def test_kernel_kills_only_grow() -> None:
    before = memory.kernel_kills()
    assert 0 <= before <= memory.kernel_kills()

"""What tests on a real NVIDIA GPU share. Each is skipped, with a reason, where there is none."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from edged.device import nvml


class Gpu(NamedTuple):
    """The first GPU by PCI address, and its compute capability."""

    name: str
    major: int
    minor: int


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The GPU that the tests run on, as its driver tells it; without one the test is skipped."""
    reading = nvml.read()
    if not reading.gpus:
        pytest.skip(f"there is no NVIDIA GPU here{f' ({reading.state})' if reading.state else ''}")
    found = reading.gpus[min(reading.gpus)]
    major, _, minor = found.compute_capability.partition(".")
    return Gpu(found.name, int(major), int(minor))

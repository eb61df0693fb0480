"""Fixtures for tests on a real NVIDIA GPU. Without one, the tests are skipped with a reason."""

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
    """The GPU that the tests run on, as its driver reports it; skips the test if there is no GPU."""
    reading = nvml.read()
    if not reading.gpus:
        pytest.skip(f"no NVIDIA GPU{f' ({reading.state})' if reading.state else ''}")
    found = reading.gpus[min(reading.gpus)]
    major, _, minor = found.compute_capability.partition(".")
    return Gpu(found.name, int(major), int(minor))

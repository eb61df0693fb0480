"""Fixtures for tests on the stand-in driver. These tests run in a child process, see `runner.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edged.backends.cuda import open_device
from edged.backends.cuda.driver import Device
from tests.fake_cuda.control import Control


@pytest.fixture
def control() -> Iterator[Control]:
    """The driver, as a discrete GPU with instant copies. Afterwards no misuse and no leak may be recorded."""
    control = Control()
    control.configure(devices=1, integrated=0, can_map=1, copy_us=0, memory=64 << 20, driver_version=13000)
    control.recover()
    control.forget()
    yield control
    assert control.misuse == ""
    assert control.alive == control.left


@pytest.fixture
def device(control: Control) -> Iterator[Device]:
    opened = open_device()
    yield opened
    opened.close()

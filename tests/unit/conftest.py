"""Fixtures of the unit tests, and the Hypothesis profile that makes their examples repeatable."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.system import disks
from tests.waiting import play

if TYPE_CHECKING:
    from edged.client import Client
    from tests.unit.client_daemon import Running

settings.register_profile(
    "edged",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("edged")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return play(pyfuncitem)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 1 MiB, which a test may fill or make read-only."""
    with disks.tmpfs(tmp_path / "disk", 1) as place:
        yield place


@pytest.fixture
def fill() -> Callable[[Path], Path]:
    """A function that fills a disk and returns the file that takes the space."""
    return disks.fill


@pytest.fixture
def make_read_only() -> Callable[[Path], None]:
    """A function that remounts a file system read-only, as the kernel does after an error of an SD card."""

    def remount(place: Path) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)

    return remount


@pytest.fixture
def as_nobody() -> Iterator[Callable[[], None]]:
    """A function that drops root's rights until the test ends, because root may read everything."""
    if os.geteuid() != 0:
        yield lambda: None
        return
    yield lambda: os.seteuid(65534)
    os.seteuid(0)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """The clients' test daemon behind a unix socket."""
    from tests.unit.client_daemon import Running  # imports gRPC, which few tests need

    with Running(f"unix:{tmp_path}/edged.sock") as running:
        yield running


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    from edged.client import Client

    with Client(running.target, timeout=10) as client:
        yield client

"""Messages to systemd as in sd_notify(3), and the time of the watchdog."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.systemd import Notifier, watchdog_seconds


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Yield a socket as systemd listens on, and its name for NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if request.param == "file" else f"@edged-test-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0", 1))
        listening.settimeout(5)
        yield listening, name


def test_notifier_sends_lines(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    notifier = Notifier.of({"NOTIFY_SOCKET": name})
    assert notifier.is_usable
    notifier.ready()
    notifier.status("two\nlines")
    notifier.alive()
    notifier.reloading()
    notifier.stopping(12.5)
    received = [listening.recv(4096).decode().split("\n") for _ in range(5)]
    assert received[:3] == [["READY=1"], ["STATUS=two lines"], ["WATCHDOG=1"]]
    assert received[3][0] == "RELOADING=1"
    assert received[3][1].removeprefix("MONOTONIC_USEC=").isdecimal()
    assert received[4] == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=12500000"]


def test_notifier_status_too_long_is_cut(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    Notifier(name).status("x" * 5000)
    received = listening.recv(8192).decode()
    assert len(received) < 600
    assert received.endswith("x…")


@pytest.mark.parametrize("name", ["", "relative", "vsock:2:1234"])
def test_notifier_without_an_address_sends_nothing(name: str) -> None:
    notifier = Notifier.of({"NOTIFY_SOCKET": name} if name else {})
    assert not notifier.is_usable
    notifier.ready()


def test_notifier_missing_socket_is_ignored(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "missing")).ready()


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "7"}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({}, None),
    ],
)
def test_watchdog_seconds_are_read_from_the_environment(environment: dict[str, str], seconds: float | None) -> None:
    assert watchdog_seconds(environment, 7) == seconds

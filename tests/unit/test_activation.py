"""Socket activation: the variables of systemd, usable and unusable sockets, and the address of each socket."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from edged import systemd
from edged.api.grpc.activation import Activation

_PID = 4711


@pytest.mark.parametrize(
    ("environment", "passed"),
    [
        ({}, []),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "4711"}, [(3, "unknown")]),
        (
            {"LISTEN_FDS": "3", "LISTEN_PID": "4711", "LISTEN_FDNAMES": "edged.socket::c"},
            [(3, "edged.socket"), (4, "unknown"), (5, "c")],
        ),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "4711", "LISTEN_FDNAMES": "a:b:c"}, [(3, "a")]),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "4712"}, []),
        ({"LISTEN_FDS": "1"}, []),
        ({"LISTEN_FDS": "0", "LISTEN_PID": "4711"}, []),
        *(({"LISTEN_FDS": text, "LISTEN_PID": "4711"}, []) for text in ("", "-1", "x", "٣", "9999", "9" * 5000, "1.0")),
    ],
)
def test_take_returns_the_sockets_of_this_process(environment: dict[str, str], passed: list[tuple[int, str]]) -> None:
    assert systemd.passed_descriptors(environment, _PID) == passed


class Passing:
    """Passes descriptors as systemd does, but from number `first` instead of 3: beyond those of this process."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self.first = max(int(each) for each in os.listdir("/proc/self/fd")) + 50  # above those of the test

    def take(self, *descriptors: int, more: int = 0) -> Activation:
        """Pass these descriptors. LISTEN_FDS counts `more` descriptors that do not exist."""
        for index, each in enumerate(descriptors):
            assert fcntl.fcntl(each, fcntl.F_DUPFD, self.first + index) == self.first + index
        count = str(len(descriptors) + more)
        self.environment.update(LISTEN_FDS=count, LISTEN_PID=str(_PID), LISTEN_FDNAMES="one", HOME="/")
        return Activation.take(self.environment, _PID)


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Passing]:
    found = Passing()
    monkeypatch.setattr(systemd, "_FIRST_DESCRIPTOR", found.first)
    yield found
    os.closerange(found.first, found.first + 10)


def listening(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, kind)
    found.bind(str(path))
    found.listen()
    return found


def is_served(activation: Activation, address: str) -> bool:
    served = activation.take_over(address)
    if served is None:
        return False
    served.close()
    return True


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


async def test_take_over_returns_the_socket_of_the_address_for_no_child(passing: Passing, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").symlink_to("run")
    with listening(tmp_path / "run/a") as first, listening(tmp_path / "run/b") as second:
        activation = passing.take(first.fileno(), second.fileno())
        assert passing.environment == {"HOME": "/"}
        assert not os.get_inheritable(passing.first)
        assert not os.get_inheritable(passing.first + 1)
        for address, path in ((f"unix:{tmp_path}/var/a", "run/a"), (f"unix://{tmp_path}/run/b", "run/b")):
            served = activation.take_over(address)
            assert served is not None
            with served:
                assert served.getsockname() == str(tmp_path / path)
        assert activation.take_over(f"unix:{tmp_path}/run/c") is None
        assert activation.take_over("localhost:8001") is None
        activation.close()
        assert not is_open(passing.first)


def test_take_ignores_sockets_of_another_process(passing: Passing, tmp_path: Path) -> None:
    with listening(tmp_path / "a") as other:
        fcntl.fcntl(other, fcntl.F_DUPFD, passing.first)
        environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(_PID + 1), "LISTEN_FDNAMES": "a"}
        assert Activation.take(environment, _PID).take_over(f"unix:{tmp_path}/a") is None
        assert environment == {}
        assert is_open(passing.first)


@pytest.mark.parametrize("kind", ["tcp", "bound", "datagram", "packets", "abstract", "file"])
async def test_take_unusable_socket_is_logged_and_closed(
    passing: Passing, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    with passed(kind, tmp_path) as other, listening(tmp_path / "good") as good:
        activation = passing.take(other.fileno(), good.fileno())
        assert is_served(activation, f"unix:{tmp_path}/good")
        assert not is_served(activation, f"unix:{tmp_path}/a")
        activation.start()
        assert caplog.records[0].message.startswith("closed") == (kind != "file")
        assert is_open(passing.first) == (kind == "file")
        if kind == "file":
            assert not os.get_inheritable(passing.first)
        activation.close()


def passed(kind: str, folder: Path) -> socket.socket | TextIO:
    if kind == "tcp":
        return socket.create_server(("127.0.0.1", 0))
    if kind == "file":
        return (folder / "a").open("w")
    if kind == "abstract":
        found = socket.socket(socket.AF_UNIX)
        found.bind(f"\0edged-test-{folder}")
        found.listen()
        return found
    if kind == "packets":
        return listening(folder / "a", socket.SOCK_SEQPACKET)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM)
    found.bind(str(folder / "a"))
    return found


async def test_take_too_large_count_is_logged_once(
    passing: Passing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(tmp_path / "a") as good:
        activation = passing.take(good.fileno(), more=500)
        assert is_served(activation, f"unix:{tmp_path}/a")
        activation.start()
        assert [record.message for record in caplog.records if "LISTEN_FDS" in record.message] == [
            f"descriptor {passing.first + 1} of LISTEN_FDS (unknown) is not a socket; it is ignored"
        ]
        activation.close()


async def test_activated_socket_without_a_configured_address_refuses_clients(
    passing: Passing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(tmp_path / "a") as unnamed:
        activation = passing.take(unnamed.fileno())
        activation.start()
        reader, writer = await asyncio.open_unix_connection(tmp_path / "a")
        assert await reader.read() == b""
        writer.close()
        assert f"systemd listens on {tmp_path}/a, which is not configured" in caplog.text
        activation.rest()
        reader, writer = await asyncio.open_unix_connection(tmp_path / "a")
        with pytest.raises(asyncio.TimeoutError):  # this client waits for the next daemon
            await asyncio.wait_for(reader.read(), 0.2)
        writer.close()
        activation.close()

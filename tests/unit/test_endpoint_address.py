"""Addresses of gRPC listeners: valid ones, and the errors of unusable ones."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edged.api.endpoints.address import tcp_address
from edged.api.grpc.server import Listener
from edged.errors import ConfigError
from tests.waiting import run


def bound(address: str) -> str:
    """Create a listener for `address` and stop it without a start. Return the address that it got."""

    async def make() -> str:
        listener = Listener(address, 1, lambda server: None)
        await listener.stop(0.0)
        return listener.address

    return run(make())


def refusal(address: str) -> str:
    with pytest.raises(ConfigError) as raised:
        bound(address)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of 127.0.0.1 on which another program listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("localhost:8001", "localhost", 8001),
        (":8001", "localhost", 8001),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("127.8.7.6:65535", "127.8.7.6", 65535),
        ("[::1]:8001", "::1", 8001),
        ("::1:8001", "::1", 8001),
    ],
)
def test_tcp_address_of_loopback_returns_host_and_port(address: str, host: str, port: int) -> None:
    assert tcp_address(address) == (host, port)


REMOTE = [
    *("localhost.evil.com:80", "localhostile:80", "127.evil.com:80", "127.0.0.1.evil.com:80", "example.com:80"),
    *("0.0.0.0:80", "192.168.1.2:80", "[::]:80", "[fe80::1]:80", ":::80", "[::1:80", "::1]:80", "[localhost]:80"),
    *("127.1:80", "[::zz]:80", " localhost:80", "[127.0.0.1]:80"),
]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        *((address, "use localhost:80") for address in REMOTE),
        *((f"localhost:{port}", "from 0 to 65535") for port in ("99999", "65536", "9" * 5000)),
        *(
            (text, "HOST:PORT")
            for text in ("", "localhost", "localhost:", "localhost:-1", "localhost:x", "localhost:٣")
        ),
    ],
)
def test_tcp_address_that_is_remote_or_invalid_is_refused(address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tcp_address(address)


def test_listener_at_port_zero_gets_a_free_port() -> None:
    host, port = tcp_address(bound("127.0.0.1:0"))
    assert host == "127.0.0.1"
    assert port > 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # a name with two addresses fails if one is taken
def test_listener_at_a_taken_port_is_refused(taken: int, host: str) -> None:
    assert "is taken" in refusal(f"{host}:{taken}")


def test_listener_at_a_port_of_the_system_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", forbidden)
    assert "from 1024" in refusal("127.0.0.1:443")


def test_listener_at_a_name_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # edged resolves names with it; gRPC has its own resolver
    assert "this box cannot resolve 127.0.0.1" in refusal(f"127.0.0.1:{taken}")


def test_listener_at_a_socket_creates_its_folder(tmp_path: Path) -> None:
    assert bound(f"unix:{tmp_path}/new/s.sock") == f"unix:{tmp_path}/new/s.sock"


@pytest.mark.parametrize("path", ["/proc/nope/s.sock", "/proc/s.sock", "/dev/null/s.sock"])
def test_listener_in_an_unusable_folder_is_refused(path: str) -> None:
    assert path in refusal(f"unix:{path}")


def test_listener_at_the_path_of_a_file_or_another_daemon_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.write_text("mine")
    refusal(f"unix:{path}")
    assert path.read_text() == "mine"
    path.unlink()
    with closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(os.fsencode(path))
        other.listen()
        refusal(f"unix:{path}")
    assert bound(f"unix:{path}") == f"unix:{path}"  # the other daemon left its socket file behind

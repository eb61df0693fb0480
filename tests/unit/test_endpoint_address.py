"""Where the server may listen, and what is said where it cannot."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edged.api.endpoints.address import tcp_address
from edged.api.grpc.server import Listener
from edged.errors import ConfigError


def bound(address: str) -> list[str]:
    """The addresses of a server that was made for `address`, and never started."""

    async def make() -> list[str]:
        listener = Listener(address, 1, lambda server: None)
        await listener.stop(0.0)
        return [listener.address]

    return asyncio.run(make())


def refusal(address: str) -> str:
    with pytest.raises(ConfigError) as raised:
        bound(address)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of 127.0.0.1 that somebody listens on."""
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
def test_addresses_of_this_machine_alone(address: str, host: str, port: int) -> None:
    assert tcp_address(address) == (host, port)


@pytest.mark.parametrize(
    "address",
    [
        *("localhost.evil.com:80", "localhostile:80", "127.evil.com:80", "127.0.0.1.evil.com:80", "example.com:80"),
        *("0.0.0.0:80", "192.168.1.2:80", "[::]:80", "[fe80::1]:80", ":::80", "[::1:80", "::1]:80", "[localhost]:80"),
        *("127.1:80", "[::zz]:80", " localhost:80", "[127.0.0.1]:80"),
    ],
)
def test_whatever_may_be_reached_from_elsewhere_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="reachable from other machines; use localhost:80"):
        tcp_address(address)


@pytest.mark.parametrize("port", ["99999", "65536", "9" * 5000])
def test_ports_beyond_the_last_are_refused(port: str) -> None:
    with pytest.raises(ConfigError, match="from 0 to 65535"):
        tcp_address(f"localhost:{port}")


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", "localhost:-1", "localhost:http", "localhost:٣"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="neither unix:PATH nor HOST:PORT"):
        tcp_address(address)


def test_port_zero_is_any_free_one() -> None:
    (address,) = bound("127.0.0.1:0")
    host, port = tcp_address(address)
    assert host == "127.0.0.1"
    assert port > 0


def test_a_port_that_is_taken_is_called_taken(taken: int) -> None:
    assert refusal(f"127.0.0.1:{taken}") == (f"cannot listen on 127.0.0.1:{taken}: the port is taken; choose another")


def test_a_name_with_one_address_taken_is_not_content_with_the_other(taken: int) -> None:
    assert refusal(f"localhost:{taken}") == f"cannot listen on localhost:{taken}: the port is taken; choose another"


def test_a_name_without_an_address_is_not_called_taken(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # gRPC has its own resolver
    assert "has no address here: Name or service not known" in refusal(f"127.0.0.1:{taken}")


def test_a_socket_is_made_with_its_folder(tmp_path: Path) -> None:
    assert bound(f"unix:{tmp_path}/new/s.sock") == [f"unix:{tmp_path}/new/s.sock"]


@pytest.mark.parametrize("path", ["/proc/nope/s.sock", "/proc/s.sock", "/dev/null/s.sock"])
def test_a_folder_that_cannot_be_used_is_told_in_one_line(path: str) -> None:
    assert refusal(f"unix:{path}").startswith(f"cannot listen on {path}: ")


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s.sock").write_text("mine")
    assert "is not a socket" in refusal(f"unix:{tmp_path}/s.sock")
    assert (tmp_path / "s.sock").read_text() == "mine"


def test_a_living_daemon_is_not_pushed_aside(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(os.fsencode(path))
        other.listen()
        assert "another daemon listens" in refusal(f"unix:{path}")
    assert bound(f"unix:{path}") == [f"unix:{path}"]  # left behind by then

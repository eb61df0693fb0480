"""Addresses that ZeroMQ sockets may listen on."""

from __future__ import annotations

import re
import socket
from functools import partial
from pathlib import Path

import pytest
import zmq

from edged.api.endpoints.zmq_socket import BoundSocket, place
from edged.errors import ConfigError
from tests.unit.zmq_peers import folder as folder


@pytest.mark.parametrize(
    ("address", "remote", "bound"),
    [
        ("ipc:///run/x", None, "ipc:///run/x"),
        ("tcp://localhost:5", None, "tcp://127.0.0.1:5"),
        ("tcp://127.0.0.2:5", False, "tcp://127.0.0.2:5"),
        ("tcp://[::1]:5", None, "tcp://[::1]:5"),
        ("tcp://172.17.0.1:5", True, "tcp://172.17.0.1:5"),
        ("tcp://0.0.0.0:5", True, "tcp://0.0.0.0:5"),
        ("tcp://[fd00::1]:5", True, "tcp://[fd00::1]:5"),
        ("tcp://localhost:5", True, "tcp://127.0.0.1:5"),
    ],
)
def test_place_allowed_address_is_bound(address: str, remote: bool | None, bound: str) -> None:
    assert place(address, "[x] y", remote)[0] == bound


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        *(
            (None, address)
            for address in ("", "/run/x", "ipc://x", "ipc://@abstract", "ipc://*", "ipc:///" + "x" * 110)
        ),
        *(
            (None, address)
            for address in ("ipc://*", "inproc://x", "udp://127.0.0.1:5", "tcp://*:5", "tcp://0.0.0.0:5")
        ),
        *((None, address) for address in ("tcp://example.com:5", "tcp://localhost", "tcp://localhost:x")),
        (False, "tcp://10.0.0.1:5"),
        *((True, address) for address in ("tcp://example.com:5", "tcp://*:5", "tcp://127.0.0.1:70000")),
    ],
)
def test_place_invalid_address_is_refused_in_one_line(remote: bool | None, address: str) -> None:
    with pytest.raises(ConfigError) as raised:
        place(address, "[x] y", remote)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "why", "has_hint"),
    [
        ("tcp://localhost", "is neither ipc:///PATH nor tcp://HOST:PORT", False),
        ("tcp://localhost:70000", "from 0 to 65535", False),
        ("tcp://10.0.0.1:5", "use tcp://127.0.0.1:5", True),
    ],
)
def test_place_only_a_remote_address_gets_the_hint_about_allow_remote(address: str, why: str, has_hint: bool) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)) as raised:
        place(address, "[x] y", allow_remote=False)
    assert ("allow_remote" in str(raised.value)) is has_hint


async def test_bound_socket_replaces_a_dead_socket_and_no_living_one_or_other_file(folder: Path) -> None:
    path = folder / "sub" / "socket"
    listen = partial(BoundSocket, zmq.ROUTER, f"ipc://{path}", "[x] y", lambda _: None, hwm=1, max_message=100)
    first = listen()
    assert oct(path.stat().st_mode)[-3:] == "660"
    with pytest.raises(ConfigError):
        listen()
    first.close()
    first.close()
    assert not list(path.parent.iterdir())
    path.write_bytes(b"")
    with pytest.raises(ConfigError):
        listen()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # but never listens
    listen().close()

"""The user that a client counts as when the daemon opens files for it."""

from __future__ import annotations

import grp
import os
import socket
from pathlib import Path

import pytest

from edged.api.auth import identity
from edged.api.auth.identity import ANYONE, READ, WRITE, Identity, of_peer, of_socket

_STATUS = os.stat_result((0o100640, 0, 0, 1, 1000, 44, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("who", "reads", "writes"),
    [
        (Identity("root", 0), True, True),
        (Identity("owner", 1000), True, True),
        (Identity("other", 1001), False, False),
        (Identity("member", 1001, 44), True, False),
        (Identity("group", gid=44), True, False),
        (Identity("another group", gid=45), False, False),
        (ANYONE, False, False),
    ],
)
def test_may_follows_owner_group_and_mode(who: Identity, reads: bool, writes: bool) -> None:
    assert (who.may(_STATUS, READ), who.may(_STATUS, WRITE)) == (reads, writes)


def test_may_owner_without_right_is_refused_even_if_others_have_it() -> None:
    status = os.stat_result((0o100044, 0, 0, 1, 1000, 44, 0, 0, 0, 0))
    assert not Identity("owner", 1000, 44).may(status, READ)


def test_of_socket_only_owner_may_connect_returns_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.touch(0o600)
    assert of_socket(path).uid == os.geteuid()


def test_of_socket_all_may_connect_returns_anyone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.touch()
    path.chmod(0o666)
    found = of_socket(path)
    assert (found.uid, found.gid) == (None, None)
    assert (of_socket(tmp_path / "lost").uid, of_socket(tmp_path / "lost").gid) == (None, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to any group")
def test_of_socket_group_may_connect_returns_the_group_without_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    path.touch()
    os.chown(path, -1, grp.getgrnam("nogroup").gr_gid)
    path.chmod(0o660)
    monkeypatch.setattr(identity, "_members", lambda gid, period: frozenset({1001}))
    found = of_socket(path)
    assert (found.uid, found.gid) == (None, grp.getgrnam("nogroup").gr_gid)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_of_peer_connection_over_loopback_returns_its_user(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as server:
        server.bind((host, 0))
        server.listen()
        with socket.create_connection((host, server.getsockname()[1])) as client:
            port = client.getsockname()[1]
            peer = f"ipv4:{host}:{port}" if family == socket.AF_INET else f"ipv6:%5B{host}%5D:{port}"
            assert of_peer(peer).uid == os.getuid()
        assert of_peer(peer) == ANYONE  # a socket in TIME_WAIT has no user


@pytest.mark.parametrize("peer", ["", "unix:", "ipv4:nonsense", "ipv4:127.0.0.1:x", "ipv4:10.0.0.1:1"])
def test_of_peer_without_a_connection_returns_anyone(peer: str) -> None:
    assert of_peer(peer) == ANYONE

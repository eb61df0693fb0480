"""A path that systemd listens at is the daemon's while that runs, and systemd's again afterwards, whatever was left."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from edged.api.grpc import grpc_limits
from edged.api.grpc.activation import Activation, Handover
from edged.api.grpc.server import Listener
from edged.errors import ConfigError
from tests.waiting import asynchronous, until


def listen(path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    found.listen(16)
    return found


def reaches(path: Path, listening: socket.socket) -> bool:
    """Whether who connects to a path comes to this socket."""
    listening.setblocking(False)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return False
    return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "e.sock"


@pytest.fixture
def inherited(path: Path) -> Iterator[socket.socket]:
    with listen(path) as found:
        yield found


class Taken:
    """Has taken the path with a socket of its own, in place of gRPC's."""

    def __init__(self, path: Path, inherited: socket.socket) -> None:
        self.handover = Handover(path, inherited.dup())
        self.own = listen(self.handover.prepare())

    async def enter(self) -> Taken:
        self.handover.enter()
        return self

    async def end(self) -> None:
        self.handover.leave()
        self.own.close()
        await self.handover.relay.close()

    async def die(self) -> None:
        """As by kill -9: nothing is given back."""
        self.own.close()
        await self.handover.relay.close()


@asynchronous
async def test_the_path_is_lent_and_given_back(path: Path, inherited: socket.socket) -> None:
    mode = path.stat().st_mode
    taken = Taken(path, inherited)
    assert reaches(path, inherited), "nothing has changed before it enters"
    await taken.enter()
    assert reaches(path, taken.own)
    taken.handover.leave()
    reader, writer = await asyncio.open_unix_connection(path)
    await asyncio.sleep(0.05)
    inherited.accept()[0].close()  # nobody else has
    assert await reader.read() == b""
    writer.close()
    await taken.end()
    assert path.stat().st_mode == mode
    assert os.listdir(path.parent) == [path.name]


@asynchronous
async def test_handover_not_entered_changes_nothing(path: Path, inherited: socket.socket) -> None:
    taken = Taken(path, inherited)
    await taken.end()
    assert reaches(path, inherited)


@pytest.mark.parametrize("had_entered", [True, False])
@asynchronous
async def test_handover_restores_sockets_of_a_killed_daemon(
    path: Path, inherited: socket.socket, had_entered: bool
) -> None:
    killed = Taken(path, inherited)
    if had_entered:
        await killed.enter()
    await killed.die()
    taken = await Taken(path, inherited).enter()
    assert reaches(path, taken.own)
    await taken.end()
    assert reaches(path, inherited)
    assert os.listdir(path.parent) == [path.name]


@asynchronous
async def test_handover_prefers_the_restarted_socket_unit(path: Path) -> None:
    with listen(path) as older:
        await (await Taken(path, older).enter()).die()
    path.unlink()
    with listen(path) as newer:
        taken = await Taken(path, newer).enter()
        assert reaches(path, taken.own)
        await taken.end()
        assert reaches(path, newer)


@asynchronous
async def test_another_daemon_at_the_path_is_not_pushed_aside(path: Path, inherited: socket.socket) -> None:
    await (await Taken(path, inherited).enter()).die()
    path.unlink()
    with listen(path) as other:
        with pytest.raises(ConfigError, match="another daemon listens on"):
            Handover(path, inherited).prepare()
        assert reaches(path, other)


@asynchronous
async def test_handover_of_a_deleted_socket_warns_and_listens(
    path: Path, inherited: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    path.unlink()
    taken = await Taken(path, inherited).enter()
    assert "restart its unit" in caplog.text
    assert reaches(path, taken.own)
    await taken.end()
    assert os.listdir(path.parent) == []


def test_handover_socket_of_another_user_is_refused_with_the_remedy(
    path: Path, inherited: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", forbidden)
    with pytest.raises(ConfigError, match="set SocketUser= of its unit"):
        Handover(path, inherited).prepare()


class Served:
    """gRPC behind a path that systemd listens at: calls are answered with how often."""

    def __init__(self, path: Path, inherited: socket.socket) -> None:
        self.activation = Activation({path: inherited.dup()})
        self.servers: list[grpc.aio.Server] = []
        self.target = f"unix:{path}"
        handover = self.activation.at(self.target)
        assert handover is not None
        self.handover = handover

    def listener(self) -> Listener:
        return Listener(self.target, 1, self._register, handover=self.handover)

    def _register(self, server: grpc.aio.Server) -> None:
        async def answer(request: bytes, _: object) -> bytes:
            return request

        self.servers.append(server)
        handlers = {"echo": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))


async def echo(channel: grpc.aio.Channel) -> bytes:
    answer: bytes = await channel.unary_unary("/test/echo")(b"it", timeout=20)
    return answer


@asynchronous
async def test_handover_relays_early_connections_to_the_server(
    path: Path, inherited: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_limits, "_BRIEF", (grpc_limits._BRIEF[0], 1000))
    served = Served(path, inherited)
    async with grpc.aio.insecure_channel(served.target) as channel:
        early = asyncio.create_task(echo(channel))
        await asyncio.sleep(0.05)
        assert not early.done()
        listener = served.listener()
        await listener.start()
        assert await early == b"it"
        while served.handover.relay.carried:  # it goes on all the time; `run` bounds how long
            assert await echo(channel) == b"it"
        assert await echo(channel) == b"it"
        assert not served.handover.relay.carried
        await listener.stop(0)
    await served.activation.close()
    assert reaches(path, inherited)
    assert os.listdir(path.parent) == [path.name]


@asynchronous
async def test_a_server_that_ends_by_itself_is_followed_by_another(path: Path, inherited: socket.socket) -> None:
    served = Served(path, inherited)
    listener = served.listener()
    await listener.start()
    for server in list(served.servers):  # that of those who were early, too
        await server.stop(0)
    await until(lambda: len(served.servers) == 4)
    async with grpc.aio.insecure_channel(served.target) as channel:
        assert await echo(channel) == b"it"
    await listener.stop(0)
    await served.activation.close()
    assert reaches(path, inherited)


@asynchronous
async def test_while_no_server_follows_clients_wait(
    path: Path, inherited: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(path, inherited)
    listener = served.listener()
    await listener.start()
    prepare, tries = Handover.prepare, 0

    def failing(handover: Handover) -> Path:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ConfigError("not now")
        return prepare(handover)

    monkeypatch.setattr(Handover, "prepare", failing)
    await served.servers[0].stop(0)
    await until(lambda: tries == 1)
    async with grpc.aio.insecure_channel(served.target) as channel:
        assert await echo(channel) == b"it"
    await listener.stop(0)
    await served.activation.close()


@asynchronous
async def test_an_address_that_is_given_up_is_turned_away_and_can_be_taken_again(
    path: Path, inherited: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(path, inherited)
    for _ in range(2):
        listener = served.listener()
        await listener.start()
        async with grpc.aio.insecure_channel(served.target) as channel:
            assert await echo(channel) == b"it"
        listener.leave()
        served.activation.turn_away()
        await listener.stop(0)
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b""
        writer.close()
    assert caplog.text.count("connections are closed") == 1
    await served.activation.close()

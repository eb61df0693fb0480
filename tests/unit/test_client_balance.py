"""A client of several daemons: which of them gets a call, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from edged.client import Client, balance
from edged.client.credentials import Credentials, channel, with_metadata
from edged.errors import InvalidInput
from tests.waiting import run, until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class _Names(grpc.GenericRpcHandler):
    """Answers each call with its own name."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()

    def service(self, details: Any) -> Any:
        if details.method == "/test/Name":
            return grpc.unary_unary_rpc_method_handler(lambda request, context: self._name)
        return None


class Servers:
    def __init__(self, count: int) -> None:
        self.addresses, self.health, self.servers = [], [], []
        for number in range(count):
            server = grpc.server(futures.ThreadPoolExecutor(4))
            state = health.HealthServicer()
            health_pb2_grpc.add_HealthServicer_to_server(state, server)
            state.set("", SERVING)
            server.add_generic_rpc_handlers((_Names(str(number)),))
            self.addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            server.start()
            self.health.append(state)
            self.servers.append(server)


@pytest.fixture
def servers() -> Iterator[Servers]:
    found = Servers(3)
    yield found
    for server in found.servers:
        server.stop(0)


def _asked(opened: grpc.Channel, count: int = 30) -> Counter[str]:
    ask = opened.unary_unary("/test/Name")
    return Counter(ask(b"", timeout=10).decode() for _ in range(count))


def _open(servers: Servers, options: balance.Options) -> grpc.Channel:
    targets = balance.resolve(servers.addresses)
    return channel(targets[0], Credentials(), options, balance.together(targets))


def test_calls_go_to_the_healthy_daemons_in_turn(servers: Servers) -> None:
    with _open(servers, balance.IN_TURN) as opened:
        _wait_for(opened, {"0", "1", "2"})
        assert all(count == 10 for count in _asked(opened).values())
        servers.health[1].set("", NOT_SERVING)
        _wait_for(opened, {"0", "2"})
        servers.servers[0].stop(0)
        _wait_for(opened, {"2"})
        servers.health[1].set("", SERVING)
        _wait_for(opened, {"1", "2"})


def test_camera_stays_with_a_daemon_while_that_is_healthy(servers: Servers) -> None:
    with _open(servers, balance.BY_CAMERA) as opened:
        cameras = [f"Tür {number}" for number in range(20)]
        ways = {camera: with_metadata(opened, balance.key_of(camera)) for camera in cameras}
        chosen = {}
        for camera, way in ways.items():
            (chosen[camera],) = _asked(way, 5)
        assert set(chosen.values()) == {"0", "1", "2"}
        servers.health[1].set("", NOT_SERVING)
        moved = [camera for camera in cameras if chosen[camera] == "1"]
        run(until(lambda: "1" not in _asked(ways[moved[0]], 3), "the camera moves"))
        for camera, way in ways.items():
            (now,) = _asked(way, 5)
            assert now != "1"
            assert now == chosen[camera] or camera in moved


@pytest.mark.parametrize("targets", [["localhost:1", "192.0.2.7:1"], ["192.0.2.7:1", "localhost:1"], ["192.0.2.7:1"]])
def test_client_with_another_machine_keeps_its_connections_alive(
    monkeypatch: pytest.MonkeyPatch, targets: list[str]
) -> None:
    opened: list[dict[str, Any]] = []
    real = grpc.insecure_channel

    def insecure(place: str, options: Any) -> grpc.Channel:
        opened.append(dict(options))
        return real(place, options)

    monkeypatch.setattr(grpc, "insecure_channel", insecure)
    Client(targets, credentials=Credentials()).close()
    assert opened
    assert all("grpc.keepalive_time_ms" in each for each in opened)


def _wait_for(opened: grpc.Channel, names: set[str]) -> None:
    def asked() -> set[str]:
        try:
            return set(_asked(opened, 9))
        except grpc.RpcError:  # of the one that was stopped
            return set()

    run(until(lambda: asked() == names, f"{names} answer"))


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ([], "is empty"),
        (["unix:/a", "unix:/b"], "cannot have unix sockets"),
        (["tls:a:1", "b:1"], "only some of the daemons have tls:"),
        (["127.0.0.1:1", "[::1]:1"], "addresses of one kind"),
        (["127.0.0.1:1", "no-such-host.invalid:1"], "cannot be resolved"),
        (["tls:127.0.0.1:1", "tls:127.0.0.2:1"], "give this name as server_name"),
    ],
)
def test_list_that_cannot_be_used_is_refused(targets: list[str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Client(targets)


def test_token_is_sent_unencrypted_to_none_of_several_daemons() -> None:
    with pytest.raises(InvalidInput, match="is not sent to 192"):
        Client(["127.0.0.1:1", "192.0.2.1:1"], credentials=Credentials(token="secret"))


def test_list_of_one_is_that_daemon() -> None:
    with Client(["localhost:1"]) as client:
        assert client.target == "localhost:1"

"""Access by method: every method, with every kind of caller, at every kind of address, against the table METHODS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from edged.api.auth.policy import METHODS
from edged.proto import cameras_pb2, language_pb2, open_inference_pb2, operations_pb2
from tests.integration.guarded import Guarded, bearer

_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_ROLES = ("infer", "read", "operate")
# The roles that each kind of address gives to an anonymous client.
_GIVEN = {
    "infer socket": {"infer", "read"},
    "operate socket": {"infer", "read", "operate"},
    "tls": set(),
    "mtls": set(),
}
# Methods with streams. All other methods take one message and give one answer.
_MANY_IN = ("AddModel", "Detect", "ModelStreamInfer", "ServerReflectionInfo")
_MANY_OUT = ("Chat", "Detect", "ModelStreamInfer", "ServerReflectionInfo", "Watch", "WatchEvents", "Rebuild", "Verify")

Shown = tuple[Path | None, str | None]  # the certificate and token that a client presents


@pytest.fixture(scope="module")
def daemon() -> Iterator[Guarded]:
    with Guarded(certificates={f"{role}.lan": [role] for role in _ROLES}) as started:
        assert isinstance(started, Guarded)
        yield started


@pytest.fixture(scope="module")
def tokens(daemon: Guarded) -> dict[str, str]:
    made = {role: daemon.token(f"{role}-token", role) for role in _ROLES}
    return {**made, "wrong": "edged_" + "x" * 43}


@pytest.fixture(scope="module")
def certificates(daemon: Guarded) -> dict[str, Path]:
    names = {"stranger": "DNS:localhost", **{role: f"DNS:{role}.lan" for role in _ROLES}}
    return {who: daemon.authority.sign(f"{who}.client", name)[0] for who, name in names.items()}


def _status(channel: grpc.Channel, method: str, secret: str | None) -> grpc.StatusCode | None:
    """Call a method with an empty request; return the status of its error, or None if it succeeds."""
    name, metadata = method.rpartition("/")[2], bearer(secret)
    sent: bytes | Iterator[bytes] = iter(()) if name in _MANY_IN else b""
    try:
        if name in _MANY_OUT:
            ways = channel.stream_stream if name in _MANY_IN else channel.unary_stream
            answers = ways(method)(sent, metadata=metadata, timeout=20)
            with contextlib.suppress(StopIteration):
                next(answers)
            answers.cancel()
            return None
        ways_of_one = channel.stream_unary if name in _MANY_IN else channel.unary_unary
        ways_of_one(method)(sent, metadata=metadata, timeout=20)
    except grpc.RpcError as error:
        found: grpc.StatusCode = error.code()
        return found
    return None


def _is_there(channel: grpc.Channel, method: str) -> bool:
    """Return True if a method is registered; gRPC itself answers calls of other methods."""
    call = channel.stream_stream(method)(iter((b"",)), timeout=10)
    try:
        next(call, None)
    except grpc.RpcError as error:
        return not (error.code() is grpc.StatusCode.UNIMPLEMENTED and error.details() == "Method not found!")
    finally:
        call.cancel()
    return True


def _expected(method: str, has: set[str], is_known: bool, is_wrong: bool) -> grpc.StatusCode | None:
    """Return the refusal that the table requires, or None if the call must be allowed."""
    if is_wrong:
        return grpc.StatusCode.UNAUTHENTICATED
    needed = METHODS[method]
    if needed is None or needed & has:
        return None
    return grpc.StatusCode.PERMISSION_DENIED if is_known else grpc.StatusCode.UNAUTHENTICATED


def _compare(channel: grpc.Channel, secret: str | None, has: set[str], is_known: bool, is_wrong: bool) -> list[str]:
    """Call every method; return the differences from the table."""
    wrong = []
    for method in METHODS:
        status = _status(channel, method, secret)
        refused = status if status in _REFUSALS else None
        expected = _expected(method, has, is_known, is_wrong)
        if refused is not expected:
            wrong.append(f"{method}: {status} instead of {expected}")
    return wrong


@pytest.mark.parametrize("shown", ["nothing", "wrong", *_ROLES])
@pytest.mark.parametrize("place", ["infer socket", "operate socket", "tls"])
def test_by_token(daemon: Guarded, tokens: dict[str, str], place: str, shown: str) -> None:
    address = {"infer socket": daemon.infer_socket, "operate socket": daemon.operate_socket, "tls": daemon.tls}[place]
    has = _GIVEN[place] | ({shown} if shown in _ROLES else set())
    with daemon.channel(address) as channel:
        assert not _compare(channel, tokens.get(shown), has, bool(has), shown == "wrong")


@pytest.mark.parametrize("shown", ["stranger", *_ROLES])
def test_by_certificate(daemon: Guarded, certificates: dict[str, Path], shown: str) -> None:
    has = {shown} if shown in _ROLES else set()
    with daemon.channel(daemon.mtls, certificates[shown]) as channel:
        assert not _compare(channel, None, has, True, False)


def test_by_certificate_and_token(daemon: Guarded, certificates: dict[str, Path], tokens: dict[str, str]) -> None:
    with daemon.channel(daemon.mtls, certificates["infer"]) as channel:
        assert not _compare(channel, tokens["read"], {"infer", "read"}, True, False)
        assert not _compare(channel, tokens["wrong"], {"infer"}, True, True)


def test_client_without_a_certificate_is_refused(daemon: Guarded, tokens: dict[str, str]) -> None:
    with daemon.channel(daemon.mtls) as channel:
        assert _status(channel, "/grpc.health.v1.Health/Check", tokens["operate"]) is grpc.StatusCode.UNAVAILABLE


def test_access_table_has_exactly_the_methods_of_the_services(daemon: Guarded) -> None:
    files: list[FileDescriptor] = [
        module.DESCRIPTOR
        for module in (cameras_pb2, operations_pb2, language_pb2, open_inference_pb2, health_pb2, reflection_pb2)
    ]
    services = [service for file in files for service in file.services_by_name.values()]
    methods = {f"/{service.full_name}/{name}" for service in services for name in service.methods_by_name}
    with daemon.channel(daemon.operate_socket) as channel:
        assert {method for method in methods if _is_there(channel, method)} == set(METHODS)
        ask = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = ask(iter([request]), timeout=10)
        assert {each.name for each in answer.list_services_response.service} == {s.full_name for s in services}

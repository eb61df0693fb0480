"""The HTTP API: paths, requests of web pages, statuses and messages."""

from __future__ import annotations

import re
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from edged import errors
from edged.api.auth import policy
from edged.api.grpc.rpc import Context, Service
from edged.api.grpc.status import http_of
from edged.api.http import exchange, handlers, routes
from edged.api.http.exchange import HttpRequest, HttpResponse
from edged.api.http.handlers import Calls
from edged.api.http.routes import Route
from edged.api.http2.headers import Status
from edged.errors import InvalidInput
from edged.proto import model_config_pb2 as config_pb
from edged.proto import open_inference_pb2 as pb


@pytest.mark.parametrize(
    ("method", "path", "rpc", "names"),
    [
        ("GET", "/v2", "ServerMetadata", {}),
        ("GET", "/v2/", "ServerMetadata", {}),
        ("HEAD", "/v2/health/live", "ServerLive", {}),
        ("GET", "/v2/models/stats", "ModelStatistics", {}),
        ("GET", "/v2/models/m/stats", "ModelStatistics", {"model": "m"}),
        ("GET", "/v2/models/m/versions/3/stats", "ModelStatistics", {"model": "m", "version": "3"}),
        ("GET", "/v2/models/a%2Fb%20c", "ModelMetadata", {"model": "a/b c"}),
        ("GET", "/v2/%6dodels/m/versions/3", "ModelMetadata", {"model": "m", "version": "3"}),
        ("POST", "/v2/models/m/versions/3/infer", "ModelInfer", {"model": "m", "version": "3"}),
        ("POST", "/v2/repository/index", "RepositoryIndex", {}),
        ("POST", "/v2/repository/models/m/load", "RepositoryModelLoad", {"model": "m"}),
        ("POST", "/v2/repository/r/models/m/unload", "RepositoryModelUnload", {"repository": "r", "model": "m"}),
        ("GET", "/v2/systemsharedmemory/region/r/status", "SystemSharedMemoryStatus", {"region": "r"}),
        ("POST", "/v2/cudasharedmemory/unregister", "CudaSharedMemoryUnregister", {}),
        ("POST", "/v2/models/m/trace/setting", "TraceSetting", {"model": "m"}),
        ("POST", "/edged/v1/detect", "DetectOne", {}),
    ],
)
def test_find_path_returns_method_and_names(method: str, path: str, rpc: str, names: dict[str, str]) -> None:
    assert routes.find(method, path) == Route(rpc, names)


def test_routes_are_methods_of_the_policy() -> None:
    assert all(Route(rpc, {}).rpc in policy.METHODS for rpc, _, _ in routes.TABLE)


@pytest.mark.parametrize(
    "path", ["", "/", "/v2/models", "/v3", "/v2/models/m/infer/x", "/v2//models/m", "/%00", "/v2/%2e%2e"]
)
def test_find_unknown_path_is_not_found(path: str) -> None:
    answer = routes.find("GET", path)
    assert isinstance(answer, HttpResponse)
    assert answer.status is HTTPStatus.NOT_FOUND


@pytest.mark.parametrize(
    ("headers", "peer", "is_refused"),
    [
        ({}, "ipv4:127.0.0.1:9", False),
        ({"host": "localhost:8000"}, "ipv4:127.0.0.1:9", False),
        ({"host": "127.0.0.2"}, "ipv4:127.0.0.1:9", False),
        ({"host": "[::1]:8000"}, "ipv6:[::1]:9", False),
        ({"host": "evil.example:8000"}, "ipv4:127.0.0.1:9", True),
        ({"host": "127.0.0.1.evil.example"}, "ipv4:127.0.0.1:9", True),
        ({"host": "10.0.0.1:8000"}, "ipv4:127.0.0.1:9", True),
        ({"host": "anything"}, "unix:", False),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, "ipv4:127.0.0.1:9", False),
        ({"host": "localhost:8000", "origin": "http://localhost:3000"}, "ipv4:127.0.0.1:9", True),
        ({"host": "localhost:8000", "origin": "null"}, "ipv4:127.0.0.1:9", True),
        ({"host": "x", "origin": "https://evil.example"}, "unix:", True),
        ({"origin": "null"}, "unix:", True),
        ({"host": "", "origin": ""}, "ipv4:127.0.0.1:9", True),
    ],
)
def test_web_page_refusal_follows_origin_and_host(headers: dict[str, str], peer: str, is_refused: bool) -> None:
    assert (exchange.web_page_refusal(headers, peer) is not None) is is_refused


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidInput("x"), 400),
        (errors.EngineUnusable("x"), 400),
        (errors.NotFound("x"), 404),
        (errors.AlreadyExists("x"), 409),
        (errors.Refused("x"), 409),
        (errors.TooLarge("x"), 413),
        (errors.Unsupported("x"), 501),
        (errors.NotReady("x"), 503),
        (errors.Overloaded("x"), 503),
        (errors.HostLost("x"), 503),
        (errors.DeadlineExceeded("x"), 504),
        (RuntimeError("a secret"), 500),
    ],
)
def test_failure_response_has_the_status_of_the_error(error: Exception, status: int) -> None:
    answer = routes.failure_response(error)
    assert answer.status == status
    assert b"secret" not in bytes(answer.parts[0])


def test_http_of_codes_that_clients_cause_is_not_500() -> None:
    ours = (Status.OK, Status.UNKNOWN, Status.INTERNAL, Status.DATA_LOSS)
    assert all(http_of(code) != HTTPStatus.INTERNAL_SERVER_ERROR for code in Status if code not in ours)


def test_message_fields_are_plain_values_with_their_defaults() -> None:
    statistics = pb.ModelStatistics(name="m", inference_count=2**60)
    fields = exchange.message_fields(statistics)
    assert (fields["inference_count"], fields["version"], fields["batch_stats"]) == (2**60, "", [])
    assert "inference_stats" not in fields
    config = config_pb.ModelConfig(
        input=[config_pb.ModelInput(data_type="TYPE_FP32", dims=[-1])],
        parameters={"b": config_pb.ModelParameter(string_value="x")},
        version_policy={"all": {}},
    )
    fields = exchange.message_fields(config)
    assert fields["input"][0]["data_type"] == "TYPE_FP32"
    assert fields["parameters"] == {"b": {"string_value": "x"}}
    assert fields["version_policy"] == {"all": {}}


@pytest.mark.parametrize(
    ("method", "names", "body", "message"),
    [
        ("ModelMetadata", {"model": "m", "version": "3"}, b"", pb.ModelMetadataRequest(name="m", version="3")),
        (
            "RepositoryIndex",
            {"repository": "r"},
            b'{"ready": true}',
            pb.RepositoryIndexRequest(repository_name="r", ready=True),
        ),
        (
            "RepositoryModelUnload",
            {"model": "m"},
            b'{"parameters": {"a": true}}',
            pb.RepositoryModelUnloadRequest(
                model_name="m", parameters={"a": pb.ModelRepositoryParameter(bool_param=True)}
            ),
        ),
        (
            "SystemSharedMemoryRegister",
            {"region": "r"},
            b'{"key": "/k", "byte_size": 4}',
            pb.SystemSharedMemoryRegisterRequest(name="r", key="/k", byte_size=4),
        ),
    ],
)
async def test_by_message_fills_the_message_from_path_and_body(
    method: str, names: dict[str, str], body: bytes, message: Message
) -> None:
    found: list[Message] = []

    async def handler(request: Message, context: Context) -> Message:
        found.append(request)
        answer: Message = getattr(pb, f"{method}Response")()
        return answer

    name = re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()
    service = Service(pb.DESCRIPTOR.services_by_name["GRPCInferenceService"], SimpleNamespace(**{name: handler}))
    calls = Calls(service, cast(Any, None), cast(Any, None), cast(Any, None))
    await handlers.by_message(calls, HttpRequest("POST", "/", body=body), method, names)
    assert found == [message]


def test_frame_of_has_the_fields_of_the_query() -> None:
    query = {"camera": "door", "score": "0.3", "class_agnostic": "true", "region": "1,2,3,4", "rotation": "180"}
    request = handlers.frame_of(HttpRequest("POST", "/", query=query, body=b"jpeg"), "m")
    frame = request.message
    assert (frame.model, frame.camera, request.picture, frame.rotation) == ("m", "door", b"jpeg", 180)
    assert frame.WhichOneof("image") == "encoded"
    assert (frame.region.x, frame.region.y, frame.region.width, frame.region.height) == (1, 2, 3, 4)
    assert frame.thresholds.score == pytest.approx(0.3)
    assert frame.thresholds.class_agnostic is True
    assert not frame.thresholds.HasField("iou")
    assert not handlers.frame_of(HttpRequest("POST", "/", body=b"jpeg"), "").message.HasField("thresholds")


@pytest.mark.parametrize(
    ("query", "headers", "body"),
    [
        ({"scor": "1"}, {}, b"jpeg"),
        ({"score": "abc"}, {}, b"jpeg"),
        ({"region": "1,2,3"}, {}, b"jpeg"),
        ({}, {"content-type": "multipart/form-data; boundary=x"}, b"jpeg"),
        ({}, {}, b""),
    ],
)
def test_frame_of_invalid_request_is_refused(query: dict[str, str], headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(InvalidInput):
        handlers.frame_of(HttpRequest("POST", "/", headers, query, body), "m")

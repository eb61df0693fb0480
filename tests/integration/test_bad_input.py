"""Whatever is wrong gets one clear line with the right gRPC code, and the daemon serves on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from edged.proto import cameras_pb2 as cameras
from edged.proto import open_inference_pb2 as inference
from edged.shapes import Scene
from tests.integration.daemon import Daemon, wait_for

Call = Any


@pytest.fixture(scope="module")
def channel(daemon: Daemon) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(daemon.unix) as channel:
        yield channel


@pytest.fixture(autouse=True)
def serves_on(daemon: Daemon) -> Iterator[None]:
    yield
    with daemon.client() as client:
        assert client.infer("shapes", Scene(3).frame(0)[0]).error is None


def infer(channel: grpc.Channel, request: inference.ModelInferRequest) -> inference.ModelInferResponse:
    call = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=inference.ModelInferRequest.SerializeToString,
        response_deserializer=inference.ModelInferResponse.FromString,
    )
    answer: inference.ModelInferResponse = call(request, timeout=20)
    return answer


def detect(channel: grpc.Channel, frame: cameras.Frame) -> cameras.Result:
    call = channel.unary_unary(
        "/edged.v1.Cameras/DetectOne",
        request_serializer=cameras.Frame.SerializeToString,
        response_deserializer=cameras.Result.FromString,
    )
    answer: cameras.Result = call(frame, timeout=20)
    return answer


def request(model: str = "id_FP32", **changes: Any) -> inference.ModelInferRequest:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], **changes}
    return inference.ModelInferRequest(
        model_name=model,
        inputs=[inference.ModelInferRequest.InferInputTensor(**tensor)],
        raw_input_contents=[np.zeros(4, np.float32).tobytes()],
    )


def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    message = caught.value.details()
    assert message
    assert "\n" not in message
    assert len(message) < 600
    return caught.value.code(), message


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("truncated", "truncated"),
        ("text", "not a whole ONNX model"),
        ("lost_weights", "weights.bin' is missing"),
        ("unknown_operator", "Frobnicate"),
    ],
)
def test_model_that_cannot_be_served_has_its_reason(
    channel: grpc.Channel, daemon: Daemon, model: str, words: str
) -> None:
    with daemon.client() as client:
        wait_for("the model is refused", lambda: any(m.name == model and m.state == "refused" for m in client.models()))
    code, message = refusal(lambda: infer(channel, request(model)))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert words in message
    assert model in message


@pytest.mark.parametrize(
    "encoded", [b"", b"hello", b"\xff\xd8\xff\xe0 broken", b"\x89PNG\r\n\x1a\n" + b"\0" * 40], ids=range(4)
)
def test_an_undecodable_picture_is_the_callers_fault(channel: grpc.Channel, encoded: bytes) -> None:
    code, _ = refusal(lambda: detect(channel, cameras.Frame(model="shapes", encoded=encoded)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_a_frame_without_an_image_is_refused(channel: grpc.Channel) -> None:
    code, message = refusal(lambda: detect(channel, cameras.Frame(model="shapes")))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "no image" in message


def test_a_raw_image_of_the_wrong_size_is_refused(channel: grpc.Channel) -> None:
    raw = cameras.RawImage(format=cameras.BGR, width=64, height=64, data=b"\0" * 100)
    code, message = refusal(lambda: detect(channel, cameras.Frame(model="shapes", raw=raw)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "12288" in message.replace(",", "")


def test_picture_for_a_tensor_model_is_refused(channel: grpc.Channel, daemon: Daemon) -> None:
    daemon.ready("id_FP32")
    code, message = refusal(lambda: detect(channel, cameras.Frame(model="id_FP32", encoded=b"\xff\xd8\xff")))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "takes no picture" in message


def test_a_damaged_frame_in_a_stream_is_answered_and_the_stream_goes_on(daemon: Daemon) -> None:
    good = Scene(3).frame(0)[0]
    with daemon.client() as client:
        answers: list[Any] = []
        for picture in (good, b"\xff\xd8\xff nothing", good):
            # one at a time, so that none overtakes another
            answers += list(client.stream("shapes", [picture]))
    assert [a.error is None for a in answers] == [True, False, True]
    assert answers[1].error[0] == "INVALID_ARGUMENT"


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    call = channel.unary_unary("/inference.GRPCInferenceService/Nonsense", request_serializer=lambda b: b)
    code, _ = refusal(lambda: call(b"", timeout=10))
    assert code is grpc.StatusCode.UNIMPLEMENTED

"""Invalid input gets a one-line error with the right gRPC code, and the daemon continues to serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from edged.proto import cameras_pb2 as cameras
from edged.shapes import Scene
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import method, refusal, request


@pytest.fixture(autouse=True)
def serves_on(daemon: Daemon) -> Iterator[None]:
    yield
    with daemon.client() as client:
        assert client.infer("shapes", Scene(3).frame(0)[0]).error is None


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("truncated", "truncated"),
        ("text", "not an ONNX model"),
        ("lost_weights", "weights.bin' is missing"),
        ("unknown_operator", "Frobnicate"),
    ],
)
def test_model_that_cannot_be_served_has_its_reason(
    channel: grpc.Channel, daemon: Daemon, model: str, words: str
) -> None:
    with daemon.client() as client:
        wait_for("the model is refused", lambda: any(m.name == model and m.state == "refused" for m in client.models()))
    code, message = refusal(method(channel, "ModelInfer"), request(model, np.zeros((1, 4), np.float32)), timeout=20)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert words in message
    assert model in message


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        *(
            ({"encoded": data}, "")
            for data in (b"", b"hello", b"\xff\xd8\xff\xe0 broken", b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
        ),
        ({}, "no image"),
        ({"raw": cameras.RawImage(format=cameras.BGR, width=64, height=64, data=b"\0" * 100)}, "12288"),
        ({"model": "id_FP32", "encoded": b"\xff\xd8\xff"}, "takes no pictures"),
    ],
    ids=range(7),
)
def test_invalid_picture_is_refused(channel: grpc.Channel, daemon: Daemon, frame: dict[str, Any], words: str) -> None:
    daemon.ready("id_FP32")
    code, message = refusal(method(channel, "DetectOne"), cameras.Frame(**{"model": "shapes", **frame}), timeout=20)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in message.replace(",", "")


def test_stream_damaged_frame_gets_an_error_and_the_stream_continues(daemon: Daemon) -> None:
    good = Scene(3).frame(0)[0]
    with daemon.client() as client:
        answers: list[Any] = []
        for picture in (good, b"\xff\xd8\xff nothing", good):
            # one at a time, so that no frame replaces another
            answers += list(client.stream("shapes", [picture]))
    assert [a.error is None for a in answers] == [True, False, True]
    assert answers[1].error[0] == "INVALID_ARGUMENT"

"""Which large messages are parsed, and which are refused before."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from edged.api.grpc.bulk import SMALL, require_parsable
from edged.errors import InvalidInput
from edged.proto import cameras_pb2 as cameras
from edged.proto import open_inference_pb2 as inference
from edged.proto import operations_pb2 as operations

_LARGE = bytes(4 * SMALL)


def _typed(**values: object) -> inference.ModelInferRequest:
    request = inference.ModelInferRequest(model_name="m")
    request.inputs.add(name="x", contents=inference.InferTensorContents(**values))
    return request


def _uploaded() -> inference.RepositoryModelLoadRequest:
    request = inference.RepositoryModelLoadRequest(model_name="m")
    request.parameters["file:1/model.onnx"].bytes_param = _LARGE
    return request


@pytest.mark.parametrize(
    "message",
    [
        cameras.Frame(camera="a", encoded=_LARGE),
        cameras.Frame(camera="a", raw=cameras.RawImage(width=1, data=_LARGE)),
        inference.ModelInferRequest(model_name="m", raw_input_contents=[_LARGE, _LARGE]),
        _typed(fp32_contents=[1.0] * SMALL),
        _typed(uint_contents=[200] * SMALL),
        _typed(bytes_contents=[_LARGE, b"x"]),
        _uploaded(),
        operations.AddModelRequest(chunk=_LARGE),
        inference.ModelReadyRequest(name="x" * (SMALL - 10)),
    ],
    ids=range(9),
)
def test_require_parsable_large_contents_passes(message: Message) -> None:
    require_parsable(message.SerializeToString(), type(message))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (inference.ModelInferRequest, b"\x2a\x00" * SMALL),  # empty inputs
        (inference.ModelInferRequest, inference.ModelInferRequest(model_name="x" * 2 * SMALL).SerializeToString()),
        (inference.ModelInferRequest, _typed(uint_contents=[1] * 64 * SMALL).SerializeToString()),
        (inference.ModelInferRequest, _typed(bytes_contents=[b"xy" * 50] * 5000).SerializeToString()),
        (inference.ModelReadyRequest, inference.ModelReadyRequest(name="x" * 2 * SMALL).SerializeToString()),
        (cameras.Frame, cameras.Frame(raw=cameras.RawImage(data=_LARGE)).SerializeToString()[:-1]),
        (cameras.Frame, b"\x62\x00" * SMALL),  # options, again and again
        (cameras.Frame, b"\xff" * 2 * SMALL),
        (cameras.Frame, b"\x0b" * 2 * SMALL),  # a group, which proto3 does not have
    ],
    ids=range(9),
)
def test_require_parsable_costly_message_is_refused(kind: type[Message], data: bytes) -> None:
    with pytest.raises(InvalidInput):
        require_parsable(data, kind)

"""Calls of the daemon's services with edged's own messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass

from edged.proto import cameras_pb2, operations_pb2
from edged.proto import open_inference_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

_METHODS = {
    method.name: method
    for module in (pb, cameras_pb2, operations_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def method(channel: Any, name: str) -> Any:
    """Return a method of GRPCInferenceService, Cameras or Operations on a channel, blocking or asynchronous."""
    found = _METHODS[name]
    given, got = ("stream" if many else "unary" for many in (found.client_streaming, found.server_streaming))
    return getattr(channel, f"{given}_{got}")(
        f"/{found.containing_service.full_name}/{name}",
        request_serializer=GetMessageClass(found.input_type).SerializeToString,
        response_deserializer=GetMessageClass(found.output_type).FromString,
    )


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
    """Return the status and message of a call that must fail. The message must be one short line."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **options)
    words = str(caught.value.details())
    assert 0 < len(words) < 600
    assert "\n" not in words
    assert "Traceback" not in words
    code: grpc.StatusCode = caught.value.code()
    return code, words


def tell(parameters: Any, **values: bool | int | str | float) -> None:
    """Add parameters as clients send them: integers as signed values."""
    fields = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for key, value in values.items():
        setattr(parameters[key], fields[type(value)], value)


def request(model: str, values: Any, name: str = "x", datatype: str = "FP32", **fields: Any) -> pb.ModelInferRequest:
    """Return a request with one raw tensor."""
    made = pb.ModelInferRequest(model_name=model, **fields)
    made.inputs.add(name=name, datatype=datatype, shape=values.shape)
    made.raw_input_contents.append(np.ascontiguousarray(values).tobytes())
    return made


def infer(channel: grpc.Channel, message: pb.ModelInferRequest, timeout: float = 60) -> pb.ModelInferResponse:
    """Send a tensor request and return its answer."""
    answer: pb.ModelInferResponse = method(channel, "ModelInfer")(message, timeout=timeout)
    return answer


class Calls:
    """Blocking calls to one daemon. Use it in a `with`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def __call__(self, name: str, /, **fields: Any) -> Any:
        """Call a method of GRPCInferenceService with a request of these fields."""
        return method(self._channel, name)(getattr(pb, f"{name}Request")(**fields), timeout=60)

    def infer(self, message: pb.ModelInferRequest) -> pb.ModelInferResponse:
        return infer(self._channel, message)

    def statistics(self, model: str = "", version: str = "") -> Sequence[pb.ModelStatistics]:
        answer: pb.ModelStatisticsResponse = self("ModelStatistics", name=model, version=version)
        return answer.model_stats

    def trace(self, model: str = "", **settings: Sequence[str]) -> dict[str, list[str]]:
        """Change trace settings; return all of them."""
        asked = pb.TraceSettingRequest(model_name=model)
        for name, values in settings.items():
            asked.settings[name].value.extend(values)
        answer = method(self._channel, "TraceSetting")(asked, timeout=60)
        return {name: list(value.value) for name, value in answer.settings.items()}

    def log(self, **settings: bool | int | str) -> dict[str, bool | int | str]:
        """Change log settings; return all of them."""
        asked = pb.LogSettingsRequest()
        for name, value in settings.items():
            kind = "bool_param" if isinstance(value, bool) else "uint32_param" if isinstance(value, int) else ""
            setattr(asked.settings[name], kind or "string_param", value)
        answer = method(self._channel, "LogSettings")(asked, timeout=60)
        return {n: getattr(v, str(v.WhichOneof("parameter_choice"))) for n, v in answer.settings.items()}

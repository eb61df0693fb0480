"""Calls of inference.GRPCInferenceService with our own messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np

from edged.proto import open_inference_pb2 as pb


def method(channel: Any, name: str) -> Any:
    """A unary method of the service on a channel, blocking or not."""
    return channel.unary_unary(
        f"/inference.GRPCInferenceService/{name}",
        request_serializer=getattr(pb, f"{name}Request").SerializeToString,
        response_deserializer=getattr(pb, f"{name}Response").FromString,
    )


def request(model: str, values: Any, name: str = "x", datatype: str = "FP32", **fields: Any) -> pb.ModelInferRequest:
    """A request of one raw tensor."""
    made = pb.ModelInferRequest(model_name=model, **fields)
    made.inputs.add(name=name, datatype=datatype, shape=values.shape)
    made.raw_input_contents.append(np.ascontiguousarray(values).tobytes())
    return made


class Calls:
    """Blocking calls of one daemon. Use in a `with`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def infer(self, message: pb.ModelInferRequest) -> pb.ModelInferResponse:
        return method(self._channel, "ModelInfer")(message, timeout=60)

    def statistics(self, model: str = "", version: str = "") -> Sequence[pb.ModelStatistics]:
        asked = pb.ModelStatisticsRequest(name=model, version=version)
        answer: pb.ModelStatisticsResponse = method(self._channel, "ModelStatistics")(asked, timeout=60)
        return answer.model_stats

    def trace(self, model: str = "", **settings: Sequence[str]) -> dict[str, list[str]]:
        """Changes trace settings; returns all."""
        asked = pb.TraceSettingRequest(model_name=model)
        for name, values in settings.items():
            asked.settings[name].value.extend(values)
        answer = method(self._channel, "TraceSetting")(asked, timeout=60)
        return {name: list(value.value) for name, value in answer.settings.items()}

    def log(self, **settings: bool | int | str) -> dict[str, bool | int | str]:
        """Changes log settings; returns all."""
        asked = pb.LogSettingsRequest()
        for name, value in settings.items():
            kind = "bool_param" if isinstance(value, bool) else "uint32_param" if isinstance(value, int) else ""
            setattr(asked.settings[name], kind or "string_param", value)
        answer = method(self._channel, "LogSettings")(asked, timeout=60)
        return {n: getattr(v, str(v.WhichOneof("parameter_choice"))) for n, v in answer.settings.items()}

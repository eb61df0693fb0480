"""Every call the daemon offers: its path, what is sent, and how the answer is read. No IO, so that the blocking and
the asynchronous client are the same but for waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from edged.client import cameras, commands, operations, result
from edged.client import events as happened
from edged.client.cameras import CameraInfo
from edged.client.frames import Picture, single
from edged.client.load import LoadInfo, load_info
from edged.client.options import Asked
from edged.proto import cameras_pb2, operations_pb2

Answer = TypeVar("Answer")

DETECT = "/edged.v1.Cameras/Detect"
ADD_MODEL = "/edged.v1.Operations/AddModel"

# Frames and tensors of any size; backoff short enough that a client finds a restarted daemon within a second; no
# shared connections, whose backoff would outlive the client that met it; and never the proxy of http_proxy, which
# would even take calls to localhost.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...


def serialize(message: _Message) -> bytes:
    return message.SerializeToString()


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One request and its one answer: `read` turns the answer's bytes into a protobuf message, `parse` that into the
    value for the user."""

    path: str
    request: _Message
    read: Callable[[bytes], Any]
    parse: Callable[[Any], Answer]


def infer(model: str, image: Picture, camera: str, wanted: Asked) -> Call[result.Result]:
    """A picture on its own has no capture time; its age counts from when the daemon receives it."""
    frame = single(model, image, camera, wanted)
    return Call("/edged.v1.Cameras/DetectOne", frame, cameras_pb2.Result.FromString, result.from_proto)


def models() -> Call[list[operations.ModelInfo]]:
    return Call(
        "/edged.v1.Operations/ListModels",
        operations_pb2.ListModelsRequest(),
        operations_pb2.ListModelsResponse.FromString,
        lambda answer: [operations.model_info(model) for model in answer.models],
    )


def engines(model: str | None) -> Call[list[operations.EngineInfo]]:
    return Call(
        "/edged.v1.Operations/ListEngines",
        operations_pb2.ListEnginesRequest(model=model or ""),
        operations_pb2.ListEnginesResponse.FromString,
        lambda answer: [operations.engine_info(engine) for engine in answer.engines],
    )


def explain(model: str) -> Call[list[operations.Explanation]]:
    return Call(
        "/edged.v1.Operations/ExplainEngine",
        operations_pb2.ExplainEngineRequest(model=model),
        operations_pb2.ExplainEngineResponse.FromString,
        lambda answer: [operations.explanation(each) for each in answer.explanations],
    )


def device() -> Call[operations.DeviceInfo]:
    return Call(
        "/edged.v1.Operations/GetDevice",
        operations_pb2.GetDeviceRequest(),
        operations_pb2.GetDeviceResponse.FromString,
        operations.device_info,
    )


def camera_list() -> Call[list[CameraInfo]]:
    return Call(
        "/edged.v1.Operations/ListCameras",
        operations_pb2.ListCamerasRequest(),
        operations_pb2.ListCamerasResponse.FromString,
        cameras.camera_list,
    )


def refresh_device() -> Call[list[operations.PartChange]]:
    return Call(
        "/edged.v1.Operations/RefreshDevice",
        operations_pb2.RefreshDeviceRequest(),
        operations_pb2.RefreshDeviceResponse.FromString,
        lambda answer: [operations.PartChange(c.part, c.old, c.new) for c in answer.changes],
    )


def events(after: int, epoch: str, follow: bool) -> Call[happened.EventInfo]:
    """Answered many times."""
    return Call(
        "/edged.v1.Operations/WatchEvents",
        operations_pb2.WatchEventsRequest(after=after, epoch=epoch, follow=follow),
        operations_pb2.Event.FromString,
        happened.event_info,
    )


def rebuild(selector: operations_pb2.Selector, force: bool, follow: bool) -> Call[commands.EngineProgress]:
    """Answered many times."""
    return Call(
        "/edged.v1.Operations/Rebuild",
        operations_pb2.RebuildRequest(selector=selector, force=force, follow=follow),
        operations_pb2.EngineProgress.FromString,
        commands.progress,
    )


def verify(selector: operations_pb2.Selector, follow: bool) -> Call[commands.EngineProgress]:
    """Answered many times."""
    return Call(
        "/edged.v1.Operations/Verify",
        operations_pb2.VerifyRequest(selector=selector, follow=follow),
        operations_pb2.EngineProgress.FromString,
        commands.progress,
    )


def select(verb: str, selector: operations_pb2.Selector) -> Call[list[str]]:
    """Cancel, Pin, Unpin or Evict; answered with the keys."""
    return Call(
        f"/edged.v1.Operations/{verb}",
        operations_pb2.SelectEngines(selector=selector),
        operations_pb2.SelectedEngines.FromString,
        lambda answer: list(answer.keys),
    )


def status() -> Call[commands.StatusInfo]:
    return Call(
        "/edged.v1.Operations/GetStatus",
        operations_pb2.GetStatusRequest(),
        operations_pb2.GetStatusResponse.FromString,
        commands.status,
    )


def load() -> Call[LoadInfo]:
    return Call(
        "/edged.v1.Operations/GetLoad",
        operations_pb2.GetLoadRequest(),
        operations_pb2.GetLoadResponse.FromString,
        load_info,
    )


def reload() -> Call[list[commands.ReloadedKey]]:
    return Call(
        "/edged.v1.Operations/Reload",
        operations_pb2.ReloadRequest(),
        operations_pb2.ReloadResponse.FromString,
        lambda answer: [commands.ReloadedKey(each.key, each.told, each.problem) for each in answer.keys],
    )


def remove_model(name: str, delete: bool) -> Call[str]:
    return Call(
        "/edged.v1.Operations/RemoveModel",
        operations_pb2.RemoveModelRequest(name=name, delete=delete),
        operations_pb2.RemoveModelResponse.FromString,
        lambda answer: answer.kept,
    )

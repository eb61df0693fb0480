"""The calls of the daemon that both clients offer, each described once: path, request, and how the answer is read.

Nothing here does IO. `Client` performs a described call, `AsyncClient` awaits it; so there is one signature and one
docstring for both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, get_args, overload

import msgspec
from google.protobuf.message import Message

from edged import events
from edged.api_types import (
    CameraInfo,
    DeviceInfo,
    EngineInfo,
    EngineProgress,
    EventInfo,
    Explanation,
    LoadInfo,
    ModelInfo,
    PartChange,
    ReloadedKey,
    StatusInfo,
)
from edged.client.frames import Picture, Region, frame_options, single
from edged.client.result import Result, from_proto
from edged.message_mapper import AnyStruct, to_struct
from edged.proto import cameras_pb2
from edged.proto import operations_pb2 as pb

if TYPE_CHECKING:
    from edged.client.client import AsyncClient, Client
    from edged.client.updates import AsyncUpdates, Updates

Answer = TypeVar("Answer")
AnswerType = TypeVar("AnswerType", covariant=True)
Arguments = ParamSpec("Arguments")

DETECT = "/edged.v1.Cameras/Detect"
_OPERATIONS = "/edged.v1.Operations/"
ADD_MODEL = _OPERATIONS + "AddModel"

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
_EVENT_TYPES: dict[str, type[events.What]] = {str(kind.__struct_config__.tag): kind for kind in get_args(events.What)}


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One request and its answers: `kind` is the class of their messages, `parse` makes a value for the user of one.

    `follow`: the answers may go on forever, so the call has no deadline.
    """

    path: str
    request: Message
    kind: type[Message]
    parse: Callable[[Any], Answer]
    follow: bool = False


def serialize(message: Message) -> bytes:
    return message.SerializeToString()


class UnaryMethod(Protocol[Arguments, AnswerType]):
    """The type of a method that `unary` made: blocking in one client, a coroutine in the other."""

    @overload
    def __get__(self, client: Client, owner: type[Client]) -> Callable[Arguments, AnswerType]: ...
    @overload
    def __get__(
        self, client: AsyncClient, owner: type[AsyncClient]
    ) -> Callable[Arguments, Coroutine[Any, Any, AnswerType]]: ...


def unary(describe: Callable[Concatenate[Any, Arguments], Call[Answer]]) -> UnaryMethod[Arguments, Answer]:
    """Make a client's method of a description: it performs the call and returns its one answer."""

    @functools.wraps(describe)
    def method(client: Any, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
        return client._ask(describe(client, *args, **kwargs))

    return cast("UnaryMethod[Arguments, Answer]", method)


class CommandMethod(Protocol[Arguments, Answer]):
    """The type of a method that `command` made."""

    @overload
    def __get__(self, client: Client, owner: type[Client]) -> Callable[Arguments, Updates[Answer]]: ...
    @overload
    def __get__(
        self, client: AsyncClient, owner: type[AsyncClient]
    ) -> Callable[Arguments, Coroutine[Any, Any, AsyncUpdates[Answer]]]: ...


def command(describe: Callable[Concatenate[Any, Arguments], Call[Answer]]) -> CommandMethod[Arguments, Answer]:
    """Make a client's method of a description: it waits for the first answer and returns all of them as updates."""

    @functools.wraps(describe)
    def method(client: Any, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
        return client._watch(describe(client, *args, **kwargs)).begin(client.timeout)

    return cast("CommandMethod[Arguments, Answer]", method)


class DaemonCalls:
    """The methods that `Client` and `AsyncClient` have in common."""

    @unary
    def infer(
        self,
        model: str,
        image: Picture,
        *,
        camera: str = "",
        score: float | None = None,
        iou: float | None = None,
        max_detections: int | None = None,
        class_agnostic: bool | None = None,
        region: Region | None = None,
        rotation: int = 0,
    ) -> Call[Result]:
        """Return the result of one picture. The thresholds, 0..1, override the model's; arrays travel as they are.

        Only `region` of the picture is looked at: x, y, width, height in its pixels; a size of 0 goes to the edge.
        Before that the picture is turned `rotation` degrees clockwise: 0, 90, 180 or 270. Results are in pixels of the
        picture as given. With `class_agnostic` boxes of different classes suppress each other. A picture on its own
        has no capture time; its age counts from when the daemon receives it.
        """
        wanted = frame_options(score, iou, max_detections, class_agnostic, region, rotation)
        frame = single(model, image, camera, wanted)
        return Call("/edged.v1.Cameras/DetectOne", frame, cameras_pb2.Result, from_proto)

    @unary
    def models(self) -> Call[list[ModelInfo]]:
        """Return every model of the daemon."""
        parse = _list_of("models", ModelInfo)
        return Call(_OPERATIONS + "ListModels", pb.ListModelsRequest(), pb.ListModelsResponse, parse)

    @unary
    def engines(self, model: str | None = None) -> Call[list[EngineInfo]]:
        """Return the engines of one model, or of all."""
        request = pb.ListEnginesRequest(model=model or "")
        return Call(_OPERATIONS + "ListEngines", request, pb.ListEnginesResponse, _engines)

    @unary
    def explain(self, model: str) -> Call[list[Explanation]]:
        """For each engine that the model should have here: which key parts differ from the nearest stored engine."""
        request, parse = pb.ExplainEngineRequest(model=model), _list_of("explanations", Explanation)
        return Call(_OPERATIONS + "ExplainEngine", request, pb.ExplainEngineResponse, parse)

    @unary
    def cameras(self) -> Call[list[CameraInfo]]:
        """Return every camera that sends frames or did lately."""
        parse = _list_of("cameras", CameraInfo)
        return Call(_OPERATIONS + "ListCameras", pb.ListCamerasRequest(), pb.ListCamerasResponse, parse)

    @unary
    def device(self) -> Call[DeviceInfo]:
        """Return the facts of the daemon's device."""
        return Call(_OPERATIONS + "GetDevice", pb.GetDeviceRequest(), pb.GetDeviceResponse, _one(DeviceInfo))

    @unary
    def refresh_device(self) -> Call[list[PartChange]]:
        """Have the daemon read its device's facts again and plan engines from them; return what changed."""
        parse = _list_of("changes", PartChange)
        return Call(_OPERATIONS + "RefreshDevice", pb.RefreshDeviceRequest(), pb.RefreshDeviceResponse, parse)

    @unary
    def status(self) -> Call[StatusInfo]:
        """Return the whole box at a glance: what serves, what is being made, what is wrong."""
        return Call(_OPERATIONS + "GetStatus", pb.GetStatusRequest(), pb.GetStatusResponse, _one(StatusInfo))

    @unary
    def load(self) -> Call[LoadInfo]:
        """Return what the box does now: models, cameras, engine hosts, device. Rates follow from two of these."""
        return Call(_OPERATIONS + "GetLoad", pb.GetLoadRequest(), pb.GetLoadResponse, _one(LoadInfo))

    @unary
    def reload(self) -> Call[list[ReloadedKey]]:
        """Have the daemon read its configuration file again; return the keys that changed, in force or not.

        InvalidInput if the file is wrong; the daemon then goes on with the old configuration.
        """
        parse = _list_of("keys", ReloadedKey)
        return Call(_OPERATIONS + "Reload", pb.ReloadRequest(), pb.ReloadResponse, parse)

    @command
    def rebuild(
        self,
        model: str | None = None,
        *,
        engine: str | None = None,
        everything: bool = False,
        force: bool = False,
        follow: bool = True,
    ) -> Call[EngineProgress]:
        """Make engines of a model, the one whose key begins with `engine`, or all: those that are missing for whatever
        reason, with `force` all that are selected. What serves goes on serving meanwhile.

        When this returns the work is under way. Closing the returned updates does not end it: `cancel` does. The
        updates begin with one for every selected engine; with `follow` they go on until all have their outcome.
        Raises Refused, NotFound or InvalidInput.
        """
        request = pb.RebuildRequest(selector=_selector(model, engine, everything), force=force, follow=follow)
        return Call(_OPERATIONS + "Rebuild", request, pb.EngineProgress, _one(EngineProgress), follow)

    @command
    def verify(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False, follow: bool = True
    ) -> Call[EngineProgress]:
        """Compare engines with the reference and time them again; otherwise as `rebuild`."""
        request = pb.VerifyRequest(selector=_selector(model, engine, everything), follow=follow)
        return Call(_OPERATIONS + "Verify", request, pb.EngineProgress, _one(EngineProgress), follow)

    @unary
    def cancel(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False
    ) -> Call[list[str]]:
        """Stop making engines; return their keys."""
        return _select("Cancel", model, engine, everything)

    @unary
    def pin(self, model: str | None = None, *, engine: str | None = None, everything: bool = False) -> Call[list[str]]:
        """Keep engines from being evicted; return their keys."""
        return _select("Pin", model, engine, everything)

    @unary
    def unpin(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False
    ) -> Call[list[str]]:
        """Let engines be evicted again; return their keys."""
        return _select("Unpin", model, engine, everything)

    @unary
    def evict(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False
    ) -> Call[list[str]]:
        """Remove the files of engines; return their keys. Refused for an engine that serves or is pinned;
        `everything` selects all that nothing needs."""
        return _select("Evict", model, engine, everything)

    @unary
    def remove_model(self, name: str, *, delete: bool = False) -> Call[str]:
        """Remove a model. Return the folder on the box that its files were moved to; empty with `delete`."""
        request = pb.RemoveModelRequest(name=name, delete=delete)
        return Call(_OPERATIONS + "RemoveModel", request, pb.RemoveModelResponse, lambda answer: str(answer.kept))


def watch_events(after: int, epoch: str, follow: bool) -> Call[EventInfo]:
    request = pb.WatchEventsRequest(after=after, epoch=epoch, follow=follow)
    return Call(_OPERATIONS + "WatchEvents", request, pb.Event, event_info, follow)


def event_info(message: pb.Event) -> EventInfo:
    """Read an event; one of a kind that this client does not know yet has no `what`."""
    kind = message.WhichOneof("what")
    return EventInfo(
        epoch=message.epoch,
        sequence=message.sequence,
        unix_s=message.unix_s,
        kind=kind or "unknown",
        model=message.model,
        engine=message.engine,
        what=None if kind is None else to_struct(getattr(message, kind), _EVENT_TYPES[kind]),
    )


def engine_info(message: pb.Engine) -> EngineInfo:
    """Read an engine, the parts of its key in the key's order: a map has none on the wire."""
    info = to_struct(message, EngineInfo)
    first = ("format", "model", "recipe.")
    ranks = {name: next((i for i, p in enumerate(first) if name.startswith(p)), len(first)) for name in info.parts}
    return msgspec.structs.replace(
        info, parts={name: info.parts[name] for name in sorted(ranks, key=ranks.__getitem__)}
    )


def _engines(answer: pb.ListEnginesResponse) -> list[EngineInfo]:
    return [engine_info(each) for each in answer.engines]


def _one(kind: type[AnyStruct]) -> Callable[[Message], AnyStruct]:
    return lambda answer: to_struct(answer, kind)


def _list_of(field: str, kind: type[AnyStruct]) -> Callable[[Message], list[AnyStruct]]:
    def parse(answer: Message) -> list[AnyStruct]:
        found: Iterable[Message] = getattr(answer, field)
        return [to_struct(each, kind) for each in found]

    return parse


def _selector(model: str | None, engine: str | None, everything: bool) -> pb.Selector:
    """The engines that a command is about; the daemon rejects combinations that make no sense."""
    return pb.Selector(model=model or "", engine=engine or "", everything=everything)


def _select(verb: str, model: str | None, engine: str | None, everything: bool) -> Call[list[str]]:
    request = pb.SelectEngines(selector=_selector(model, engine, everything))
    return Call(_OPERATIONS + verb, request, pb.SelectedEngines, lambda answer: list(answer.keys))

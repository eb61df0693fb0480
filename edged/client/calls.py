"""The calls of the daemon that both clients offer, each described once: path, request, and how the answer is read.

Nothing here does IO. `Client` performs a described call, `AsyncClient` awaits it; so there is one signature and one
docstring for both.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
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
from edged.backoff import Backoff
from edged.client.frames import Captured, FrameOptions, Picture, Region, frame_options, single, stream_options
from edged.client.result import Result, from_proto
from edged.client.upload import Package, Samples, Upload
from edged.message_mapper import AnyStruct, to_struct
from edged.models.repair import RepairOptions
from edged.proto import cameras_pb2
from edged.proto import operations_pb2 as pb

if TYPE_CHECKING:
    from edged.client.aio import AsyncClient, AsyncStream, AsyncUpdates
    from edged.client.client import Client
    from edged.client.stream import Stream, Updates

Answer = TypeVar("Answer")
Blocking = TypeVar("Blocking", covariant=True)
Asynchronous = TypeVar("Asynchronous", covariant=True)
Arguments = ParamSpec("Arguments")

_OPERATIONS = "/edged.v1.Operations/"
_EVENT_TYPES: dict[str, type[events.What]] = {str(kind.__struct_config__.tag): kind for kind in get_args(events.What)}


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One request and its answers: `kind` is the class of their messages, `parse` makes a value for the user of one.
    A request may be the bytes of its message.

    `timeout` in seconds; None for the client's. With `follow` the answers may go on forever, without a deadline.
    """

    path: str
    request: Message | bytes | Upload
    kind: type[Message]
    parse: Callable[[Any], Answer]
    follow: bool = False
    timeout: float | None = None


@dataclass(frozen=True)
class StreamCall:
    """A stream of one camera. `shared` is as in `stream`, `backoff` calls a daemon again that went away."""

    model: str
    camera: str
    frames: Iterable[Picture | Captured] | AsyncIterable[Picture | Captured]
    options: FrameOptions
    lossless: bool
    shared: bool | None
    backoff: Backoff | None


class Method(Protocol[Arguments, Blocking, Asynchronous]):
    """A method of both clients, and what it returns in each."""

    @overload
    def __get__(self, client: Client, owner: type[Client]) -> Callable[Arguments, Blocking]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type[AsyncClient]) -> Callable[Arguments, Asynchronous]: ...


def unary(
    describe: Callable[Concatenate[Any, Arguments], Call[Answer]],
) -> Method[Arguments, Answer, Coroutine[Any, Any, Answer]]:
    """Make a method of a description: it performs the call and returns its one answer."""
    return cast("Method[Arguments, Answer, Coroutine[Any, Any, Answer]]", _method(describe, "_ask"))


def watching(
    describe: Callable[Concatenate[Any, Arguments], Call[Answer]],
) -> Method[Arguments, Updates[Answer], AsyncUpdates[Answer]]:
    """Make a method of a description: it returns the answers as updates."""
    return cast("Method[Arguments, Updates[Answer], AsyncUpdates[Answer]]", _method(describe, "_watch"))


def command(
    describe: Callable[Concatenate[Any, Arguments], Call[Answer]],
) -> Method[Arguments, Updates[Answer], Coroutine[Any, Any, AsyncUpdates[Answer]]]:
    """As `watching`; the method waits for the first answer."""
    made = _method(describe, "_command")
    return cast("Method[Arguments, Updates[Answer], Coroutine[Any, Any, AsyncUpdates[Answer]]]", made)


def streaming(describe: Callable[Concatenate[Any, Arguments], StreamCall]) -> Method[Arguments, Stream, AsyncStream]:
    """Make a method of a description: it opens the stream."""
    return cast("Method[Arguments, Stream, AsyncStream]", _method(describe, "_stream"))


def _method(describe: Callable[..., object], perform: str) -> Callable[..., object]:
    """A method of both clients, whose method `perform` gets the description, yet to be called: it may read files."""

    @functools.wraps(describe)
    def method(client: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(client, perform)(functools.partial(describe, client, *args, **kwargs))

    return method


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

    @streaming
    def stream(
        self,
        model: str,
        frames: Iterable[Picture | Captured] | AsyncIterable[Picture | Captured],
        *,
        camera: str = "camera",
        score: float | None = None,
        iou: float | None = None,
        max_detections: int | None = None,
        lossless: bool = False,
        every_frame: bool = False,
        max_fps: float = 0.0,
        max_staleness: float = 0.0,
        weight: float = 1.0,
        priority: int = 0,
        track: bool = False,
        region: Region | None = None,
        rotation: int = 0,
        class_agnostic: bool | None = None,
        reconnect: bool | Backoff = False,
        shared: bool | None = None,
    ) -> StreamCall:
        """Send frames of one camera as they come; iterate over the results as they come.

        The daemon answers the newest frame and counts the frames that it skipped for it. With `every_frame` it queues
        and answers all; with `lossless` the next frame is taken from `frames` only after the last was answered. A frame
        that fails is a Result with `error` set, and the stream goes on.

        The daemon takes at most `max_fps` frames a second (0: all) and none that is older than `max_staleness` seconds
        when its turn comes (0: any). `weight` is the camera's share of the engine relative to other cameras of the
        model; those with a higher `priority`, -100 to 100, always go first. `track` gives detections a `tracker_id`.
        The thresholds, `region` and `rotation` are as in `infer`.

        Arrays go through shared memory if the daemon is behind a unix socket and can read it, otherwise as bytes:
        `shared` False always sends bytes; True raises SegmentUnusable instead. A frame whose
        place was overwritten before its turn counts as skipped.

        With `reconnect` the stream survives a daemon that goes away after it has answered once: it calls again after
        1, 5, 10, then every 60 seconds, or the pauses given, and goes on counting frames; those in flight count as
        failed. Otherwise that raises NotReady.

        `AsyncClient` also takes an asynchronous iterable. Call it inside the running event loop and close what it
        returns: `async with client.stream(...)`.
        """
        options = stream_options(every_frame, max_fps, max_staleness, weight, priority, track)
        wanted = frame_options(score, iou, max_detections, class_agnostic, region, rotation, options)
        backoff = Backoff() if reconnect is True else reconnect or None
        return StreamCall(model, camera, frames, wanted, lossless, shared, backoff)

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
        """Return every camera that is configured, sends frames, or did so lately."""
        parse = _list_of("cameras", CameraInfo)
        return Call(_OPERATIONS + "ListCameras", pb.ListCamerasRequest(), pb.ListCamerasResponse, parse)

    @unary
    def add_camera(self, name: str, settings: Mapping[str, str]) -> Call[CameraInfo]:
        """Add a camera that the daemon opens itself, with the keys below `[cameras.NAME]`: `source` and `model` at
        least. Values are written as in TOML, texts without quotes. Raises AlreadyExists or InvalidInput."""
        request = pb.AddCameraRequest(name=name, settings=dict(settings))
        return Call(_OPERATIONS + "AddCamera", request, pb.CameraStatus, _one(CameraInfo))

    @unary
    def set_camera(self, name: str, settings: Mapping[str, str]) -> Call[CameraInfo]:
        """Change settings of a camera that was added; an empty value resets one. It starts again. Raises NotFound, or
        InvalidInput, also for a camera of the daemon's configuration file."""
        request = pb.SetCameraRequest(name=name, settings=dict(settings))
        return Call(_OPERATIONS + "SetCamera", request, pb.CameraStatus, _one(CameraInfo))

    @unary
    def remove_camera(self, name: str) -> Call[None]:
        """Remove a camera that was added. Raises NotFound, or InvalidInput for one of the configuration file."""
        request = pb.RemoveCameraRequest(name=name)
        return Call(_OPERATIONS + "RemoveCamera", request, pb.RemoveCameraResponse, lambda answer: None)

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
        """Return the state of the whole box: models and engines, builds, alarms."""
        return Call(_OPERATIONS + "GetStatus", pb.GetStatusRequest(), pb.GetStatusResponse, _one(StatusInfo))

    @unary
    def load(self) -> Call[LoadInfo]:
        """Return the load of models, cameras, engine hosts and the device. Rates follow from two of these."""
        return Call(_OPERATIONS + "GetLoad", pb.GetLoadRequest(), pb.GetLoadResponse, _one(LoadInfo))

    @unary
    def reload(self) -> Call[list[ReloadedKey]]:
        """Have the daemon read its configuration file again; return the keys that changed, in force or not.

        InvalidInput if the file is wrong; the daemon then goes on with the old configuration.
        """
        parse = _list_of("keys", ReloadedKey)
        return Call(_OPERATIONS + "Reload", pb.ReloadRequest(), pb.ReloadResponse, parse)

    @watching
    def events(self, after: int = 0, *, epoch: str = "", follow: bool = False) -> Call[EventInfo]:
        """Return the events since the one numbered `after`, as far as they are kept; with `follow`, also new ones.

        Give the `epoch` of that event too if the daemon may have been restarted since: all kept events follow then,
        instead of those with higher numbers.
        """
        request = pb.WatchEventsRequest(after=after, epoch=epoch, follow=follow)
        return Call(_OPERATIONS + "WatchEvents", request, pb.Event, event_info, follow)

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
    def add_model(
        self,
        name: str,
        path: str | os.PathLike[str],
        settings: Mapping[str, str] | None = None,
        *,
        samples: Samples = (),
        repairs: RepairOptions | None = None,
        replace: bool = False,
        timeout: float = 600.0,
    ) -> Call[ModelInfo]:
        """Upload an ONNX file with its external data; `timeout` in seconds, since that may be gigabytes.

        Engines are verified with `samples`: pictures as JPEG or PNG files, tensors as *.npz files with an array for
        each input, or folders of them, 32 at most. `repairs` are made first:
        `edged.models.repair.RepairOptions(needed=True)` for those without which the model cannot be served.

        With `replace`, a model of the same name goes on serving until this one is ready; its other settings and its
        samples are kept. AlreadyExists without.
        """
        return _upload(Package.of(name, path, settings, samples, repairs, replace=replace), timeout)

    @unary
    def set_model(self, name: str, settings: Mapping[str, str]) -> Call[ModelInfo]:
        """Change settings of a model while it serves; an empty value removes one. The model is examined with them
        first. ModelNotFound, InvalidInput, ModelRefused."""
        request = pb.SetModelRequest(name=name, settings=dict(settings))
        return Call(_OPERATIONS + "SetModel", request, pb.ModelStatus, _one(ModelInfo), timeout=600.0)

    @unary
    def upload(self, package: Package, *, timeout: float = 600.0) -> Call[ModelInfo]:
        """Upload a package; it may go to several daemons, also at the same time."""
        return _upload(package, timeout)

    @unary
    def remove_model(self, name: str, *, delete: bool = False) -> Call[str]:
        """Remove a model. Return the folder on the box that its files were moved to; empty with `delete`."""
        request = pb.RemoveModelRequest(name=name, delete=delete)
        return Call(_OPERATIONS + "RemoveModel", request, pb.RemoveModelResponse, lambda answer: str(answer.kept))


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


def _upload(package: Package, timeout: float) -> Call[ModelInfo]:
    return Call(_OPERATIONS + "AddModel", Upload(package), pb.ModelStatus, _one(ModelInfo), timeout=timeout)


def _selector(model: str | None, engine: str | None, everything: bool) -> pb.Selector:
    """The engines that a command is about; the daemon rejects combinations that make no sense."""
    return pb.Selector(model=model or "", engine=engine or "", everything=everything)


def _select(verb: str, model: str | None, engine: str | None, everything: bool) -> Call[list[str]]:
    request = pb.SelectEngines(selector=_selector(model, engine, everything))
    return Call(_OPERATIONS + verb, request, pb.SelectedEngines, lambda answer: list(answer.keys))

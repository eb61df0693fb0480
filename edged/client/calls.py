"""The daemon's calls that both clients offer. Each call is described once: its path, its request, and how its answer is
parsed.

Nothing here connects to the daemon: `Client` performs a described call and `AsyncClient` awaits it. Both therefore
share signatures and docstrings.
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
    ChatText,
    DeviceInfo,
    EngineInfo,
    EngineProgress,
    EventInfo,
    Explanation,
    FrameCollection,
    GalleryInfo,
    LanguageModelInfo,
    LoadInfo,
    ModelInfo,
    PartChange,
    PipelineInfo,
    ReloadedKey,
    StatusInfo,
    TriedModel,
)
from edged.backoff import Backoff
from edged.client.frames import (
    Captured,
    FrameOptions,
    Picture,
    Region,
    frame_options,
    read_picture,
    single,
    stream_options,
    to_region,
)
from edged.client.result import Result, from_proto
from edged.client.upload import Package, Samples, Upload
from edged.errors import InvalidInput
from edged.message_mapper import AnyStruct, to_struct
from edged.models.repair import RepairOptions
from edged.proto import cameras_pb2, language_pb2
from edged.proto import operations_pb2 as pb

if TYPE_CHECKING:
    from edged.client.aio import AsyncClient, AsyncStream, AsyncUpdates
    from edged.client.client import Client
    from edged.client.stream import Stream, Updates

Answer = TypeVar("Answer")
Blocking = TypeVar("Blocking", covariant=True)
Asynchronous = TypeVar("Asynchronous", covariant=True)
Arguments = ParamSpec("Arguments")

_OPERATIONS, _LANGUAGE = "/edged.v1.Operations/", "/edged.v1.Language/"
_REPORT_S = 90.0  # seconds for the pictures of 12 frames on a slow box
_GALLERY_S = 120.0  # seconds for 32 pictures on a slow box
_EVENT_TYPES: dict[str, type[events.What]] = {str(kind.__struct_config__.tag): kind for kind in get_args(events.What)}


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One request and its answers. `kind` is the message class of an answer, and `parse` converts an answer to the
    value that the user gets. `request` may be an already serialized message.

    `timeout` is in seconds. If it is None, the client's timeout applies, or no deadline at all if `follow` is set. With
    `follow`, the answers may never end.
    """

    path: str
    request: Message | bytes | Upload
    kind: type[Message]
    parse: Callable[[Any], Answer]
    follow: bool = False
    timeout: float | None = None


@dataclass(frozen=True)
class StreamCall:
    """A stream of one camera. `shared` is as in `DaemonCalls.stream`. If the daemon goes away, the stream calls it
    again after the pauses of `backoff`; None means that the stream does not call it again."""

    model: str
    camera: str
    frames: Iterable[Picture | Captured] | AsyncIterable[Picture | Captured]
    options: FrameOptions
    lossless: bool
    shared: bool | None
    backoff: Backoff | None


class Method(Protocol[Arguments, Blocking, Asynchronous]):
    """The type of a method that both clients have: a descriptor that returns a blocking method for `Client`, and an
    asynchronous method for `AsyncClient`."""

    @overload
    def __get__(self, client: Client, owner: type[Client]) -> Callable[Arguments, Blocking]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type[AsyncClient]) -> Callable[Arguments, Asynchronous]: ...


def unary(
    describe: Callable[Concatenate[Any, Arguments], Call[Answer]],
) -> Method[Arguments, Answer, Coroutine[Any, Any, Answer]]:
    """Make a client method from `describe`, which returns the call to make. The method performs the call and returns
    its only answer."""
    return cast("Method[Arguments, Answer, Coroutine[Any, Any, Answer]]", _method(describe, "_ask"))


def watching(
    describe: Callable[Concatenate[Any, Arguments], Call[Answer]],
) -> Method[Arguments, Updates[Answer], AsyncUpdates[Answer]]:
    """Make a client method from `describe`, which returns the call to make. The method begins this call and returns
    its answers as updates."""
    return cast("Method[Arguments, Updates[Answer], AsyncUpdates[Answer]]", _method(describe, "_watch"))


def command(
    describe: Callable[Concatenate[Any, Arguments], Call[Answer]],
) -> Method[Arguments, Updates[Answer], Coroutine[Any, Any, AsyncUpdates[Answer]]]:
    """Make a client method as `watching` does. The client method also waits for the first answer before it returns."""
    made = _method(describe, "_command")
    return cast("Method[Arguments, Updates[Answer], Coroutine[Any, Any, AsyncUpdates[Answer]]]", made)


def streaming(describe: Callable[Concatenate[Any, Arguments], StreamCall]) -> Method[Arguments, Stream, AsyncStream]:
    """Make a client method from `describe`, which returns the stream to open. The method opens the stream."""
    return cast("Method[Arguments, Stream, AsyncStream]", _method(describe, "_stream"))


def _method(describe: Callable[..., object], perform: str) -> Callable[..., object]:
    """Return a method for both clients. The method binds its arguments to `describe`. Then it calls the client's method
    whose name is in `perform`, with the bound function as argument. That method calls the bound function.
    `AsyncClient._ask` does so in a thread, because `describe` may read files."""

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
        """Return the result of one picture. `score` and `iou`, 0..1, and `max_detections` override the model's
        settings. Arrays are sent uncompressed.

        Only `region` of the picture is used: x, y, width, height in pixels of the picture as given; a width or height
        of 0 reaches to the edge. This part is rotated clockwise by `rotation` degrees (0, 90, 180 or 270) before
        inference. Results are in pixels of the picture as given. If `class_agnostic` is True, boxes of different
        classes suppress each other. A single picture has no capture time; its age counts from the moment when the
        daemon receives it.
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
        """Send the frames of one camera and return an iterator over their results.

        The daemon answers the newest frame and counts the frames that it skipped. With `every_frame` it queues and
        answers all frames. With `lossless` the next frame is sent only after the previous one was answered. If a frame
        fails, its Result has `error` set, and the stream continues.

        The daemon accepts at most `max_fps` frames a second (0: no limit). It skips frames that are older than
        `max_staleness` seconds when their turn comes (0: no limit). `weight` is the camera's share of the engine
        relative to other cameras of the model. Cameras with a higher `priority`, -100 to 100, always go first. `track`
        gives detections a `tracker_id`. The thresholds, `region` and `rotation` are as in `infer`.

        Arrays are sent through shared memory if the daemon is behind a unix socket and can read that memory, otherwise
        as bytes. `shared=False` always sends bytes; with `shared=True` the stream raises SegmentUnusable instead of
        sending bytes. A frame counts as skipped if its place in shared memory was overwritten before its turn.

        With `reconnect` the stream continues if the daemon goes away after its first answer. The stream calls the
        daemon again after 1, 5 and 10 seconds, then every 60 seconds, or after the pauses of the given Backoff. The
        numbers of frames do not begin again at 1, and frames in flight count as failed. Without `reconnect` the stream
        raises NotReady.

        `AsyncClient` also accepts an asynchronous iterable. Call `stream` inside the running event loop and close its
        return value: `async with client.stream(...)`.
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
    def pipelines(self) -> Call[list[PipelineInfo]]:
        """Return every pipeline of the daemon's configuration."""
        parse = _list_of("pipelines", PipelineInfo)
        return Call(_OPERATIONS + "ListPipelines", pb.ListPipelinesRequest(), pb.ListPipelinesResponse, parse)

    @unary
    def engines(self, model: str | None = None) -> Call[list[EngineInfo]]:
        """Return the engines of one model, or of all models."""
        request = pb.ListEnginesRequest(model=model or "")
        return Call(_OPERATIONS + "ListEngines", request, pb.ListEnginesResponse, _engines)

    @unary
    def explain(self, model: str) -> Call[list[Explanation]]:
        """Return an explanation for each engine that the model should have on this device. The explanation lists the
        parts of the engine's key that differ from the key of the most similar stored engine."""
        request, parse = pb.ExplainEngineRequest(model=model), _list_of("explanations", Explanation)
        return Call(_OPERATIONS + "ExplainEngine", request, pb.ExplainEngineResponse, parse)

    @unary
    def engine_report(self, engine: str, *, pictures: bool = True, json: bool = False) -> Call[bytes]:
        """Return a report on the engine whose key begins with `engine`: an HTML document for people, or JSON.

        With `pictures`, the document shows the collected frames on which the answers of the engine and the reference
        differ most. The caller needs the role operate. Raises NotFound if no engine has such a key. Raises InvalidInput
        if `engine` is too short or fits several keys. Raises Refused if the engine is not built yet.
        """
        request = pb.EngineReportRequest(engine=engine, pictures=pictures, json=json)
        path, kind = _OPERATIONS + "EngineReport", pb.EngineReportResponse
        return Call(path, request, kind, lambda answer: bytes(answer.content), timeout=_REPORT_S)

    @unary
    def cameras(self) -> Call[list[CameraInfo]]:
        """Return every camera that is configured, that sends frames, or that sent frames recently."""
        parse = _list_of("cameras", CameraInfo)
        return Call(_OPERATIONS + "ListCameras", pb.ListCamerasRequest(), pb.ListCamerasResponse, parse)

    @unary
    def add_camera(self, name: str, settings: Mapping[str, str]) -> Call[CameraInfo]:
        """Add a camera that the daemon opens itself. `settings` has the keys of the table `[cameras.NAME]`, at least
        `source` and `model`. Values are written as in TOML, but strings have no quotes. Raises AlreadyExists or
        InvalidInput."""
        request = pb.AddCameraRequest(name=name, settings=dict(settings))
        return Call(_OPERATIONS + "AddCamera", request, pb.CameraStatus, _one(CameraInfo))

    @unary
    def set_camera(self, name: str, settings: Mapping[str, str]) -> Call[CameraInfo]:
        """Change settings of an added camera and start it again; an empty value resets a setting. Raises NotFound, or
        InvalidInput for an invalid setting or a camera of the daemon's configuration file."""
        request = pb.SetCameraRequest(name=name, settings=dict(settings))
        return Call(_OPERATIONS + "SetCamera", request, pb.CameraStatus, _one(CameraInfo))

    @unary
    def remove_camera(self, name: str) -> Call[None]:
        """Remove an added camera. Raises NotFound, or InvalidInput if the camera is in the configuration file."""
        request = pb.RemoveCameraRequest(name=name)
        return Call(_OPERATIONS + "RemoveCamera", request, pb.RemoveCameraResponse, lambda answer: None)

    @unary
    def add_to_gallery(
        self,
        model: str,
        name: str,
        pictures: Iterable[str | os.PathLike[str] | bytes],
        *,
        region: Region | None = None,
    ) -> Call[GalleryInfo]:
        """Add 1 to 32 JPEG or PNG pictures (paths or bytes) of a person or thing to the gallery of an embedding model.
        Results then have the name of the most similar picture as `label` of their `Embedding`. The daemon keeps
        embeddings, not pictures.

        Only `region` of each picture is used, as in `infer`. If one picture fails, none is added. Raises InvalidInput
        if the model returns no embeddings, or if the gallery is full.
        """
        part = to_region(region or (0, 0, 0, 0))
        sides = {"x": part.x, "y": part.y, "width": part.width, "height": part.height}
        made = [pb.GalleryPicture(encoded=read_picture(each), **sides) for each in pictures]
        request = pb.AddToGalleryRequest(model=model, name=name, pictures=made)
        return Call(_OPERATIONS + "AddToGallery", request, pb.Gallery, _one(GalleryInfo), timeout=_GALLERY_S)

    @unary
    def galleries(self) -> Call[list[GalleryInfo]]:
        """Return the galleries of all models: names and numbers of pictures."""
        parse = _list_of("galleries", GalleryInfo)
        return Call(_OPERATIONS + "ListGalleries", pb.ListGalleriesRequest(), pb.ListGalleriesResponse, parse)

    @unary
    def remove_from_gallery(
        self, model: str, name: str | None = None, *, everything: bool = False
    ) -> Call[GalleryInfo]:
        """Remove a name from the gallery of a model, or with `everything` the whole gallery; return the remaining
        gallery. Raises NotFound, or InvalidInput if neither or both of `name` and `everything` are given."""
        request = pb.RemoveFromGalleryRequest(model=model, name=name or "", everything=everything)
        return Call(_OPERATIONS + "RemoveFromGallery", request, pb.Gallery, _one(GalleryInfo))

    @unary
    def collect_frames(
        self, model: str, cameras: Iterable[str] = (), *, frames: int = 500, over_s: float = 86400.0
    ) -> Call[FrameCollection]:
        """Begin to keep frames of live cameras for a model, spread over `over_s` seconds. Without `cameras`, all
        cameras that send frames to the model are used. The frames calibrate and judge the model's engines, and stay on
        the box.

        Raises Refused if there are frames for the model already, InvalidInput if the model takes no pictures."""
        request = pb.CollectFramesRequest(model=model, cameras=cameras, frames=frames, over_s=over_s)
        return Call(_OPERATIONS + "CollectFrames", request, pb.FrameCollection, _one(FrameCollection))

    @unary
    def stop_collecting(self, model: str) -> Call[FrameCollection]:
        """End a model's collection early and keep the collected frames. Raises NotFound if no collection runs."""
        request = pb.StopCollectingRequest(model=model)
        return Call(_OPERATIONS + "StopCollecting", request, pb.FrameCollection, _one(FrameCollection))

    @unary
    def frames(self, model: str = "", *, each: bool = False) -> Call[list[FrameCollection]]:
        """Return the past and present frame collections of a model, or of all models; with `each`, also the name,
        camera, use and time of each frame."""
        request, parse = pb.ListFramesRequest(model=model, each=each), _list_of("collections", FrameCollection)
        return Call(_OPERATIONS + "ListFrames", request, pb.ListFramesResponse, parse)

    @unary
    def remove_frames(self, model: str) -> Call[None]:
        """Remove all frames that were collected for a model. Raises NotFound if there are none."""
        request = pb.RemoveFramesRequest(model=model)
        return Call(_OPERATIONS + "RemoveFrames", request, pb.RemoveFramesResponse, lambda answer: None)

    @unary
    def device(self, *, runtimes: bool = False) -> Call[DeviceInfo]:
        """Return the facts of the daemon's device. With `runtimes`, the daemon also tests which ONNX versions each
        installed runtime supports; the test takes seconds."""
        request = pb.GetDeviceRequest(runtimes=runtimes)
        return Call(_OPERATIONS + "GetDevice", request, pb.GetDeviceResponse, _one(DeviceInfo))

    @unary
    def refresh_device(self) -> Call[list[PartChange]]:
        """Make the daemon read the facts of its device and plan its engines again; return the facts that changed."""
        parse = _list_of("changes", PartChange)
        return Call(_OPERATIONS + "RefreshDevice", pb.RefreshDeviceRequest(), pb.RefreshDeviceResponse, parse)

    @unary
    def status(self) -> Call[StatusInfo]:
        """Return the state of the whole box: models and engines, builds, alarms."""
        return Call(_OPERATIONS + "GetStatus", pb.GetStatusRequest(), pb.GetStatusResponse, _one(StatusInfo))

    @unary
    def load(self) -> Call[LoadInfo]:
        """Return the load of models, cameras, engine hosts and the device. The result has counts instead of rates. The
        caller can compute rates from the counts and the `mono_s` of two results."""
        return Call(_OPERATIONS + "GetLoad", pb.GetLoadRequest(), pb.GetLoadResponse, _one(LoadInfo))

    @unary
    def reload(self) -> Call[list[ReloadedKey]]:
        """Make the daemon read its configuration file again; return the changed keys, also those that need a restart.

        Raises InvalidInput if the file is invalid; the daemon then keeps the old configuration.
        """
        parse = _list_of("keys", ReloadedKey)
        return Call(_OPERATIONS + "Reload", pb.ReloadRequest(), pb.ReloadResponse, parse)

    @watching
    def chat(
        self,
        model: str,
        messages: str | Iterable[Mapping[str, Any]],
        *,
        max_tokens: int = 0,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Iterable[str] = (),
        json_schema: Mapping[str, Any] | None = None,
        regex: str | None = None,
        timeout: float | None = None,
    ) -> Call[ChatText]:
        """Return a language model's answer in parts while the model generates it. Closing the updates ends the work.

        `messages` is a question, or messages with `role` (system, user or assistant), `content`, and `pictures`: JPEG
        or PNG as bytes or paths, for models that accept pictures. With `json_schema` or `regex` the answer matches this
        schema or expression. `timeout` limits the time of the whole answer, in seconds; without it, only the daemon
        limits the time. Raises InvalidInput, NotFound, NotReady, Overloaded or DeadlineExceeded.
        """
        request = language_pb2.ChatRequest(
            model=model,
            messages=map(_chat_message, [{"content": messages}] if isinstance(messages, str) else messages),
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=stop,
            json_schema=None if json_schema is None else msgspec.json.encode(json_schema).decode(),
            regex=regex,
        )
        return Call(_LANGUAGE + "Chat", request, language_pb2.ChatReply, _one(ChatText), follow=True, timeout=timeout)

    @unary
    def language_models(self) -> Call[list[LanguageModelInfo]]:
        """Return the language models, with the runtimes that serve them."""
        parse = _list_of("models", LanguageModelInfo)
        request, kind = language_pb2.LanguageModelsRequest(), language_pb2.LanguageModelsResponse
        return Call(_LANGUAGE + "LanguageModels", request, kind, parse)

    @watching
    def events(self, after: int = 0, *, epoch: str = "", follow: bool = False) -> Call[EventInfo]:
        """Return the events that the daemon keeps, after event number `after`; with `follow`, also new events.

        Event numbers begin again when the daemon restarts, so also give the `epoch` of event `after`. If the daemon has
        restarted since that event, the result has all events that the daemon keeps.
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
        """Build the engines of a model, the engine whose key begins with `engine`, or all engines. Without `force`,
        only engines in the states absent, failed, unsuitable, quarantined and evicted are built, and engines that are
        quarantined because they killed their hosts are only opened again. A rejected engine is built only with `force`,
        or if `engine` selects it. The current engines keep serving meanwhile.

        The work has begun when this method returns. Closing the returned updates does not end the work; `cancel` does.
        The first updates list every selected engine; with `follow` more updates arrive until each engine has its
        outcome. Raises Refused, NotFound or InvalidInput.
        """
        request = pb.RebuildRequest(selector=_selector(model, engine, everything), force=force, follow=follow)
        return Call(_OPERATIONS + "Rebuild", request, pb.EngineProgress, _one(EngineProgress), follow)

    @command
    def verify(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False, follow: bool = True
    ) -> Call[EngineProgress]:
        """Compare engines with the reference and time them again. Arguments, updates and errors are as in `rebuild`."""
        request = pb.VerifyRequest(selector=_selector(model, engine, everything), follow=follow)
        return Call(_OPERATIONS + "Verify", request, pb.EngineProgress, _one(EngineProgress), follow)

    @unary
    def cancel(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False
    ) -> Call[list[str]]:
        """Stop building engines; return their keys."""
        return _select("Cancel", model, engine, everything)

    @unary
    def pin(self, model: str | None = None, *, engine: str | None = None, everything: bool = False) -> Call[list[str]]:
        """Protect engines from eviction; return their keys."""
        return _select("Pin", model, engine, everything)

    @unary
    def unpin(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False
    ) -> Call[list[str]]:
        """Allow the eviction of engines again; return their keys."""
        return _select("Unpin", model, engine, everything)

    @unary
    def evict(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False
    ) -> Call[list[str]]:
        """Remove the files of engines; return their keys. Engines that serve or are pinned are left out. Raises Refused
        if `model` or `engine` selects only such engines."""
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
        """Upload an ONNX file with its external data. `timeout` is in seconds; the default is long, since models may
        have gigabytes.

        Engines are verified with `samples`. These are at most 32 JPEG, PNG or *.npz files, or folders of such files. An
        *.npz file has an array for each input. The daemon makes `repairs` before it examines the model.
        `edged.models.repair.RepairOptions(needed=True)` selects the repairs without which the model cannot be served.

        With `replace`, an existing model of this name keeps serving until the new one is ready; its samples and all
        settings that are not given are kept. Without `replace`, raises AlreadyExists for an existing name.
        """
        return _upload(Package.of(name, path, settings, samples, repairs, replace=replace), timeout)

    @unary
    def set_model(self, name: str, settings: Mapping[str, str]) -> Call[ModelInfo]:
        """Change settings of a model while it serves; an empty value removes a setting. The daemon first examines the
        model with the new settings. Raises ModelNotFound, InvalidInput or ModelRefused."""
        request = pb.SetModelRequest(name=name, settings=dict(settings))
        return Call(_OPERATIONS + "SetModel", request, pb.ModelStatus, _one(ModelInfo), timeout=600.0)

    @unary
    def upload(self, package: Package, *, timeout: float = 600.0) -> Call[ModelInfo]:
        """Upload a package. The same package can be uploaded to several daemons, also at the same time."""
        return _upload(package, timeout)

    @unary
    def try_model(self, package: Package, *, timeout: float = 600.0) -> Call[TriedModel]:
        """Upload a package to find out whether the daemon could serve it. Nothing is kept."""
        answer = pb.TryModelResponse
        return Call(_OPERATIONS + "TryModel", Upload(package), answer, _one(TriedModel), timeout=timeout)

    @unary
    def remove_model(self, name: str, *, delete: bool = False) -> Call[str]:
        """Remove a model. Return the folder on the box to which its files were moved; an empty string with `delete`."""
        request = pb.RemoveModelRequest(name=name, delete=delete)
        return Call(_OPERATIONS + "RemoveModel", request, pb.RemoveModelResponse, lambda answer: str(answer.kept))

    @unary
    def restore_model(self, name: str) -> Call[ModelInfo]:
        """Put back the model of this name that was removed or replaced last. A model that has this name now is
        replaced. The daemon keeps the replaced model, so that another call restores it. Raises ModelNotFound if the
        daemon keeps no such model."""
        request = pb.RestoreModelRequest(name=name)
        return Call(_OPERATIONS + "RestoreModel", request, pb.ModelStatus, _one(ModelInfo), timeout=600.0)


def event_info(message: pb.Event) -> EventInfo:
    """Convert an event. If this client does not know the event's kind, `what` of the result is None."""
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
    """Convert an engine. The parts of its key are sorted as in the key, since a protobuf map has no order."""
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


def _chat_message(message: Mapping[str, Any]) -> language_pb2.ChatMessage:
    """Make a message. Raises InvalidInput for an unknown field, or a picture that cannot be read."""
    unknown = message.keys() - {"role", "content", "pictures"}
    if unknown:
        raise InvalidInput(
            f"a chat message has the unknown field {min(unknown)!r}; use 'role', 'content' and 'pictures'"
        )
    pictures = map(read_picture, message.get("pictures", ()))
    return language_pb2.ChatMessage(
        role=message.get("role", "user"), content=message.get("content", ""), pictures=pictures
    )


def _upload(package: Package, timeout: float) -> Call[ModelInfo]:
    return Call(_OPERATIONS + "AddModel", Upload(package), pb.ModelStatus, _one(ModelInfo), timeout=timeout)


def _selector(model: str | None, engine: str | None, everything: bool) -> pb.Selector:
    """Make the selector of a command. The daemon checks the combination of arguments."""
    return pb.Selector(model=model or "", engine=engine or "", everything=everything)


def _select(verb: str, model: str | None, engine: str | None, everything: bool) -> Call[list[str]]:
    request = pb.SelectEngines(selector=_selector(model, engine, everything))
    return Call(_OPERATIONS + verb, request, pb.SelectedEngines, lambda answer: list(answer.keys))

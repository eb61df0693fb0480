"""The blocking client."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import grpc

from edged.client import address, calls, commands, operations
from edged.client.backoff import Backoff
from edged.client.cameras import CameraInfo
from edged.client.credentials import Credentials, channel
from edged.client.events import EventInfo
from edged.client.frames import Captured, FrameMaker, Picture
from edged.client.ledger import Ledger
from edged.client.load import LoadInfo
from edged.client.options import Region, asked, stream_options
from edged.client.outgoing import Outgoing
from edged.client.result import Result
from edged.client.sharing import blocking, sharing
from edged.client.status import from_rpc_error
from edged.client.stream import Stream
from edged.client.updates import Updates
from edged.client.upload import Package, Samples, Upload
from edged.models.repair import Wish
from edged.proto import operations_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = TypeVar("Answer")


class Client:
    """Talks to one daemon; may be shared by threads.

    `target` is `unix:/path`, `/path`, `host:port` or `:port`, behind `tls:` for TLS; None is EDGED_TARGET, else the
    daemon's default socket.
    `timeout` is the longest that one call may take, in seconds; in a stream, the longest that frames may wait without
    any answer. `credentials` are a CA, a certificate or a token; None is what the environment says, see
    `edged.client.credentials`. gRPC's own (grpc.ssl_channel_credentials and its like) are taken as they are.

    Every method raises an `edged.errors.EdgedError` with a one-line message: NotReady where no daemon answers.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 30.0,
        credentials: Credentials | grpc.ChannelCredentials | None = None,
    ) -> None:
        self.target = address.resolve(target)
        self.timeout = timeout
        self._channel = channel(self.target, credentials, calls.CHANNEL_OPTIONS)

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
    ) -> Result:
        """One picture, one result. The thresholds, 0..1, override the model's; arrays travel as they are.

        Of the picture only `region` is looked at: x, y, width, height in its pixels, 0 for a size up to the edge. It is
        turned `rotation` degrees clockwise before, by quarters. Results are in pixels of the picture as given all the
        same. `class_agnostic` lets boxes of different classes suppress each other.
        """
        wanted = asked(score, iou, max_detections, class_agnostic, region, rotation)
        return self._ask(calls.infer(model, image, camera, wanted))

    def stream(
        self,
        model: str,
        frames: Iterable[Picture | Captured],
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
        reconnect: bool = False,
        shared: bool | None = None,
    ) -> Stream:
        """Frames of one camera, sent as they come and answered as they come.

        The daemon answers the newest frame and counts those it skipped for it. With `every_frame` it answers all, some
        waiting there; with `lossless` one is in flight at a time and the next is only then taken from `frames`. A frame
        that fails is a Result with `error` set, and the stream goes on.

        The daemon takes at most `max_fps` frames a second (0: all) and none that is older than `max_staleness` seconds
        when its turn comes (0: any). `weight` is the camera's share of the engine against other cameras of the model,
        `priority`, -100 to 100, puts it before or behind them always. `track` gives detections a `tracker_id`. The
        thresholds, `region` and `rotation` are as in `infer`.

        Arrays go through shared memory where the daemon is behind a unix socket and can read it, otherwise as bytes:
        `shared` False always sends bytes, as does `every_frame`; True raises SegmentUnusable instead. A frame whose
        place was used again before its turn counts as skipped.

        With `reconnect` a daemon that goes away after it has answered once is waited for, 1, 5, 10, then each 60
        seconds; the camera goes on under its name and with its numbers, and frames that were on their way count as
        failed. Without it that is NotReady.
        """
        options = stream_options(every_frame, max_fps, max_staleness, weight, priority, track)
        wanted = asked(score, iou, max_detections, class_agnostic, region, rotation, options)
        way = sharing(self.target, model, blocking(self._channel), shared, every_frame)
        maker = FrameMaker(model, camera, wanted, way)
        outgoing = Outgoing(frames, maker, Ledger(), lossless=lossless)
        return Stream(self._channel, outgoing, self.target, self.timeout, Backoff() if reconnect else None)

    def models(self) -> list[operations.ModelInfo]:
        return self._ask(calls.models())

    def engines(self, model: str | None = None) -> list[operations.EngineInfo]:
        """The engines of one model, or of all."""
        return self._ask(calls.engines(model))

    def explain(self, model: str) -> list[operations.Explanation]:
        """For each engine that the model should have here: which key part keeps the nearest stored one from fitting."""
        return self._ask(calls.explain(model))

    def cameras(self) -> list[CameraInfo]:
        """Every camera that sends frames or did lately, and how it fares."""
        return self._ask(calls.camera_list())

    def device(self) -> operations.DeviceInfo:
        return self._ask(calls.device())

    def refresh_device(self) -> list[operations.PartChange]:
        """Has the daemon read its device's facts again now; what changed. Engines are planned anew from them."""
        return self._ask(calls.refresh_device())

    def events(self, after: int = 0, *, epoch: str = "", follow: bool = False) -> Updates[EventInfo]:
        """What happened since the event numbered `after`, as far as it is kept; with `follow`, also what happens.

        Give the `epoch` of that event too where the daemon may have been started anew since: all that are kept follow
        then, instead of those with higher numbers.
        """
        return self._watch(calls.events(after, epoch, follow), follow)

    def status(self) -> commands.StatusInfo:
        """The whole box at a glance: what serves, what is being made, what is wrong."""
        return self._ask(calls.status())

    def load(self) -> LoadInfo:
        """What the box does right now: models, cameras, engine hosts, device. Rates follow from two of these."""
        return self._ask(calls.load())

    def reload(self) -> list[commands.ReloadedKey]:
        """Has the daemon read its configuration file again; what changed, in force or not. InvalidInput where the file
        is wrong: then the daemon goes on as it was."""
        return self._ask(calls.reload())

    def rebuild(
        self,
        model: str | None = None,
        *,
        engine: str | None = None,
        everything: bool = False,
        force: bool = False,
        follow: bool = True,
    ) -> Updates[commands.EngineProgress]:
        """Makes engines of a model, the one whose key begins with `engine`, or of all: those that are missing,
        whatever kept them, or with `force` all that are selected. What serves goes on serving meanwhile.

        When this returns the work is under way, and closing what it returns does not end it: `cancel` does. The answers
        begin with one for every engine that was selected; with `follow` they go on until all have their outcome.
        Refused, NotFound or InvalidInput are raised here.
        """
        selector = commands.selector(model, engine, everything)
        return self._watch(calls.rebuild(selector, force, follow), follow).begin(self.timeout)

    def verify(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False, follow: bool = True
    ) -> Updates[commands.EngineProgress]:
        """Compares engines with the reference again and times them again; the rest is as with `rebuild`."""
        selector = commands.selector(model, engine, everything)
        return self._watch(calls.verify(selector, follow), follow).begin(self.timeout)

    def cancel(self, model: str | None = None, *, engine: str | None = None, everything: bool = False) -> list[str]:
        """Ends the making of engines; their keys."""
        return self._ask(calls.select("Cancel", commands.selector(model, engine, everything)))

    def pin(self, model: str | None = None, *, engine: str | None = None, everything: bool = False) -> list[str]:
        """Keeps engines from being evicted; their keys."""
        return self._ask(calls.select("Pin", commands.selector(model, engine, everything)))

    def unpin(self, model: str | None = None, *, engine: str | None = None, everything: bool = False) -> list[str]:
        """They may be evicted again; their keys."""
        return self._ask(calls.select("Unpin", commands.selector(model, engine, everything)))

    def evict(self, model: str | None = None, *, engine: str | None = None, everything: bool = False) -> list[str]:
        """Removes engines' files; their keys. Refused for one that serves or is pinned; `everything` is everything
        that nothing needs."""
        return self._ask(calls.select("Evict", commands.selector(model, engine, everything)))

    def add_model(
        self,
        name: str,
        path: str | os.PathLike[str],
        settings: Mapping[str, str] | None = None,
        *,
        samples: Samples = (),
        repairs: Wish | None = None,
        timeout: float = 600.0,
    ) -> operations.ModelInfo:
        """Uploads an ONNX file with its external data; `timeout` in seconds, since that may be gigabytes.

        `samples` are what its engines are verified with: pictures as JPEG or PNG files, tensors as *.npz files with an
        array for each input, or folders of them, 32 at most.
        `repairs` are made first: `edged.models.repair.Wish(needed=True)` for those without which it cannot be served.
        """
        return self.upload(Package.of(name, path, settings, samples, repairs), timeout=timeout)

    def upload(self, package: Package, *, timeout: float = 600.0) -> operations.ModelInfo:
        """As `add_model`, of a package that may go to several daemons, also at once."""
        upload = Upload(package)
        send = self._channel.stream_unary(
            calls.ADD_MODEL,
            request_serializer=calls.serialize,
            response_deserializer=operations_pb2.ModelStatus.FromString,
        )
        try:
            answer = send(upload, timeout=timeout)
        except grpc.RpcError as error:
            raise upload.failure or from_rpc_error(error, self.target) from None
        return operations.model_info(answer)

    def remove_model(self, name: str, *, delete: bool = False) -> str:
        """Takes a model out. Returns the folder of the box that its files lie in now; empty with `delete`."""
        return self._ask(calls.remove_model(name, delete))

    def close(self) -> None:
        """Ends the connection, and with it every stream."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self, call: calls.Call[Answer], follow: bool) -> Updates[Answer]:
        return Updates(self._channel, call, self.target, None if follow else self.timeout)

    def _ask(self, call: calls.Call[Answer]) -> Answer:
        send = self._channel.unary_unary(call.path, request_serializer=calls.serialize, response_deserializer=call.read)
        try:
            answer = send(call.request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
        return call.parse(answer)

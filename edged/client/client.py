"""The blocking client."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import grpc

from edged.client import address, calls, operations
from edged.client.frames import Captured, FrameMaker, Picture, thresholds
from edged.client.ledger import Ledger
from edged.client.outgoing import Outgoing
from edged.client.result import Result
from edged.client.status import from_rpc_error
from edged.client.stream import Stream
from edged.client.upload import Upload
from edged.proto import operations_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = TypeVar("Answer")


class Client:
    """Talks to one daemon; may be shared by threads.

    `target` is `unix:/path`, `/path`, `host:port` or `:port`; None is EDGED_TARGET, else the daemon's default socket.
    `timeout` is the longest that one call may take, in seconds; in a stream, the longest that frames may wait without
    any answer. `credentials` (grpc.ssl_channel_credentials and its like) make the connection TLS.

    Every method raises an `edged.errors.EdgedError` with a one-line message: NotReady where no daemon answers.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 30.0,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.target = address.resolve(target)
        self.timeout = timeout
        if credentials is None:
            self._channel = grpc.insecure_channel(self.target, calls.CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(self.target, credentials, calls.CHANNEL_OPTIONS)

    def infer(
        self,
        model: str,
        image: Picture,
        *,
        camera: str = "",
        score: float | None = None,
        iou: float | None = None,
        max_detections: int | None = None,
    ) -> Result:
        """One picture, one result. The thresholds, 0..1, override the model's; arrays travel as they are."""
        return self._ask(calls.infer(model, image, camera, score, iou, max_detections))

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
    ) -> Stream:
        """Frames of one camera, sent as they come and answered as they come.

        The daemon answers the newest frame and counts those it skipped for it; `lossless` instead keeps one frame in
        flight, so that each is answered. A frame that fails is a Result with `error` set, and the stream goes on.
        """
        maker = FrameMaker(model, camera, thresholds(score, iou, max_detections))
        outgoing = Outgoing(frames, maker, Ledger(), lossless=lossless)
        return Stream(self._channel, outgoing, self.target, self.timeout)

    def models(self) -> list[operations.ModelInfo]:
        return self._ask(calls.models())

    def engines(self, model: str | None = None) -> list[operations.EngineInfo]:
        """The engines of one model, or of all."""
        return self._ask(calls.engines(model))

    def explain(self, model: str) -> list[operations.Explanation]:
        """For each engine that the model should have here: which key part keeps the nearest stored one from fitting."""
        return self._ask(calls.explain(model))

    def device(self) -> operations.DeviceInfo:
        return self._ask(calls.device())

    def refresh_device(self) -> list[operations.PartChange]:
        """Has the daemon read its device's facts again now; what changed. Engines are planned anew from them."""
        return self._ask(calls.refresh_device())

    def events(self, after: int = 0, *, follow: bool = False) -> Iterator[operations.EventInfo]:
        """What happened since the event numbered `after`, as far as it is kept; with `follow`, also what happens."""
        call = calls.events(after, follow)
        send = self._channel.unary_stream(
            call.path, request_serializer=calls.serialize, response_deserializer=call.read
        )
        answers = send(call.request, timeout=None if follow else self.timeout)
        try:
            for answer in answers:
                yield call.parse(answer)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
        finally:
            answers.cancel()

    def add_model(
        self,
        name: str,
        path: str | os.PathLike[str],
        settings: Mapping[str, str] | None = None,
        *,
        timeout: float = 600.0,
    ) -> operations.ModelInfo:
        """Uploads an ONNX file with its external data; `timeout` in seconds, since that may be gigabytes."""
        upload = Upload(name, path, settings)
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

    def remove_model(self, name: str) -> None:
        self._ask(calls.remove_model(name))

    def close(self) -> None:
        """Ends the connection, and with it every stream."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, call: calls.Call[Answer]) -> Answer:
        send = self._channel.unary_unary(call.path, request_serializer=calls.serialize, response_deserializer=call.read)
        try:
            answer = send(call.request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
        return call.parse(answer)

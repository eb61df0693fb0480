"""The asynchronous client: the methods of `edged.client.client.Client` as coroutines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import grpc
from grpc import aio

from edged.client import address, calls, operations
from edged.client.aio_status import Statuses
from edged.client.aio_stream import AsyncStream
from edged.client.feed import Feed, FromAsyncIterable, FromIterable, Requests
from edged.client.frames import Captured, FrameMaker, Picture, thresholds
from edged.client.ledger import Ledger
from edged.client.outgoing import Outgoing
from edged.client.result import Result
from edged.client.status import from_rpc_error
from edged.client.upload import Upload
from edged.proto import operations_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = TypeVar("Answer")


class AsyncClient:
    """Talks to one daemon from one event loop; arguments and errors as in `edged.client.client.Client`."""

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
            self._channel = aio.insecure_channel(self.target, calls.CHANNEL_OPTIONS)
        else:
            self._channel = aio.secure_channel(self.target, credentials, calls.CHANNEL_OPTIONS)

    async def infer(
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
        return await self._ask(calls.infer(model, image, camera, score, iou, max_detections))

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
    ) -> AsyncStream:
        """Frames of one camera, sent as they come and answered as they come; an ordinary iterable is pulled in a
        thread. Call it inside the running event loop and close what it returns: `async with client.stream(...)`.
        """
        maker = FrameMaker(model, camera, thresholds(score, iou, max_detections))
        requests: Requests
        if isinstance(frames, AsyncIterable):
            requests = FromAsyncIterable(frames, maker, Ledger(), lossless=lossless)
        else:
            requests = FromIterable(Outgoing(frames, maker, Ledger(), lossless=lossless))
        return AsyncStream(self._channel, requests, self.target, self.timeout)

    async def models(self) -> list[operations.ModelInfo]:
        return await self._ask(calls.models())

    async def engines(self, model: str | None = None) -> list[operations.EngineInfo]:
        """The engines of one model, or of all."""
        return await self._ask(calls.engines(model))

    async def explain(self, model: str) -> list[operations.Explanation]:
        """For each engine that the model should have here: which key part keeps the nearest stored one from fitting."""
        return await self._ask(calls.explain(model))

    async def device(self) -> operations.DeviceInfo:
        return await self._ask(calls.device())

    async def refresh_device(self) -> list[operations.PartChange]:
        """Has the daemon read its device's facts again now; what changed. Engines are planned anew from them."""
        return await self._ask(calls.refresh_device())

    async def events(self, after: int = 0, *, follow: bool = False) -> AsyncGenerator[operations.EventInfo, None]:
        """What happened since the event numbered `after`, as far as it is kept; with `follow`, also what happens."""
        call = calls.events(after, follow)
        send = self._channel.unary_stream(
            call.path, request_serializer=calls.serialize, response_deserializer=call.read
        )
        answers = send(call.request, timeout=None if follow else self.timeout)
        try:
            async for answer in answers:
                yield call.parse(answer)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
        finally:
            answers.cancel()

    async def add_model(
        self,
        name: str,
        path: str | os.PathLike[str],
        settings: Mapping[str, str] | None = None,
        *,
        timeout: float = 600.0,
    ) -> operations.ModelInfo:
        """Uploads an ONNX file with its external data; `timeout` in seconds, since that may be gigabytes."""
        upload = await asyncio.to_thread(Upload, name, path, settings)
        send = self._channel.stream_unary(
            calls.ADD_MODEL,
            request_serializer=calls.serialize,
            response_deserializer=operations_pb2.ModelStatus.FromString,
        )
        parts = Feed(upload)
        call = send(parts, timeout=timeout)
        statuses = Statuses(call)
        try:
            answer = await call
        except grpc.RpcError as error:
            raise upload.failure or await statuses.error(error, self.target) from None
        except asyncio.CancelledError:
            if upload.failure is not None:  # which made gRPC cancel the call
                raise upload.failure from None
            raise
        finally:
            parts.close()
        return operations.model_info(answer)

    async def remove_model(self, name: str) -> None:
        await self._ask(calls.remove_model(name))

    async def close(self) -> None:
        """Ends the connection, and with it every stream."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, call: calls.Call[Answer]) -> Answer:
        send = self._channel.unary_unary(call.path, request_serializer=calls.serialize, response_deserializer=call.read)
        try:
            answer = await send(call.request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
        return call.parse(answer)

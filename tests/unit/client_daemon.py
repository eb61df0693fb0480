"""A test daemon for clients: it serves edged.v1 as documented in protos/. The model's name chooses the behaviour."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import numpy as np
from grpc import aio

from edged.proto import cameras_pb2 as cam
from edged.proto import operations_pb2 as ops
from tests.unit.client_commands import Commands

TENSORS: dict[str, np.ndarray] = {
    "BOOL": np.array([[True, False]]),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-5, 5], np.int16),
    "INT32": np.array([-(2**31)], np.int32),
    "INT64": np.array([2**62], np.int64),
    "UINT8": np.arange(6, dtype=np.uint8).reshape(1, 2, 3),
    "UINT16": np.array([65535], np.uint16),
    "UINT32": np.array([2**32 - 1], np.uint32),
    "UINT64": np.array([2**64 - 1], np.uint64),
    "FP16": np.array([0.5, -2], np.float16),
    "FP32": np.array(3.25, np.float32),
    "FP64": np.zeros((0, 4), np.float64),
    "BF16": np.array([0x3F80], np.uint16),
    "BYTES": np.array([[b"one"], [b""]], object),
}


JPEG = b"\xff\xd8 a picture"


class Frames:
    """A sync or async generator of pictures. `closed` is set when it ends; `puller` names the thread that pulls."""

    def __init__(self, gap: float = 0.0, count: int | None = None, failure: Exception | None = None) -> None:
        self.started = False
        self.closed = threading.Event()
        self.puller = ""
        self._gap, self._count, self._failure = gap, count, failure

    def over(self) -> bool:
        """Return whether it was closed within 5 seconds, or never started because the call failed early."""
        return not self.started or self.closed.wait(5)

    def ordinary(self) -> Iterator[bytes]:
        number = 0
        self.started = True
        try:
            while self._count is None or number < self._count:
                self.puller = threading.current_thread().name
                number += 1
                time.sleep(self._gap)
                yield JPEG
            if self._failure:
                raise self._failure
        finally:
            self.closed.set()

    __iter__ = ordinary

    async def asynchronous(self) -> AsyncIterator[bytes]:
        frames = self.ordinary()
        gap, self._gap = self._gap, 0.0
        try:
            for frame in frames:
                await asyncio.sleep(gap)
                yield frame
        finally:
            frames.close()  # type: ignore[attr-defined]

    def of(self, kind: str) -> Any:
        return self.ordinary() if kind == "ordinary" else self.asynchronous()


def encode(array: np.ndarray) -> bytes:
    if array.dtype == object:
        return b"".join(len(item).to_bytes(4, "little") + item for item in array.reshape(-1))
    return array.tobytes()


class Daemon:
    """The handlers. `frames` and `uploads` have what was received, `ended` counts finished Detect calls,
    `cancelled` counts cancelled DetectOne calls."""

    def __init__(self) -> None:
        self.frames: list[cam.Frame] = []
        self.uploads: list[tuple[ops.ModelHeader, dict[str, bytes]]] = []
        self.ended = self.cancelled = 0
        self.removed: list[str] = []
        self.commands = Commands()
        self.shown: list[tuple[str, str]] = []  # (method, authorization header) of each call
        self.token = ""  # the token that every call must carry; empty: no token

    async def detect(self, frames: AsyncIterator[cam.Frame], context: Any) -> AsyncIterator[cam.Result]:
        waiting: dict[str, tuple[cam.Frame, int]] = {}
        changed = asyncio.Event()
        ended = False

        async def read() -> None:
            nonlocal ended
            async for frame in frames:
                self.frames.append(frame)
                skipped = waiting[frame.camera][1] + 1 if frame.camera in waiting else 0
                waiting[frame.camera] = (frame, skipped)
                changed.set()
            ended = True
            changed.set()

        reader = asyncio.create_task(read())
        try:
            while waiting or not ended:
                changed.clear()
                if not waiting:
                    await changed.wait()
                    continue
                frame, skipped = waiting.pop(next(iter(waiting)))
                await behave(frame, context)
                yield answer(frame, skipped)
                if frame.model == "quits":
                    return
        finally:
            self.ended += 1
            reader.cancel()

    async def detect_one(self, frame: cam.Frame, context: Any) -> cam.Result:
        self.frames.append(frame)
        try:
            await behave(frame, context)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if frame.encoded == b"bad":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the picture is damaged; send it again")
        return answer(frame, 0)

    async def add_model(self, parts: AsyncIterator[ops.AddModelRequest], context: Any) -> ops.ModelStatus:
        header, files, name = ops.ModelHeader(), {}, ""
        async for part in parts:
            kind = part.WhichOneof("part")
            if kind == "header":
                header = part.header
                if header.name == "taken":
                    await context.abort(grpc.StatusCode.ALREADY_EXISTS, "model 'taken' already exists")
            elif kind == "file":
                name = part.file.path
                files[name] = b""
            else:
                files[name] += part.chunk
        await asyncio.sleep(
            0.05
        )  # grpc.aio shows a cancelled call as an end of the parts first, then cancels the handler
        self.uploads.append((header, files))
        return ops.ModelStatus(name=header.name, state="loading", settings=header.settings)

    async def remove_model(self, request: ops.RemoveModelRequest, _: Any) -> ops.RemoveModelResponse:
        self.removed.append(request.name)
        return ops.RemoveModelResponse()

    async def list_models(self, *_: Any) -> ops.ListModelsResponse:
        shape = ops.TensorInfo(name="images", datatype="FP32", shape=[-1, 3, 64, 64])
        model = ops.ModelStatus(name="shapes", state="ready", inputs=[shape], settings={"family": "yolo"}, swaps=2)
        return ops.ListModelsResponse(models=[model])

    async def list_pipelines(self, *_: Any) -> ops.ListPipelinesResponse:
        counts = {"answered": 7, "failed": 1, "crops_answered": 20, "crops_left_out": 3}
        ready = ops.PipelineStatus(
            name="plates", detect="cars", then="reader", crop="box", classes=["plate"], most=8, state="ready", **counts
        )
        return ops.ListPipelinesResponse(pipelines=[ready])

    async def list_engines(self, request: ops.ListEnginesRequest, _: Any) -> ops.ListEnginesResponse:
        verdict = ops.Verdict(accepted=True, figures={"cosine": 0.999})
        full = ops.Engine(key="abc", model="shapes", state="serving", parts={"a": "1"}, latency_ms=2.5, verdict=verdict)
        bare = ops.Engine(key="def", model="other", state="queued")
        return ops.ListEnginesResponse(engines=[e for e in (full, bare) if request.model in ("", e.model)])

    async def explain(self, request: ops.ExplainEngineRequest, _: Any) -> ops.ExplainEngineResponse:
        change = ops.PartChange(part="driver", old="1", new="2")
        return ops.ExplainEngineResponse(explanations=[ops.Explanation(wanted="abc", changes=[change], summary="new")])

    async def device(self, *_: Any) -> ops.GetDeviceResponse:
        return ops.GetDeviceResponse(facts={"cpu.model": "x"}, digest="d1")

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        both, one = grpc.stream_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler
        cameras = {"Detect": (both, self.detect, cam.Frame), "DetectOne": (one, self.detect_one, cam.Frame)}
        operations = {
            "AddModel": (grpc.stream_unary_rpc_method_handler, self.add_model, ops.AddModelRequest),
            "RemoveModel": (one, self.remove_model, ops.RemoveModelRequest),
            "ListModels": (one, self.list_models, ops.ListModelsRequest),
            "ListPipelines": (one, self.list_pipelines, ops.ListPipelinesRequest),
            "ListEngines": (one, self.list_engines, ops.ListEnginesRequest),
            "ExplainEngine": (one, self.explain, ops.ExplainEngineRequest),
            "GetDevice": (one, self.device, ops.GetDeviceRequest),
            **self.commands.methods(),
        }
        return [_service("edged.v1.Cameras", cameras), _service("edged.v1.Operations", operations)]


async def behave(frame: cam.Frame, context: Any) -> None:
    match frame.model:
        case "missing":
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no model 'missing'")
        case "building":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "model 'building' has no engine yet; wait")
        case "slow":
            await asyncio.sleep(0.02)
        case "hung":
            await asyncio.sleep(60)


def answer(frame: cam.Frame, skipped: int) -> cam.Result:
    result = cam.Result(
        camera=frame.camera,
        sequence=frame.sequence,
        model=frame.model,
        captured_unix_ns=frame.captured_unix_ns,
        captured_mono_ns=frame.captured_mono_ns,
        width=frame.raw.width or 640,
        height=frame.raw.height or 480,
        age_ms=12.5,
        timings=cam.Timings(infer_ms=1.5, total_ms=3.5),
        engine="abc",
        backend="null",
        skipped=skipped,
    )
    if (frame.model == "flaky" and frame.sequence % 3 == 0) or frame.model == "failing":
        result.error.code, result.error.message = 14, "the engine host died; send the next frame"
    elif frame.model == "tensors":
        for name, array in TENSORS.items():
            result.outputs.add(name=name, datatype=name, shape=array.shape, data=encode(array))
    elif frame.model != "empty":
        result.detections.add(x1=10, y1=20, x2=30, y2=60, score=0.75, class_id=3, label="a [red] dot")
        result.detections.add(x1=0, y1=0, x2=5, y2=5, score=0.5, class_id=0, label="square")
    if frame.model == "pipeline":
        result.second.model, result.second.crops, result.second.left_out = "reader", 1, 1
        result.detections[0].nested.content.text.text, result.detections[0].nested.content.text.score = "AB 123", 0.5
    return result


class Running:
    """The daemon in a thread. It listens on `target`, or on a free loopback port if that is None; with TLS if `secured`
    is given, and checking tokens if `guarded`."""

    def __init__(
        self, target: str | None, secured: grpc.ServerCredentials | None = None, *, guarded: bool = False
    ) -> None:
        self.daemon = Daemon()
        self.target = target or ""
        self._secured, self._guarded = secured, guarded
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        made = aio.server(options=unlimited, interceptors=[_Guard(self.daemon)] if self._guarded else [])
        made.add_generic_rpc_handlers(tuple(self.daemon.handlers()))
        target = self.target or "127.0.0.1:0"
        port = made.add_secure_port(target, self._secured) if self._secured else made.add_insecure_port(target)
        self.target = self.target or f"127.0.0.1:{port}"
        await made.start()
        self._ready.set()
        await self._stop.wait()
        await made.stop(0)


class _Guard(aio.ServerInterceptor):
    """Records the authorization of each call, and refuses calls without the token."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def intercept_service(self, following: Any, call: Any) -> Any:
        shown = dict(call.invocation_metadata).get("authorization", "")
        self._daemon.shown.append((call.method, shown))
        handler = await following(call)
        if not self._daemon.token or shown == f"Bearer {self._daemon.token}":
            return handler

        async def refuse(_: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not known here; show one that is")

        return grpc.unary_unary_rpc_method_handler(refuse)


def _service(name: str, methods: dict[str, tuple[Any, Any, Any]]) -> grpc.GenericRpcHandler:
    made = {
        method: kind(handler, request_deserializer=request.FromString, response_serializer=_serialize)
        for method, (kind, handler, request) in methods.items()
    }
    return grpc.method_handlers_generic_handler(name, made)


def _serialize(message: Any) -> bytes:
    return message.SerializeToString()

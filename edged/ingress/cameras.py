"""edged.v1.Cameras: frames in, detections out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

from edged.control.controller import Controller
from edged.errors import EdgedError, InvalidInput, NotFound
from edged.ingress.rpc import Context, Service
from edged.ingress.status import code_of
from edged.proto import cameras_pb2 as pb
from edged.serving.stream import Delivery, Stream
from edged.serving.work import Answered, FrameWork
from edged.vision.detections import Detections, class_name
from edged.vision.family import Thresholds

_FORMATS = {pb.BGR: "bgr", pb.RGB: "rgb", pb.GRAY: "gray", pb.NV12: "nv12", pb.I420: "i420"}


class CameraService:
    """Turns frames into work for slots, and answers into results."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._readers: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Takes no more frames: every stream ends once what it sent is answered."""
        for reader in self._readers:
            reader.cancel()

    def service(self) -> Service:
        service = Service("edged.v1.Cameras")
        service.duplex("Detect", pb.Frame, self.detect)
        service.unary("DetectOne", pb.Frame, self.detect_one)
        return service

    async def detect_one(self, frame: pb.Frame, context: Context) -> pb.Result:
        """One picture, queued like any request, so never skipped."""
        received = time.time_ns()
        slot = self._controller.slot(frame.model)
        work = self._work(frame, slot.model)
        slot.push(work)
        try:
            answer = await work.future
        finally:
            work.future.cancel()
        return _result(_Tag(_header(frame), received, slot.model), work, answer, 0)

    async def detect(self, frames: AsyncIterator[pb.Frame], context: Context) -> AsyncIterator[pb.Result]:
        """A stream of frames of one camera or many; see protos/cameras.proto for what it promises."""
        stream: Stream[_Tag] = Stream()
        reader = asyncio.create_task(self._read(frames, stream))
        self._readers.add(reader)
        try:
            async with aclosing(stream.results()) as deliveries:
                async for delivery in deliveries:
                    yield _deliver(delivery)
        finally:
            self._readers.discard(reader)
            reader.cancel()
            stream.close()

    async def _read(self, frames: AsyncIterator[pb.Frame], stream: Stream[_Tag]) -> None:
        """Feeds the stream. A first frame for a model that does not exist ends the call; later ones are answered so."""
        failure: BaseException | None = None
        first = True
        try:
            async for frame in frames:
                self._put(frame, stream, first)
                first = False
        except Exception as error:
            failure = error
        finally:
            stream.end(failure)

    def _put(self, frame: pb.Frame, stream: Stream[_Tag], first: bool) -> None:
        received = time.time_ns()
        tag = _Tag(_header(frame), received, frame.model)
        try:
            slot = self._controller.slot(frame.model)
            tag.model = slot.model
            work = self._work(frame, slot.model)
        except EdgedError as error:
            if first and isinstance(error, NotFound):
                raise
            stream.put(frame.camera, tag, FrameWork(b""), error)
        else:
            stream.put(frame.camera, tag, work, slot)

    def _work(self, frame: pb.Frame, model: str) -> FrameWork:
        thresholds = self._thresholds(frame, model)
        kind = frame.WhichOneof("image")
        if kind == "encoded":
            return FrameWork(frame.encoded, thresholds=thresholds)
        if kind is None:
            raise InvalidInput("the frame holds no image; set `encoded` or `raw`")
        raw = frame.raw
        if raw.format not in _FORMATS:
            raise InvalidInput("the raw image has no pixel format; set BGR, RGB, GRAY, NV12 or I420")
        return FrameWork(raw.data, _FORMATS[raw.format], raw.width, raw.height, raw.stride, thresholds)

    def _thresholds(self, frame: pb.Frame, model: str) -> Thresholds | None:
        """The frame's thresholds over the model's; None where the frame sets none."""
        if not frame.HasField("thresholds"):
            return None
        wanted = frame.thresholds
        planned = self._controller.find(model) if model else None
        base = planned.model.recognition.thresholds if planned is not None and planned.model else Thresholds()
        score = wanted.score if wanted.HasField("score") else base.score
        iou = wanted.iou if wanted.HasField("iou") else base.iou
        most = wanted.max_detections if wanted.HasField("max_detections") else base.max_detections
        if not (0 <= score <= 1 and 0 <= iou <= 1):  # NaN is neither
            raise InvalidInput(f"thresholds score={score:g} iou={iou:g} must lie between 0 and 1")
        return Thresholds(score, iou, max(1, min(most, 4096)), base.class_agnostic)


class _Tag:
    """What a result needs of its frame; the picture itself is not kept."""

    __slots__ = ("header", "model", "received")

    def __init__(self, header: pb.Result, received: int, model: str) -> None:
        self.header, self.received, self.model = header, received, model


def _header(frame: pb.Frame) -> pb.Result:
    """A result with everything that is echoed."""
    return pb.Result(
        camera=frame.camera,
        sequence=frame.sequence,
        captured_unix_ns=frame.captured_unix_ns,
        captured_mono_ns=frame.captured_mono_ns,
    )


def _deliver(delivery: Delivery[_Tag]) -> pb.Result:
    return _result(delivery.tag, delivery.work, delivery.answer, delivery.skipped)


def _result(tag: _Tag, work: FrameWork, answer: Answered | EdgedError, skipped: int) -> pb.Result:
    result = tag.header
    result.model, result.skipped = tag.model, skipped
    answered = time.time_ns()
    # A camera whose clock runs ahead of this box would have negative ages.
    captured = result.captured_unix_ns if result.captured_unix_ns > 0 else tag.received
    result.age_ms = max(0, answered - captured) / 1e6
    result.timings.total_ms = (time.monotonic() - work.received) * 1e3
    if isinstance(answer, EdgedError):
        result.error.code, result.error.message = int(code_of(answer).value[0]), str(answer)
        return result
    result.width, result.height = answer.width, answer.height
    result.engine, result.backend = answer.engine.key, answer.engine.backend
    result.timings.queue_ms = answer.queue_ms
    times = answer.times
    result.timings.decode_ms, result.timings.prepare_ms = times.decode_ms, times.prepare_ms
    result.timings.infer_ms, result.timings.postprocess_ms = times.infer_ms, times.postprocess_ms
    if answer.detections is not None:
        result.detections.extend(_detections(answer))
    for tensor in answer.outputs:
        shape = [int(dim) for dim in tensor.shape]
        result.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape, data=tensor.data)
    return result


def _detections(answer: Answered) -> list[pb.Detection]:
    found = Detections.unpack(answer.detections or b"")
    names = answer.engine.names
    rows = zip(found.boxes.tolist(), found.scores.tolist(), found.class_ids.tolist(), strict=True)
    return [
        pb.Detection(x1=x1, y1=y1, x2=x2, y2=y2, score=score, class_id=label, label=class_name(names, label))
        for (x1, y1, x2, y2), score, label in rows
    ]

"""edged.v1.Cameras: receives frames of pictures or sound, and answers with results such as detections."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from msgspec.structs import replace

from edged.api.auth import identity
from edged.api.auth.identity import Identify, anyone
from edged.api.endpoints.publisher import Echo, Publisher, delivered
from edged.api.endpoints.shared_memory import Segments
from edged.api.grpc.results import Tag, report_of, result_of
from edged.api.grpc.rpc import Context, Service
from edged.api.grpc.wire import FrameRequest, read_frame
from edged.engines.controller import Controller
from edged.errors import EdgedError, InvalidImage, InvalidInput, NotReady, Refused
from edged.proto import cameras_pb2 as pb
from edged.serving.camera import Cameras, Mode, StreamOptions
from edged.serving.pipeline_slot import FrameSlot, PipelineSlot
from edged.serving.sound import AnySlot, SoundSource, SoundSources, SoundWork
from edged.serving.stream import Delivery, SkipReport, Stream
from edged.serving.tracking import Tracking
from edged.serving.work import Blob, FrameWork
from edged.vision.detections import MOST_DETECTIONS
from edged.vision.family import Thresholds
from edged.vision.placement import Region, Roi


class CameraService:
    """Answers frames. Each frame becomes a job for a model, and each answer becomes a result."""

    def __init__(
        self, controller: Controller, cameras: Cameras, tracking: Tracking | None, publisher: Publisher
    ) -> None:
        self._controller, self._cameras, self._tracking = controller, cameras, tracking
        self._publisher = publisher
        self._readers: set[asyncio.Task[None]] = set()
        self.service = Service(pb.DESCRIPTOR.services_by_name["Cameras"], self)

    def stop(self) -> None:
        """Accept no more frames: every stream ends once its frames are answered."""
        for reader in self._readers:
            reader.cancel()

    async def detect_one_bytes(self, data: bytes, context: Context) -> bytes:
        """Answer one frame, as `answer` does. Unlike in a stream, a newer frame never replaces the frame."""
        client = partial(identity.current, context.peer)
        return result_of(await self.answer(read_frame(data), context.time_remaining(), client)).SerializeToString()

    async def answer(
        self, request: FrameRequest, seconds: float | None = None, client: Identify = anyone
    ) -> Delivery[Tag]:
        """Return the result of one frame, which has an image or a whole sound recording. The request expires after
        `seconds`; None: never. The image may lie in shared memory that `client` can open. Raises EdgedError if the
        frame has no answer."""
        received_ns, frame = time.time_ns(), request.message
        slot = self._controller.slot(frame.model)
        if frame.HasField("samples"):
            source = _source(self._controller, SoundSources(), frame, slot)
            work: FrameWork = sound_work(request, self._controller, source, seconds, is_whole=True)
            source.push(work)
        else:
            require_pictures(self._controller, slot)
            work = work_of(request, self._controller, slot.model, seconds, must_answer=True, client=client)
            slot.push(work)
        try:
            answer = await work.future
        except BaseException:
            work.future.cancel()
            del work, request  # the error's traceback would keep the image until the garbage collector runs
            raise
        since = frame.captured_unix_ns if frame.captured_unix_ns > 0 else received_ns
        age_ms = max(0, time.time_ns() - since) / 1e6
        delivery = Delivery(frame.camera, Tag(frame, slot.model), work, answer, (), age_ms, received_ns)
        self._publish(delivery)
        return delivery

    async def detect_bytes(self, frames: AsyncIterator[bytes], context: Context) -> AsyncGenerator[bytes, None]:
        """Answer a stream of frames of one or more cameras; protos/cameras.proto describes the guarantees."""
        stream: Stream[Tag] = Stream(self._cameras, self._tracking)
        segments, sources = Segments(client=partial(identity.current, context.peer)), SoundSources()
        reader = asyncio.create_task(self._read(frames, stream, segments, sources))
        self._readers.add(reader)
        try:
            async with aclosing(stream.results()) as results:
                async for each in results:
                    if isinstance(each, SkipReport):
                        yield report_of(each).SerializeToString()
                    else:
                        self._publish(each)
                        yield result_of(each).SerializeToString()
        finally:
            self._readers.discard(reader)
            reader.cancel()
            stream.close()
            segments.close()

    async def _read(
        self, frames: AsyncIterator[bytes], stream: Stream[Tag], segments: Segments, sources: SoundSources
    ) -> None:
        """Put the received frames into the stream. The result of an invalid frame is the frame's error.

        An error of the first frame ends the call if all later frames would fail, too. This happens if the model does
        not exist, or does not accept frames of this kind (pictures or sound). It also happens if the frame asks for
        tracking and the packages for tracking are not installed. An error of the stream itself, such as too many
        cameras, always ends the call.
        """
        failure: BaseException | None = None
        first = True
        try:
            async for data in frames:
                camera = self._put(read_frame(data), stream, segments, sources, first)
                first = False
                del data  # the frame may be large, and the next one may take long to arrive
                await stream.room(camera)
        except Exception as error:
            failure = error
        finally:
            stream.end(failure)

    def _put(
        self, request: FrameRequest, stream: Stream[Tag], segments: Segments, sources: SoundSources, first: bool
    ) -> str:
        """Put a frame into the stream; return its camera."""
        frame = request.message
        tag = Tag(frame, frame.model)
        options: StreamOptions | None = None
        place: AnySlot | EdgedError
        is_hopeless = True  # whether the error would also occur for all later frames
        try:
            slot = self._controller.slot(frame.model)
            tag.model = slot.model
            source = _source(self._controller, sources, frame, slot) if frame.HasField("samples") else None
            if source is None:
                require_pictures(self._controller, slot)
            if frame.options.track and self._tracking is not None and self._tracking.missing:
                raise Refused(f"cannot track objects: {self._tracking.missing}")
            is_hopeless = False
            options = options_of(frame)
            if source is not None:
                work: FrameWork = sound_work(request, self._controller, source)
                place = source
            else:
                work = work_of(request, self._controller, slot.model, segments=segments)
                place = slot
        except EdgedError as error:
            if first and is_hopeless:
                raise
            work, place = FrameWork(b""), error.with_traceback(None)  # the traceback would keep the image
        stream.put(
            frame.camera, tag, work, place, sequence=frame.sequence, captured_ns=frame.captured_unix_ns, options=options
        )
        return frame.camera

    def _publish(self, delivery: Delivery[Tag]) -> None:
        """Publish a result. The JSON is built only if the result's topic has a subscriber."""
        header, model = delivery.tag.header, delivery.tag.model
        echo = partial(Echo, delivery.camera, header.sequence, model, header.captured_unix_ns)
        self._publisher.result(model, delivery.camera, lambda: delivered(echo(), delivery))


_FORMATS = {pb.BGR: "bgr", pb.RGB: "rgb", pb.GRAY: "gray", pb.NV12: "nv12", pb.I420: "i420"}
_MODES: dict[int, Mode] = {pb.StreamOptions.FRESHEST: "freshest", pb.StreamOptions.EVERY_FRAME: "every_frame"}
_ROTATIONS = (0, 90, 180, 270)


def work_of(
    request: FrameRequest,
    controller: Controller,
    model: str,
    seconds: float | None = None,
    must_answer: bool = False,
    segments: Segments | None = None,
    client: Identify = anyone,
) -> FrameWork:
    """Return the work for a frame. The work expires after `seconds`; None: never. Raises InvalidInput.

    `segments` are the segments of the frame's stream. Without `segments`, the segment of a shared picture is opened for
    this frame only, and `client` itself must be allowed to open the segment.
    """
    # Steps that may fail come first: an error's traceback would keep the image.
    frame = request.message
    thresholds, roi = None, _roi(frame)
    if frame.HasField("thresholds"):
        given = {field.name: value for field, value in frame.thresholds.ListFields()}
        thresholds = thresholds_of(controller, model, given)
    with contextlib.closing(Segments(client=client)) as own:
        data, pixel_format, width, height, stride = _image(request, segments or own)
    return FrameWork(
        data,
        pixel_format,
        width,
        height,
        stride,
        thresholds=thresholds,
        roi=roi,
        expires=math.inf if seconds is None else time.monotonic() + seconds,
        must_answer=must_answer,
    )


_FORMS = {pb.Samples.S16: "s16", pb.Samples.F32: "f32"}


def _source(controller: Controller, sources: SoundSources, frame: pb.Frame, slot: FrameSlot) -> SoundSource:
    """Return the sound source of a frame. The source keeps the model's state for the frame's camera. Raises
    InvalidInput if the model or pipeline does not accept the frame's sound, or if the frame has options for pictures.
    Raises NotReady while the daemon reads the model."""
    if isinstance(slot, PipelineSlot):
        raise InvalidInput(f"pipeline {slot.model!r} takes pictures, not sound; send a picture")
    planned = controller.find(slot.model)
    answering = planned.answering
    if answering is None:
        why = planned.problem or "it is being read; send the frame again in a moment"
        raise NotReady(f"model {slot.model!r} cannot answer yet: {why}")
    recognition = answering.recognition
    if recognition.sound is None:
        raise InvalidInput(f"model {slot.model!r} takes no sound; see docs/sound.md for the models that do")
    if frame.samples.rate != recognition.sound.rate:
        wanted, how = recognition.sound.rate, "ffmpeg -i IN -ac 1 -ar"
        raise InvalidInput(
            f"model {slot.model!r} takes sound at {wanted} Hz, not {frame.samples.rate} Hz; resample the sound, such as"
            f" with {how} {wanted} OUT.wav"
        )
    if frame.HasField("region") or frame.rotation or frame.options.track:
        raise InvalidInput("fields 'region', 'rotation' and 'track' are for pictures only; leave them out with samples")
    return sources.of(frame.camera, slot, recognition, answering.digest)


def sound_work(
    request: FrameRequest,
    controller: Controller,
    source: SoundSource,
    seconds: float | None = None,
    is_whole: bool = False,
) -> SoundWork:
    """Return the work for a frame of samples. The work expires after `seconds`; None: never. Raises InvalidInput.
    `is_whole`: the frame is a whole recording."""
    frame, place = request.message, source.take_place()
    if frame.samples.format not in _FORMS:
        raise InvalidInput("the samples have no known format; set 'format' to S16 or F32")
    thresholds = None
    if frame.HasField("thresholds"):
        given = {field.name: value for field, value in frame.thresholds.ListFields()}
        thresholds = thresholds_of(controller, source.model, given)
    expires = math.inf if seconds is None else time.monotonic() + seconds
    return SoundWork(request.picture, _FORMS[frame.samples.format], place, thresholds, expires, is_whole)


def require_pictures(controller: Controller, slot: FrameSlot) -> None:
    """Raise the error with which every picture would fail: InvalidInput if the model takes no pictures, or if a model
    cannot do its step of a pipeline; NotReady if a model of a pipeline does not exist."""
    if isinstance(slot, PipelineSlot):
        slot.require_ready()
        return
    answering = controller.find(slot.model).answering
    if answering is not None and answering.recognition.preprocess is None:
        why = answering.recognition.picture
        instead = "tensors" if answering.recognition.sound is None else "samples"
        raise InvalidInput(f"model {slot.model!r} takes no pictures ({why}); send {instead} instead")


def options_of(frame: pb.Frame) -> StreamOptions | None:
    """Return the options in a frame, which apply to this and later frames of the camera; None if the frame has none."""
    if not frame.HasField("options"):
        return None
    options = frame.options
    if options.mode not in _MODES:
        raise InvalidInput(f"stream mode {options.mode} does not exist; give FRESHEST or EVERY_FRAME")
    return StreamOptions.checked(
        _MODES[options.mode],
        options.max_fps,
        options.max_staleness_ms / 1e3,
        options.weight,
        options.priority,
        options.track,
    )


def _image(request: FrameRequest, segments: Segments) -> tuple[Blob, str, int, int, int]:
    frame = request.message
    kind = frame.WhichOneof("image")
    if kind == "encoded":
        return request.picture, "", 0, 0, 0
    if kind == "raw":
        raw = frame.raw
        if raw.format not in _FORMATS:
            raise InvalidImage("the raw image has no known pixel format; set 'format' to BGR, RGB, GRAY, NV12 or I420")
        return request.picture, _FORMATS[raw.format], raw.width, raw.height, raw.stride
    if kind == "shared":
        shared = frame.shared
        if shared.format not in (*_FORMATS, pb.PIXEL_FORMAT_UNSPECIFIED):
            raise InvalidImage(
                f"the shared image has the unknown pixel format {shared.format}; set BGR, RGB, GRAY, NV12 or I420"
            )
        picture = segments.picture(shared.segment, shared.offset, shared.stamp, shared.size)
        return picture, _FORMATS.get(shared.format, ""), shared.width, shared.height, shared.stride
    raise InvalidImage("the frame holds no image; set `encoded`, `raw` or `shared`")


def _roi(frame: pb.Frame) -> Roi | None:
    if frame.rotation not in _ROTATIONS:
        raise InvalidInput(f"invalid rotation of {frame.rotation} degrees; give 0, 90, 180 or 270")
    wanted = frame.region if frame.HasField("region") else None
    if wanted is None and not frame.rotation:
        return None
    region = None if wanted is None else Region(wanted.x, wanted.y, wanted.width, wanted.height)
    return Roi(region, frame.rotation)


def thresholds_of(controller: Controller, model: str, given: Mapping[str, Any]) -> Thresholds:
    """Return the thresholds of a model, or of a pipeline's first model. Thresholds in `given`, by field name, replace
    those of the model. Raises InvalidInput for a score or IoU outside 0..1."""
    known = controller.find(controller.pipelines.detector(model)).model if model else None
    base = known.recognition.thresholds if known is not None else Thresholds()
    # The model's own score is not checked: an anomaly score may have any scale. `not 0 <= x <= 1` also refuses NaN.
    wrong = [f"{key}={given[key]:g}" for key in ("score", "iou") if key in given and not 0 <= given[key] <= 1]
    if wrong:
        raise InvalidInput(f"thresholds {' '.join(wrong)} must be between 0 and 1")
    found: Thresholds = replace(base, **given)
    most: Thresholds = replace(found, max_detections=max(1, min(found.max_detections, MOST_DETECTIONS)))
    return most

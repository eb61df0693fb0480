"""From the frame that a client sends to work for a slot."""

from __future__ import annotations

import contextlib
import math
import time

from edged.api.auth.identity import Identify, anyone
from edged.api.endpoints.shared_memory import Segments
from edged.engines.controller import Controller
from edged.errors import InvalidImage, InvalidInput
from edged.proto import cameras_pb2 as pb
from edged.serving.options import Mode, StreamOptions
from edged.serving.work import Blob, FrameWork
from edged.vision.family import Thresholds
from edged.vision.placement import Region, Roi

_FORMATS = {pb.BGR: "bgr", pb.RGB: "rgb", pb.GRAY: "gray", pb.NV12: "nv12", pb.I420: "i420"}
_MODES: dict[int, Mode] = {pb.StreamOptions.FRESHEST: "freshest", pb.StreamOptions.EVERY_FRAME: "every_frame"}
_ROTATIONS = (0, 90, 180, 270)


def work_of(
    frame: pb.Frame,
    controller: Controller,
    model: str,
    seconds: float | None = None,
    must_answer: bool = False,
    segments: Segments | None = None,
    client: Identify = anyone,
) -> FrameWork:
    """The work that a frame asks of a model, worth doing for so many seconds; InvalidInput where it makes no sense.

    `segments` are those of the frame's stream; without them the one that a frame lies in is opened for it alone, if
    `client` could open it.
    """
    # Whatever may be refused comes first: an error's traceback would keep the picture.
    thresholds, roi = _thresholds(frame, controller, model), _roi(frame)
    with contextlib.closing(Segments(client=client)) as own:
        data, pixel_format, width, height, stride = _image(frame, segments or own)
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


def require_pictures(controller: Controller, model: str) -> None:
    """InvalidInput if the model is read and takes tensors only: each of its frames would be answered so."""
    answering = controller.find(model).answering
    if answering is not None and answering.recognition.preprocess is None:
        why = answering.recognition.picture
        raise InvalidInput(f"model {model!r} takes no picture ({why}); send tensors instead")


def options_of(frame: pb.Frame) -> StreamOptions | None:
    """How the camera's frames are to be treated from this one on; None where the frame does not say."""
    if not frame.HasField("options"):
        return None
    said = frame.options
    if said.mode not in _MODES:
        raise InvalidInput(f"stream mode {said.mode} does not exist; give FRESHEST or EVERY_FRAME")
    return StreamOptions.checked(
        _MODES[said.mode], said.max_fps, said.max_staleness_ms / 1e3, said.weight, said.priority, said.track
    )


def _image(frame: pb.Frame, segments: Segments) -> tuple[Blob, str, int, int, int]:
    kind = frame.WhichOneof("image")
    if kind == "encoded":
        return frame.encoded, "", 0, 0, 0
    if kind == "raw":
        raw = frame.raw
        if raw.format not in _FORMATS:
            raise InvalidImage("the raw image has no pixel format; set BGR, RGB, GRAY, NV12 or I420")
        return raw.data, _FORMATS[raw.format], raw.width, raw.height, raw.stride
    if kind == "shared":
        shared = frame.shared
        if shared.format not in (*_FORMATS, pb.PIXEL_FORMAT_UNSPECIFIED):
            raise InvalidImage(f"the shared image has pixel format {shared.format}, which does not exist")
        picture = segments.picture(shared.segment, shared.offset, shared.stamp, shared.size)
        return picture, _FORMATS.get(shared.format, ""), shared.width, shared.height, shared.stride
    raise InvalidImage("the frame holds no image; set `encoded`, `raw` or `shared`")


def _roi(frame: pb.Frame) -> Roi | None:
    if frame.rotation not in _ROTATIONS:
        raise InvalidInput(f"a rotation of {frame.rotation} degrees is not possible; give 0, 90, 180 or 270")
    wanted = frame.region if frame.HasField("region") else None
    if wanted is None and not frame.rotation:
        return None
    region = None if wanted is None else Region(wanted.x, wanted.y, wanted.width, wanted.height)
    return Roi(region, frame.rotation)


def _thresholds(frame: pb.Frame, controller: Controller, model: str) -> Thresholds | None:
    """The frame's thresholds over the model's; None where the frame sets none."""
    if not frame.HasField("thresholds"):
        return None
    wanted = frame.thresholds
    planned = controller.find(model) if model else None
    base = planned.model.recognition.thresholds if planned is not None and planned.model else Thresholds()
    score = wanted.score if wanted.HasField("score") else base.score
    iou = wanted.iou if wanted.HasField("iou") else base.iou
    most = wanted.max_detections if wanted.HasField("max_detections") else base.max_detections
    agnostic = wanted.class_agnostic if wanted.HasField("class_agnostic") else base.class_agnostic
    if not (0 <= score <= 1 and 0 <= iou <= 1):  # NaN is neither
        raise InvalidInput(f"thresholds score={score:g} iou={iou:g} must lie between 0 and 1")
    return Thresholds(score, iou, max(1, min(most, 4096)), agnostic)

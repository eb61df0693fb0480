"""The result of one frame as immutable values."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from edged import packages, tensors
from edged.client.detection import Classification as Classification
from edged.client.detection import Detection as Detection
from edged.client.detection import (
    Labels,
    arrays_of,
    classes_of,
    content_of,
    detection_of,
    labels_of,
    nested_fields,
    runs_of,
)
from edged.client.detection import Nested as Nested
from edged.client.detection import detections_of as detections_of
from edged.client.status import code_name, known_code
from edged.errors import ErrorCode, Unsupported
from edged.proto import cameras_pb2 as pb
from edged.tensors import DATATYPES, Array
from edged.vision import masks
from edged.vision.content import Classes, ClassMap, Content
from edged.vision.detections import Detections, class_name
from edged.vision.roboflow import RoboflowResult, roboflow

# Keys of `data` in supervision.Detections, as in `supervision.config`.
_CLASS_NAMES, _ORIENTED = "class_name", "xyxyxyxy"
_NESTED = "nested"  # edged's own


class ClassArea(msgspec.Struct, frozen=True):
    """A class in a class map, and its share of the map in 0..1."""

    class_id: int
    label: str
    share: float


class Skips(msgspec.Struct, frozen=True):
    """`count` skipped frames with numbers from `first` to `last`. `reason` is one of "overtaken" (by a newer frame),
    "stale", "rate" (above `max_fps`), "overwritten" (in shared memory), "full" (too many frames wait) and "several"
    (different reasons)."""

    first: int
    last: int
    count: int
    reason: str


class Timings(msgspec.Struct, frozen=True):
    """The time that each step in the daemon took, in milliseconds; `total_ms` is from receipt to answer."""

    queue_ms: float = 0.0
    decode_ms: float = 0.0
    prepare_ms: float = 0.0
    infer_ms: float = 0.0
    postprocess_ms: float = 0.0
    total_ms: float = 0.0


class SecondStep(msgspec.Struct, frozen=True):
    """The second step of a pipeline for one frame. `crops` counts the detections with `nested`. `left_out` counts the
    detections that have a class of the pipeline but got no crop. In `timings`, `decode_ms` to `postprocess_ms` are sums
    over the crops. The other fields name the second model and its engine."""

    model: str
    engine: str
    backend: str
    crops: int
    left_out: int
    timings: Timings


class Result(msgspec.Struct, frozen=True, eq=False):
    """The answer to one frame.

    `sequence` is the frame's number in the stream, from 1; 0 for a single picture. `width` and `height` are pixels of
    the picture as sent. A detector fills `detections`, the best first. A model for the whole picture, such as a
    classifier, fills `content` (see `edged.vision.content`); `classes` and `areas` then have the classes with their
    labels. A model of unknown family fills `outputs`: read-only arrays by name (BYTES as object arrays of bytes, BF16
    as uint16 with the same bits). `age_ms` is from capture to answer.

    `skipped` counts frames of this camera that were skipped since its previous result; `skips` has the numbers and
    reasons of those frames. `error` is (gRPC code name, message) if the frame failed, otherwise None. `error_code` is
    edged's code for the error; None if this client does not know the code. The capture times are as sent, in
    nanoseconds; `received_unix_ns` is the daemon's wall clock at receipt. Unknown times are 0. `position_s` is the
    frame's position in a recording, in seconds from its start; None for a camera. `second` is set if a pipeline
    answered; `engine`, `backend` and `timings` are then those of its first model.
    """

    camera: str
    sequence: int
    model: str
    width: int
    height: int
    detections: tuple[Detection, ...]
    outputs: dict[str, Array]
    age_ms: float
    timings: Timings
    engine: str
    backend: str
    skipped: int
    error: tuple[str, str] | None
    captured_unix_ns: int = 0
    captured_mono_ns: int = 0
    received_unix_ns: int = 0
    skips: tuple[Skips, ...] = ()
    content: Content | None = None
    class_labels: Mapping[int, str] = {}
    error_code: ErrorCode | None = None
    position_s: float | None = None
    second: SecondStep | None = None

    @property
    def captured(self) -> datetime | None:
        """The capture time by the sender's wall clock; None if unknown."""
        return _moment(self.captured_unix_ns)

    @property
    def received(self) -> datetime | None:
        """The time of receipt by the daemon's wall clock; None if unknown."""
        return _moment(self.received_unix_ns)

    @property
    def classes(self) -> tuple[Classification, ...]:
        """The classes that a classifier found, the best first."""
        return classes_of(self.content, self.class_labels)

    @property
    def areas(self) -> tuple[ClassArea, ...]:
        """The classes in a class map, the largest first."""
        if not isinstance(self.content, ClassMap):
            return ()
        labels = Labels(self.class_labels)
        return tuple(ClassArea(number, class_name(labels, number), share) for number, share in self.content.shares())

    def json(self) -> RoboflowResult:
        """Return Roboflow's inference JSON: box centres and sizes in pixels, and new detection ids in each call.
        Tracked detections have a `tracker_id`; detections with a crop in a pipeline have `nested`."""
        found = self.boxes()
        ids, found = found.tracker_ids, msgspec.structs.replace(found, tracker_ids=None)
        plain = roboflow(found, self.labels(), self.width, self.height)
        if ids is not None:
            for prediction, number in zip(plain["predictions"], ids.tolist(), strict=True):
                if number >= 0:
                    prediction["tracker_id"] = number
        for prediction, detection in zip(plain["predictions"], self.detections, strict=True):
            if detection.nested is not None:
                prediction["nested"] = nested_fields(detection.nested, self.width, self.height)
        return plain

    def supervision(self) -> Any:
        """Return the detections as `supervision.Detections`, with masks, tracker ids (-1 for none) and oriented boxes.
        For a class map there is a detection for each class, with a mask and without a score, as in
        `Detections.from_transformers`. If a pipeline answered, `data["nested"]` has the caption of each detection's
        nested answer, or an empty string. Raises Unsupported if supervision is not installed."""
        # Not made from Roboflow's JSON: supervision's reader of that JSON loses holes in masks and oriented boxes.
        try:
            supervision: Any = importlib.import_module("supervision")
        except ImportError:
            raise Unsupported(f"supervision is not installed; install it: {packages.install('supervision')}") from None
        if isinstance(self.content, ClassMap):
            return self._areas_of(supervision, self.content)
        found = self.boxes()
        data: dict[str, Any] = {_CLASS_NAMES: np.array([d.label for d in self.detections], dtype=str)}
        if found.corners is not None:
            data[_ORIENTED] = found.corners
        if self.second is not None:
            data[_NESTED] = np.array(self.captions(), dtype=str)
        pixels = None
        if found.masks is not None:
            pixels = np.stack([masks.decode(each, self.width, self.height) for each in found.masks])
        return supervision.Detections(
            xyxy=found.boxes,
            confidence=found.scores,
            class_id=found.class_ids.astype(np.int64),
            mask=pixels,
            tracker_id=found.tracker_ids,
            data=data,
        )

    def _areas_of(self, supervision: Any, classes: ClassMap) -> Any:
        """Return the classes of a map as `supervision.Detections`."""
        x1, y1, x2, y2 = classes.box or (0, 0, self.width, self.height)
        x1, y1, x2, y2 = min(x1, self.width), min(y1, self.height), min(x2, self.width), min(y2, self.height)
        cells, areas = classes.resized(x2 - x1, y2 - y1), self.areas
        pixels = np.zeros((len(areas), self.height, self.width), np.bool_)
        for inside, area in zip(pixels, areas, strict=True):
            np.equal(cells, area.class_id, out=inside[y1:y2, x1:x2])
        there = np.flatnonzero(pixels.any(axis=(1, 2)))  # a class can be lost if the map is finer than the picture
        return supervision.Detections(
            xyxy=supervision.mask_to_xyxy(pixels[there]),
            mask=pixels[there],
            class_id=np.array([area.class_id for area in areas], np.int64)[there],
            data={_CLASS_NAMES: np.array([area.label for area in areas], dtype=str)[there]},
        )

    def mask(self, detection: Detection) -> npt.NDArray[np.bool_] | None:
        """Return an object's pixels as bool [height, width] of the picture; None if the object has no mask."""
        return masks.decode(runs_of(detection.mask), self.width, self.height) if detection.mask else None

    def polygon(self, detection: Detection) -> npt.NDArray[np.int32] | None:
        """Return the outline of the largest piece of an object's mask as int32 [n, 2] with x and y in pixels. Return
        None if the object has no mask."""
        return masks.polygon(runs_of(detection.mask), self.width, self.height) if detection.mask else None

    def boxes(self) -> Detections:
        """Return the detections as arrays."""
        return arrays_of(self.detections, self.width, self.height)

    def captions(self) -> list[str]:
        """Return the caption of each detection's nested answer, or an empty string for a detection without one."""
        return ["" if found.nested is None else found.nested.caption for found in self.detections]

    def labels(self) -> Sequence[str]:
        """Return the labels, indexed by class id. A class that was not found has its id as label."""
        return Labels({**self.class_labels, **{found.class_id: found.label for found in self.detections}})


def from_proto(message: pb.Result) -> Result:
    """Convert a result message. Raises InvalidInput if a tensor's bytes do not fit its shape, Unsupported for an
    unknown datatype."""
    return Result(
        camera=message.camera,
        sequence=message.sequence,
        model=message.model,
        width=message.width,
        height=message.height,
        detections=tuple(map(detection_of, message.detections)),
        outputs={tensor.name: to_array(tensor) for tensor in message.outputs},
        age_ms=message.age_ms,
        timings=_timings(message.timings),
        engine=message.engine,
        backend=message.backend,
        skipped=message.skipped,
        error=(code_name(message.error.code), message.error.message) if message.HasField("error") else None,
        captured_unix_ns=message.captured_unix_ns,
        captured_mono_ns=message.captured_mono_ns,
        received_unix_ns=message.received_unix_ns,
        skips=skips_of(message),
        content=content_of(message.content) if message.HasField("content") else None,
        class_labels=labels_of(message.content),
        error_code=known_code(message.error.reason),
        second=_second(message.second) if message.HasField("second") else None,
    )


def skips_of(message: pb.Result) -> tuple[Skips, ...]:
    return tuple(Skips(each.first, each.last, each.count, each.reason) for each in message.skips)


def _timings(message: pb.Timings) -> Timings:
    return Timings(*(getattr(message, name) for name in Timings.__struct_fields__))


def _second(message: pb.SecondStep) -> SecondStep:
    about = (message.model, message.engine, message.backend, message.crops, message.left_out)
    return SecondStep(*about, _timings(message.timings))


def _moment(unix_ns: int) -> datetime | None:
    return datetime.fromtimestamp(unix_ns / 1e9, timezone.utc) if unix_ns else None


def to_array(tensor: pb.Tensor) -> Array:
    """Return a read-only array over the tensor's bytes, without a copy. Raises InvalidInput if the bytes do not fit the
    tensor's shape, Unsupported for an unknown datatype."""
    if tensor.datatype not in DATATYPES:
        raise Unsupported(f"tensor {tensor.name!r} has the unknown datatype {tensor.datatype!r}; update this client")
    array = tensors.to_array(tensor.name, tensor.datatype, tuple(tensor.shape), tensor.data)
    array.flags.writeable = False
    return array


def class_labels(content: Content | None, names: Sequence[str]) -> dict[int, str]:
    """Return a mapping from the ids of the classes in a content to their labels."""
    numbers = content.class_ids if isinstance(content, Classes | ClassMap) else ()
    return {number: class_name(names, number) for number in set(numbers)}

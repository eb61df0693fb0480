"""What the daemon found in one frame, as plain immutable values."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, overload

import msgspec

from edged import raw_contents
from edged.client.status import code_name
from edged.errors import Unsupported
from edged.proto import cameras_pb2 as pb
from edged.tensors import DATATYPES, Array
from edged.vision.detections import Detections, RoboflowResult, roboflow


class Detection(msgspec.Struct, frozen=True):
    """One object: corners in pixels of the picture as sent, origin top left; score 0..1."""

    x1: float
    y1: float
    x2: float
    y2: float
    score: float
    class_id: int
    label: str


class Timings(msgspec.Struct, frozen=True):
    """Where the daemon spent the time, in milliseconds; `total_ms` is from received to answered."""

    queue_ms: float = 0.0
    decode_ms: float = 0.0
    prepare_ms: float = 0.0
    infer_ms: float = 0.0
    postprocess_ms: float = 0.0
    total_ms: float = 0.0


class Result(msgspec.Struct, frozen=True, eq=False):
    """The answer to one frame.

    `sequence` is the frame's number, from 1, in the order it was given; 0 for a single picture. `width` and `height`
    are pixels of the picture as sent. A detector fills `detections`, best first; a model of no known family fills
    `outputs`, read-only arrays by name (BYTES as object arrays of bytes, BF16 as the uint16 of its bits). `age_ms` is
    from capture to answer. `skipped` counts frames of this camera that were overtaken since its previous result.
    `error` is None or (gRPC code name, message) for a frame that could not be answered. The capture times are as
    sent, in nanoseconds.
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

    def json(self) -> RoboflowResult:
        """Roboflow's inference JSON; box centres and sizes in pixels, a new detection id each time."""
        return roboflow(self.boxes(), self.labels(), self.width, self.height)

    def supervision(self) -> Any:
        """The same as `supervision.Detections`; Unsupported where that library is not installed."""
        try:
            supervision: Any = importlib.import_module("supervision")
        except ImportError:
            raise Unsupported("supervision is not installed; install it with: pip install supervision") from None
        return supervision.Detections.from_inference(self.json())

    def boxes(self) -> Detections:
        """The detections as arrays."""
        found = self.detections
        corners = [(d.x1, d.y1, d.x2, d.y2) for d in found]
        return Detections.of(corners, [d.score for d in found], [d.class_id for d in found])

    def labels(self) -> Sequence[str]:
        """The label of each class id that was found, for what wants names by class id."""
        return _Labels({d.class_id: d.label for d in self.detections})


class _Labels(Sequence[str]):
    """Names by class id without a list as long as the highest id."""

    def __init__(self, known: dict[int, str]) -> None:
        self._known = known

    def __len__(self) -> int:
        return max(self._known, default=-1) + 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._known.get(index, str(index))


def from_proto(message: pb.Result) -> Result:
    """InvalidInput where a tensor's bytes do not fit its shape, Unsupported for a datatype that is not known here."""
    timings = message.timings
    return Result(
        camera=message.camera,
        sequence=message.sequence,
        model=message.model,
        width=message.width,
        height=message.height,
        detections=tuple(Detection(d.x1, d.y1, d.x2, d.y2, d.score, d.class_id, d.label) for d in message.detections),
        outputs={tensor.name: to_array(tensor) for tensor in message.outputs},
        age_ms=message.age_ms,
        timings=Timings(*(getattr(timings, name) for name in Timings.__struct_fields__)),
        engine=message.engine,
        backend=message.backend,
        skipped=message.skipped,
        error=(code_name(message.error.code), message.error.message) if message.HasField("error") else None,
        captured_unix_ns=message.captured_unix_ns,
        captured_mono_ns=message.captured_mono_ns,
    )


def to_array(tensor: pb.Tensor) -> Array:
    """A read-only array over the tensor's bytes, without a copy. InvalidInput where they do not fit its shape."""
    if tensor.datatype not in DATATYPES:
        raise Unsupported(f"tensor {tensor.name!r} has datatype {tensor.datatype!r}; update this client")
    array = raw_contents.to_array(tensor.name, tensor.datatype, tuple(tensor.shape), tensor.data)
    array.flags.writeable = False
    return array

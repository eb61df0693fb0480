"""Messages of Frigate's ZMQ detector, as of Frigate 0.18, and their answers. Pure.

A request for a model is one JSON frame, `{"model_request": true, "model_name": FILE}`. An upload of a model is two
frames, `{"model_data": true, "model_name": FILE}` and the file's bytes. The answer to both is JSON. A picture is two
frames, `{"shape": [...], "dtype": ..., "model_type": ...}` and the tensor's bytes in C order. Its answer is a float32
tensor [20, 6] with a row for each object: class, score, y_min, x_min, y_max, x_max, with coordinates 0..1. The best row
is first, and unused rows at the end are zeros.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from edged.decoding import explain
from edged.errors import ConfigError, InvalidInput, Unsupported
from edged.files import NOT_JSON
from edged.models.model import Model
from edged.serving.work import Answered, FrameWork, InputTensor, TensorWork
from edged.tensors import TensorSpec, to_array, to_bytes
from edged.vision.detections import Detections
from edged.vision.family import Family, Thresholds, open_family, recognise
from edged.vision.placement import Fit, Placement, place

ROWS = 20
NOTHING = bytes(ROWS * 6 * 4)  # the answer without objects

_LONGEST_HEADER = 4096
_LARGEST_SIDE = 16384
_DTYPES = {"uint8": 1, "float32": 4}


class ModelAsked(msgspec.Struct, frozen=True):
    """A request for a model. Frigate asks once; after a refusal it never asks again."""

    name: str


class ModelSent(msgspec.Struct, frozen=True):
    """The file of a model. Frigate sends the file if the daemon answered that the model is not available."""

    name: str
    data: memoryview


class Tensor(msgspec.Struct, frozen=True, eq=False):
    """A picture: `pixels` is uint8 or float32, of shape [1, height, width, channels] or [1, channels, height, width];
    `model_type` is in lower case."""

    pixels: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
    model_type: str

    @property
    def is_planar(self) -> bool:
        """Whether the shape is [1, channels, height, width] rather than [1, height, width, channels]."""
        return self.pixels.shape[1] in (1, 3)

    @property
    def is_packed(self) -> bool:
        """Whether the tensor is uint8 and has the channels of each pixel together, as cameras send pictures."""
        return self.pixels.dtype == np.uint8 and not self.is_planar

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[1 if self.is_planar else 3])

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        _, a, b, c = self.pixels.shape
        return (c, b) if self.is_planar else (b, a)


Message: TypeAlias = ModelAsked | ModelSent | Tensor


class _Header(msgspec.Struct, frozen=True):
    """The known keys of a header; others are ignored."""

    model_request: bool = False
    model_data: bool = False
    model_name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    model_type: str = ""


_decoder = msgspec.json.Decoder(_Header)


def parse(frames: Sequence[memoryview]) -> Message:
    """Parse the frames of one message. Raises InvalidInput."""
    if not frames or len(frames[0]) > _LONGEST_HEADER:
        raise InvalidInput("the message has no header of Frigate's ZMQ detector")
    try:
        header = _decoder.decode(frames[0])
    except NOT_JSON as error:
        raise InvalidInput(f"the message's header is not one of Frigate's ZMQ detector: {explain(error)}") from None
    if header.model_request:
        return ModelAsked(header.model_name)
    if len(frames) != 2:
        raise InvalidInput(f"the message has {len(frames)} frames; send two, a header and the bytes")
    if header.model_data:
        return ModelSent(header.model_name, frames[1])
    return _tensor(header, frames[1])


def _tensor(header: _Header, data: memoryview) -> Tensor:
    shape, size = header.shape, _DTYPES.get(header.dtype)
    if size is None:
        raise InvalidInput(
            f"the tensor has the unknown dtype {header.dtype[:20]!r}; set Frigate's input_dtype to int or float"
        )
    sane = len(shape) == 4 and all(0 < side <= _LARGEST_SIDE for side in shape) and shape[0] == 1
    if not sane or not (shape[1] in (1, 3) or shape[3] in (1, 3)):
        raise InvalidInput(f"shape {list(shape)[:8]} is not a picture's; set Frigate's input_tensor to nhwc or nchw")
    if math.prod(shape) * size != len(data):
        wanted = math.prod(shape) * size
        raise InvalidInput(f"the tensor has {len(data)} bytes, but {header.dtype}{list(shape)} needs {wanted}")
    if size == 1:
        return Tensor(np.frombuffer(data, np.uint8).reshape(shape), header.model_type.lower())
    return Tensor(np.frombuffer(data, np.float32).reshape(shape), header.model_type.lower())


def model_answer(known: bool) -> bytes:
    """Return the answer to ModelAsked."""
    return msgspec.json.encode({"model_available": known, "model_loaded": known})


def saved_answer(saved: bool) -> bytes:
    """Return the answer to ModelSent."""
    return msgspec.json.encode({"model_saved": saved, "model_loaded": saved})


def rows(found: Detections, width: int, height: int, labels: int) -> bytes:
    """Return the answer to a picture of width x height pixels: one row for each detection. Detections with class ids
    outside 0..labels-1 are left out: Frigate's camera process ends if its label map lacks a class."""
    known = (found.class_ids >= 0) & (found.class_ids < labels) & np.isfinite(found.scores)
    known &= np.isfinite(found.boxes).all(axis=1)
    chosen = np.flatnonzero(known)
    chosen = chosen[np.argsort(-found.scores[chosen], kind="stable")][:ROWS]
    table = np.zeros((ROWS, 6), np.float32)
    table[: len(chosen), 0] = found.class_ids[chosen]
    table[: len(chosen), 1] = found.scores[chosen]
    edges = found.boxes[chosen] / np.array((width, height, width, height), np.float32)
    table[: len(chosen), 2:] = np.clip(edges, 0, 1)[:, (1, 0, 3, 2)]
    return table.tobytes()


def model_name(file: str) -> str:
    """Return the model name for a file name that Frigate sends. Raises InvalidInput if no usable character is left."""
    stem = PurePosixPath(file.replace("\\", "/")).name.removesuffix(".onnx")
    name = re.sub(r"[^\w .+@-]", "_", stem).lstrip(" .+@-")[:128].rstrip()
    if not name:
        raise InvalidInput(f"no character of the file name {file[:80]!r} fits a model name; rename the file")
    return name


Pixels: TypeAlias = npt.NDArray[np.uint8]

# For models that edged did not recognise: families to try for each of Frigate's model types, in this order.
MODEL_TYPES = {
    "yologeneric": ("ultralytics", "ultralytics-end2end", "yolov5", "yolov7"),
    "yolox": ("yolox",),
    "yolonas": ("yolo-nas",),
    "dfine": ("rtdetr",),
    "rfdetr": ("rfdetr",),
    "ssd": ("ssd",),
}
# Frigate extends shorter lists to this number of labels.
_ALWAYS_LABELLED = 91


class Form(msgspec.Struct, frozen=True, eq=False):
    """A tensor in a form that the model accepts. If `spec` is None, the tensor is a picture that will be preprocessed.
    Otherwise the tensor, of shape `shape`, goes without preprocessing to the model's input that `spec` describes.
    `placement` is the place of the picture in the model's input."""

    data: bytes | memoryview
    pixel_format: str
    width: int
    height: int
    placement: Placement
    spec: TensorSpec | None = None
    shape: tuple[int, ...] = ()

    def work(self, thresholds: Thresholds, expires: float) -> FrameWork | TensorWork:
        if self.spec is not None:
            tensor = InputTensor(self.spec.name, self.spec.datatype, self.shape, self.data)
            return TensorWork((tensor,), None, expires)
        stride = self.width * (1 if self.pixel_format == "gray" else 3)
        size = (self.width, self.height, stride)
        return FrameWork(self.data, self.pixel_format, *size, thresholds, expires=expires, must_answer=True)


class Reader:
    """Converts Frigate's pictures to inputs of one model, and the model's answers to answers for Frigate. `model_type`
    is the type that the model has in Frigate. `pixel_format` is Frigate's order of colours. `score` is the least score
    of a detection, None for the model's own threshold. `labels` is the number of classes that Frigate knows, 0 for the
    number of the model's classes."""

    def __init__(self, model: Model, model_type: str, pixel_format: str, score: float | None, labels: int) -> None:
        self._model, self._colors = model, pixel_format
        recognition = model.recognition
        base = recognition.thresholds
        self.thresholds = msgspec.structs.replace(base, score=base.score if score is None else score)
        self.labels = labels or len(recognition.names) or _ALWAYS_LABELLED
        self._family = _family(model, model_type)
        self._why_unread = (
            f"the outputs of model {model.name} cannot be read as objects ({recognition.reason}), nor as those of"
            f" Frigate's model_type {model_type[:20]!r}; set the model's `family`"
        )

    def form(self, tensor: Tensor) -> Form:
        """Return the tensor in a form that the model accepts. Raises InvalidInput if no such form exists."""
        # Not for families from other packages: only the engine's host runs their code, and it needs a picture.
        if tensor.pixels.dtype == np.float32 and self._model.recognition.package is None:
            spec = self._takes(tensor)
            if spec is not None:
                return self._unchanged(tensor, spec)
        if self._model.recognition.preprocess is None:
            raise InvalidInput(
                f"model {self._model.name} accepts neither {tensor.pixels.dtype}{list(tensor.pixels.shape)}"
                " nor pictures; set Frigate's width, height and input_tensor like the model's input"
            )
        return self._as_picture(tensor)

    def read(self, answer: Answered, form: Form) -> bytes:
        """Return the answer for Frigate. Raises Unsupported if the model's outputs have no known family."""
        if answer.detections is not None:
            return rows(Detections.unpack(answer.detections), form.width, form.height, self.labels)
        if self._family is None:
            raise Unsupported(self._why_unread)
        outputs = {o.name: to_array(o.name, o.datatype, tuple(map(int, o.shape)), o.data) for o in answer.outputs}
        found = self._family.decode(outputs, 0, form.placement, self.thresholds)
        return rows(found, form.width, form.height, self.labels)

    def _takes(self, tensor: Tensor) -> TensorSpec | None:
        """Return the model's only input if that input accepts floats in the shape of `tensor`, in either order of axes;
        otherwise None."""
        inputs = self._model.inspection.signature.inputs
        if len(inputs) != 1 or inputs[0].datatype not in ("FP32", "FP16"):
            return None
        return inputs[0] if any(inputs[0].admits(shape) for shape in _shapes(tensor)) else None

    def _unchanged(self, tensor: Tensor, spec: TensorSpec) -> Form:
        pixels = tensor.pixels
        if not spec.admits(pixels.shape):
            pixels = pixels.transpose(0, 2, 3, 1) if tensor.is_planar else pixels.transpose(0, 3, 1, 2)
        values = pixels.astype(np.float16 if spec.datatype == "FP16" else np.float32, copy=False)
        width, height = tensor.size
        whole = place(width, height, width, height, Fit.STRETCH)
        return Form(to_bytes(values), "", width, height, whole, spec, values.shape)

    def _as_picture(self, tensor: Tensor) -> Form:
        preprocess = self._model.recognition.preprocess
        assert preprocess is not None
        pixels = tensor.pixels[0].transpose(1, 2, 0) if tensor.is_planar else tensor.pixels[0]
        width, height = tensor.size
        placement = place(width, height, preprocess.width, preprocess.height, preprocess.fit)
        colors = "gray" if tensor.channels == 1 else self._colors
        return Form(to_bytes(_bytes(pixels)), colors, width, height, placement)


def _bytes(pixels: Pixels | npt.NDArray[np.float32]) -> Pixels:
    """Convert Frigate's floats, 0..1 or 0..255, back to bytes."""
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8, copy=False)
    whole = np.nan_to_num(pixels, nan=0.0, posinf=255.0, neginf=0.0)
    scaled = whole * 255 if whole.max(initial=0.0) <= 1.0 else whole
    rounded: Pixels = np.rint(np.clip(scaled, 0, 255)).astype(np.uint8)
    return rounded


def _shapes(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tensor's shape in its own order of axes, and in the other order (NHWC or NCHW)."""
    batch, a, b, c = tensor.pixels.shape
    return (batch, a, b, c), (batch, b, c, a) if tensor.is_planar else (batch, c, a, b)


def _family(model: Model, model_type: str) -> Family | None:
    """Return the family that decodes the outputs: the family that edged recognised, otherwise the first that fits
    Frigate's model type. None if no family fits, or if the model is not a detector. None also if the family is from
    another package, because the daemon does not run the code of other packages."""
    if model.recognition.package is not None or model.recognition.sound is not None:
        return None
    if model.recognition.family is not None:
        found = open_family(model.recognition)
        return found if isinstance(found, Family) else None
    inspection = model.inspection
    inputs, outputs, metadata = inspection.signature.inputs, inspection.signature.outputs, inspection.metadata
    for name in MODEL_TYPES.get(model_type, ()):
        wanted = {**model.entry.settings, "family": name}
        try:
            found = open_family(recognise(inputs, outputs, metadata, wanted, inspection.operators, inspection.heads))
        except (ConfigError, Unsupported):
            continue
        if isinstance(found, Family):
            return found
    return None

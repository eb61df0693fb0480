"""One opened engine with pre- and postprocessing: pictures in, detections or tensors out. Runs in the host, or
in-process.

There are two steps, which two threads can do at the same time. `prepare` decodes pictures, fits them into the input
tensor, and, if the session can, copies the tensor to the device in advance. `infer` runs the engine and decodes the
outputs. Only one thread calls `infer`. Each picture of a batch fails separately: a damaged picture does not affect the
others.

Pictures that share their data are regions of one picture, which is decoded once. If a job has more pictures than the
input tensor has rows, the engine runs again for the remaining pictures.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np

from edged.backends.contract import Session, Signature, Staging, Stoppable
from edged.errors import InvalidInput, NotFinite
from edged.ipc.finite import FiniteCheck
from edged.ipc.messages import Times
from edged.models.limits import Bounds
from edged.tensors import Array, numpy_dtype
from edged.vision import image as pictures
from edged.vision.content import Content
from edged.vision.detections import Detections
from edged.vision.family import Family, Recognition, Thresholds, open_family
from edged.vision.image import Decoded, Image
from edged.vision.placement import Placement, Roi
from edged.vision.prepare import Preparer

_BUFFERS = 3  # one is being prepared, one waits for its inference, one is being inferred
_UNWATCHED = Bounds(finite="ignore")
_DECODERS = 4  # threads that decode the pictures of a batch: OpenCV releases the GIL while it decodes


class Shot(msgspec.Struct, frozen=True):
    """A received picture: encoded if `pixel_format` is empty, else raw pixels with their geometry. Consecutive shots
    with the same `data` object are regions of one picture."""

    data: bytes | memoryview
    pixel_format: str = ""
    width: int = 0
    height: int = 0
    stride: int = 0
    roi: Roi | None = None
    thresholds: Thresholds | None = None


class Staged(msgspec.Struct, frozen=True):
    """Inputs that the session has already copied to its device. Exactly one inference must follow."""

    handle: object


# Inputs by name, or staged on the device.
Inputs: TypeAlias = Mapping[str, Array] | Staged


class _Fitted(msgspec.Struct, frozen=True):
    """A picture that was fitted into its row of the input tensor."""

    row: int
    placement: Placement
    thresholds: Thresholds
    decode_ms: float
    prepare_ms: float


class _Shown(msgspec.Struct, frozen=True):
    """A shot, and either its decoded pixels with the milliseconds that decoding took, or its error."""

    shot: Shot
    pixels: tuple[Image | Decoded, float] | Exception


class Prepared(msgspec.Struct, frozen=True):
    """Pictures fitted into the input tensor, or their errors, in order. `inputs` is None if every picture has an error.
    If the pipeline has n buffers, the tensor is valid until the n-th following call of `prepare`.

    `rest`: the remaining decoded pictures, for further runs of the engine with at most `most` pictures in each run.
    """

    inputs: Inputs | None
    pictures: tuple[_Fitted | Exception, ...]
    rows: int = 0  # of the inputs
    rest: tuple[_Shown, ...] = ()
    most: int = 1


class Outcome(msgspec.Struct, frozen=True):
    """The result of one picture. It has `detections`, or another decoded result in `content`, or the raw `outputs` of a
    model without a family. `not_finite` names the outputs that contain NaN or infinity."""

    width: int
    height: int
    detections: Detections | None
    content: Content | None
    outputs: dict[str, Array]
    times: Times
    not_finite: tuple[str, ...] = ()


class Pipeline:
    """Owns a session and its input buffers; closes the session if the constructor raises. `batch` is the maximum number
    of pictures in one run if the model's batch size is dynamic. `bounds` says how to treat outputs that are not finite.
    `buffers`: the number of input tensors; 1 suffices if the same thread prepares and infers."""

    def __init__(
        self,
        session: Session,
        signature: Signature,
        recognition: Recognition,
        batch: int = 1,
        bounds: Bounds = _UNWATCHED,
        buffers: int = _BUFFERS,
    ) -> None:
        self._session = session
        self._staging = session if isinstance(session, Staging) else None
        self.stoppable = session if isinstance(session, Stoppable) else None
        self.recognition = recognition
        self._turn, self._preparing = 0, threading.Lock()
        self.finite = FiniteCheck(bounds, signature.outputs)
        self._decoders: ThreadPoolExecutor | None = None
        self._further: Array | None = None  # the input tensor of further runs, once a job has needed one
        try:
            opened = open_family(recognition) if recognition.reads_pictures else None
            # Checked here and not for each picture, because the isinstance check is slow.
            self._detector = opened if isinstance(opened, Family) else None
            self._reader = None if isinstance(opened, Family) else opened
            self._preparer = Preparer(recognition.preprocess) if recognition.preprocess else None
            self._fixed, self._buffers = _input_buffers(signature, recognition, self._staging, batch, buffers)
            self._datatypes = {spec.name: numpy_dtype(spec.datatype) for spec in signature.inputs}
        except BaseException:
            session.close()
            raise

    @property
    def is_staging(self) -> bool:
        """Whether the session can copy inputs to its device during an inference."""
        return self._staging is not None

    def prepare(self, shots: Sequence[Shot], most: int = 0) -> Prepared:
        """Decode all pictures. Fit the first `most` pictures (0: as many as there are rows) into the rows of an input
        tensor. `Prepared.rest` has the remaining pictures. Raises InvalidInput if the model takes no pictures."""
        preparer = self._preparer
        if preparer is None:
            raise InvalidInput(f"this model takes no pictures ({self.recognition.picture}); send tensors instead")
        rows = len(self._buffers[0])
        most = min(most or rows, rows)
        shown = [_Shown(shot, pixels) for shot, pixels in zip(shots, self._decode(preparer, shots), strict=True)]
        with self._preparing:
            self._turn = (self._turn + 1) % len(self._buffers)
            inputs, fitted, filled = self._fill(preparer, shown[:most], self._buffers[self._turn])
            staged = None if inputs is None else self.stage(inputs)
        return Prepared(staged, fitted, filled, tuple(shown[most:]), most)

    def _fill(
        self, preparer: Preparer, shown: Sequence[_Shown], tensor: Array
    ) -> tuple[dict[str, Array] | None, tuple[_Fitted | Exception, ...], int]:
        """Fit decoded pictures into a tensor; return the inputs, the pictures or their errors, and the number of rows
        of the inputs. The inputs are None if every picture has an error."""
        rows = 0
        fitted: list[_Fitted | Exception] = []
        for each in shown:
            if isinstance(each.pixels, Exception):
                fitted.append(each.pixels)
                continue
            try:
                fitted.append(self._fit(preparer, each.shot, *each.pixels, tensor, rows))
            except Exception as error:
                fitted.append(error)
            else:
                rows += 1
        if not rows:
            return None, tuple(fitted), 0
        filled = tensor if self._fixed else tensor[:rows]
        inputs = {self.recognition.input: filled, **self._extra_inputs(fitted, len(filled))}
        return inputs, tuple(fitted), len(filled)

    def stage(self, inputs: Mapping[str, Array]) -> Inputs:
        """Copy inputs to the device. The copy may have to wait until an inference ends. If the session cannot copy
        inputs during an inference, return the inputs unchanged."""
        return inputs if self._staging is None else Staged(self._staging.stage(inputs))

    def infer(self, prepared: Prepared) -> list[Outcome | Exception]:
        """Run the engine on prepared pictures and decode its outputs; return one result per picture, in order. The
        result of a picture is an error if the picture could not be prepared, or if its outputs are not finite and the
        model's settings refuse such outputs.

        If the outputs of a run with one picture cannot be decoded, the result of the picture is that error. For a run
        with several pictures, raise the error: probably the outputs lack a row for each picture, so all results are
        wrong."""
        outcomes = self._infer_run(prepared)
        for start in range(0, len(prepared.rest), prepared.most):
            outcomes += self._infer_run(self._prepare_further(prepared.rest[start : start + prepared.most]))
        return outcomes

    def _prepare_further(self, shown: Sequence[_Shown]) -> Prepared:
        """Fit decoded pictures into a tensor that only the inference thread uses. Do not stage the tensor: staging
        could wait for an inference that this thread must run."""
        assert self._preparer is not None
        if self._further is None:
            self._further = np.zeros_like(self._buffers[0])
        with self._preparing:
            return Prepared(*self._fill(self._preparer, shown, self._further))

    def _infer_run(self, prepared: Prepared) -> list[Outcome | Exception]:
        """Run the engine once; return one result per picture."""
        if prepared.inputs is None:
            return [each for each in prepared.pictures if isinstance(each, Exception)]
        started = time.perf_counter()
        outputs = self._infer(prepared.inputs, None)
        took = (time.perf_counter() - started) * 1e3
        bad = self.finite.bad(outputs)
        try:
            return [
                each if isinstance(each, Exception) else self._checked(outputs, each, took, bad, prepared.rows)
                for each in prepared.pictures
            ]
        except Exception as error:
            if len(prepared.pictures) > 1:
                raise
            return [error]

    def run(self, inputs: Inputs, outputs: Sequence[str] | None) -> tuple[dict[str, Array], Times]:
        """Run the engine on tensors; return the outputs by name, and the time of the inference."""
        started = time.perf_counter()
        answer = self._infer(inputs, outputs)
        return answer, Times(infer_ms=(time.perf_counter() - started) * 1e3)

    def close(self) -> None:
        if self._decoders is not None:
            self._decoders.shutdown()
        self._session.close()

    def _decode(self, preparer: Preparer, shots: Sequence[Shot]) -> list[tuple[Image | Decoded, float] | Exception]:
        """Return for each shot its pixels and the milliseconds that decoding took, or its error. If consecutive shots
        share a picture, it is decoded once. The first of these shots has the time, the others have 0."""
        pictures: list[list[Shot]] = []
        for shot in shots:
            if pictures and pictures[-1][0].data is shot.data:
                pictures[-1].append(shot)
            else:
                pictures.append([shot])
        if len(pictures) > 1 and self._decoders is None:
            self._decoders = ThreadPoolExecutor(min(_DECODERS, os.cpu_count() or 1), "decode")
        run = map if len(pictures) == 1 or self._decoders is None else self._decoders.map
        decoded = run(partial(_decode, preparer), pictures)
        return [each for group, found in zip(pictures, decoded, strict=True) for each in _shared(found, len(group))]

    def _extra_inputs(self, pictures: Sequence[_Fitted | Exception], rows: int) -> dict[str, Array]:
        """Return the further inputs that the family needs, such as picture sizes. Rows without a picture repeat the
        values of the last picture."""
        family = self._detector or self._reader
        if family is None:
            return {}
        placements = [each.placement for each in pictures if isinstance(each, _Fitted)]
        placements += [placements[-1]] * (rows - len(placements))
        found = family.extra_inputs(placements)
        return {name: np.ascontiguousarray(array, self._datatypes[name]) for name, array in found.items()}

    def _fit(
        self, preparer: Preparer, shot: Shot, pixels: Image | Decoded, decode_ms: float, tensor: Array, row: int
    ) -> _Fitted:
        started = time.perf_counter()
        placement = preparer.prepare(pixels, tensor[row], shot.roi)
        thresholds = shot.thresholds or self.recognition.thresholds
        return _Fitted(row, placement, thresholds, decode_ms, (time.perf_counter() - started) * 1e3)

    def _checked(
        self, outputs: dict[str, Array], picture: _Fitted, infer_ms: float, bad: tuple[str, ...], rows: int
    ) -> Outcome | Exception:
        """Return the outcome of one picture, or NotFinite if its row is not finite and the settings refuse such
        outputs. `bad` names the outputs that are not finite in some row, which need not be the row of this picture."""
        if not bad:
            return self._outcome(outputs, picture, infer_ms)
        own = self.finite.bad({name: outputs[name] for name in bad}, picture.row, rows)
        try:
            self.finite.require(own)
        except NotFinite as error:
            return error
        return msgspec.structs.replace(self._outcome(outputs, picture, infer_ms), not_finite=own)

    def _outcome(self, outputs: dict[str, Array], picture: _Fitted, infer_ms: float) -> Outcome:
        started = time.perf_counter()
        detections = content = None
        if self._detector is not None:
            detections = self._detector.decode(outputs, picture.row, picture.placement, picture.thresholds)
        elif self._reader is not None:
            content = self._reader.content(outputs, picture.row, picture.placement, picture.thresholds)
        ended = (time.perf_counter() - started) * 1e3
        times = Times(picture.decode_ms, picture.prepare_ms, infer_ms, ended)
        width, height = picture.placement.width, picture.placement.height
        raw = outputs if detections is None and content is None else {}  # raw if the model has no family
        return Outcome(width, height, detections, content, raw, times)

    def _infer(self, inputs: Inputs, outputs: Sequence[str] | None) -> dict[str, Array]:
        if isinstance(inputs, Staged):
            assert self._staging is not None
            return self._staging.infer_staged(inputs.handle, outputs)
        return self._session.infer(inputs, outputs)


def _decode(preparer: Preparer, shots: Sequence[Shot]) -> tuple[Image | Decoded, float] | Exception:
    """Decode the picture that contains the regions `shots`. Return its pixels and the milliseconds that decoding took,
    or the error. Thread-safe, because it does not change the preparer."""
    started, shot = time.perf_counter(), shots[0]
    pixels: Image | Decoded
    try:
        if shot.pixel_format:
            kind = pictures.PixelFormat(shot.pixel_format)
            pixels = pictures.from_raw(shot.data, kind, shot.width, shot.height, shot.stride)
        else:
            pixels = pictures.decode_reduced(
                shot.data, lambda width, height: min(preparer.reduction(width, height, each.roi) for each in shots)
            )
    except Exception as error:
        return error
    return pixels, (time.perf_counter() - started) * 1e3


def _shared(
    found: tuple[Image | Decoded, float] | Exception, count: int
) -> list[tuple[Image | Decoded, float] | Exception]:
    """Repeat a decoded picture, or its error, for each of the `count` shots that share it. Only the first shot has the
    decoding time; the others have 0."""
    if isinstance(found, Exception):
        return [found] * count
    return [found, *[(found[0], 0.0)] * (count - 1)]


def _input_buffers(
    signature: Signature, recognition: Recognition, staging: Staging | None, batch: int, buffers: int
) -> tuple[bool, list[Array]]:
    """Return whether the batch is fixed, and `buffers` input tensors, which are used in turn; no tensors if the model
    takes no pictures. With a fixed batch the engine gets all rows of a tensor, otherwise only rows with pictures."""
    if recognition.preprocess is None:
        return True, []
    spec = next(s for s in signature.inputs if s.name == recognition.input)
    fixed = isinstance(spec.shape[0], int)
    rows = spec.shape[0] if isinstance(spec.shape[0], int) else batch
    dtype = numpy_dtype(recognition.preprocess.datatype)
    zeros = np.zeros if staging is None else staging.array
    return fixed, [zeros((rows, *recognition.preprocess.shape), dtype) for _ in range(buffers)]

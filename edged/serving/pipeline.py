"""One opened engine with everything around it: picture in, detections or tensors out. Runs in the host, or in-process.

Two steps, so that two threads can overlap them: `prepare` (decode, fit into the input tensor, take it to the device
where the session can do that ahead) and `infer` (run, decode boxes). Each step has one owner at a time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from edged.backend.contract import Session, Signature, Staging
from edged.errors import InvalidInput
from edged.serving.messages import Times
from edged.tensors import Array
from edged.vision import image as pictures
from edged.vision.detections import Detections
from edged.vision.family import Family, Recognition, Thresholds, open_family
from edged.vision.placement import Placement
from edged.vision.prepare import Preparer

_BUFFERS = 3  # one being prepared, one being inferred, one waiting between the two


class Staged(msgspec.Struct, frozen=True):
    """Inputs that the session has taken to its device ahead of their turn. They must be inferred."""

    handle: object


# Inputs by name, or what the session has made of them.
Inputs: TypeAlias = Mapping[str, Array] | Staged


class Prepared(msgspec.Struct, frozen=True):
    """A picture as the model wants it. Its tensor belongs to the pipeline and is reused two pictures later."""

    inputs: Inputs
    placement: Placement
    decode_ms: float
    prepare_ms: float


class Outcome(msgspec.Struct, frozen=True):
    """What came out of a picture: detections, or the raw outputs of a model without a family."""

    width: int
    height: int
    detections: Detections | None
    outputs: dict[str, Array]
    times: Times


class Pipeline:
    """Owns a session, from the start, and the buffers in front of it."""

    def __init__(self, session: Session, signature: Signature, recognition: Recognition) -> None:
        self._session = session
        self._staging = session if isinstance(session, Staging) else None
        self.recognition = recognition
        self._turn = 0
        try:
            self._family: Family | None = open_family(recognition) if recognition.family else None
            self._preparer = Preparer(recognition.preprocess) if recognition.preprocess else None
            self._buffers = _input_buffers(signature, recognition, self._staging)
        except BaseException:
            session.close()
            raise

    def prepare(self, data: bytes | memoryview, pixel_format: str, width: int, height: int, stride: int) -> Prepared:
        """Decodes a picture (`pixel_format` empty) or reads raw pixels, and fits it into an input tensor."""
        if self._preparer is None:
            raise InvalidInput(f"this model takes no picture ({self.recognition.picture}); send tensors instead")
        started = time.perf_counter()
        if pixel_format:
            pixels = pictures.from_raw(data, pictures.PixelFormat(pixel_format), width, height, stride)
        else:
            pixels = pictures.decode(data)
        decoded = time.perf_counter()
        self._turn = (self._turn + 1) % _BUFFERS
        tensor = self._buffers[self._turn]
        placement = self._preparer.prepare(pixels, tensor[0])
        inputs = self.stage({self.recognition.input: tensor})
        return Prepared(inputs, placement, (decoded - started) * 1e3, (time.perf_counter() - decoded) * 1e3)

    def stage(self, inputs: Mapping[str, Array]) -> Inputs:
        """Has inputs taken to the device where the session does that beside inferring; may wait for an inference."""
        return inputs if self._staging is None else Staged(self._staging.stage(inputs))

    def infer(self, prepared: Prepared, thresholds: Thresholds | None = None) -> Outcome:
        """Runs the engine on a prepared picture and decodes what it says."""
        started = time.perf_counter()
        outputs = self._infer(prepared.inputs, None)
        inferred = time.perf_counter()
        detections = None
        if self._family is not None:
            chosen = thresholds or self.recognition.thresholds
            detections = self._family.decode(outputs, 0, prepared.placement, chosen)
        ended = time.perf_counter()
        times = Times(prepared.decode_ms, prepared.prepare_ms, (inferred - started) * 1e3, (ended - inferred) * 1e3)
        placement = prepared.placement
        return Outcome(placement.width, placement.height, detections, outputs if detections is None else {}, times)

    def run(self, inputs: Inputs, outputs: Sequence[str] | None) -> tuple[dict[str, Array], Times]:
        """A tensor request as it is."""
        started = time.perf_counter()
        answer = self._infer(inputs, outputs)
        return answer, Times(infer_ms=(time.perf_counter() - started) * 1e3)

    def close(self) -> None:
        self._session.close()

    def _infer(self, inputs: Inputs, outputs: Sequence[str] | None) -> dict[str, Array]:
        if isinstance(inputs, Staged):
            assert self._staging is not None
            return self._staging.infer_staged(inputs.handle, outputs)
        return self._session.infer(inputs, outputs)


def _input_buffers(signature: Signature, recognition: Recognition, staging: Staging | None) -> list[Array]:
    """Input tensors to alternate between: with a fixed batch the picture is the first and the rest stay zero."""
    if recognition.preprocess is None:
        return []
    spec = next(s for s in signature.inputs if s.name == recognition.input)
    batch = spec.shape[0] if isinstance(spec.shape[0], int) else 1
    dtype = np.dtype({"FP32": np.float32, "FP16": np.float16, "UINT8": np.uint8}[recognition.preprocess.datatype])
    zeros = np.zeros if staging is None else staging.array
    return [zeros((batch, *recognition.preprocess.shape), dtype) for _ in range(_BUFFERS)]

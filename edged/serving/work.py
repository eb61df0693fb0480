"""One piece of work on its way through a slot: a camera frame or a tensor request, and what comes back."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod

import msgspec

from edged.serving import messages as m
from edged.serving.arena import Span
from edged.tensors import Shape
from edged.vision.family import Recognition, Thresholds


class EngineRef(msgspec.Struct, frozen=True):
    """Which engine answers: its key, its backend, the digest of its model, how its pictures and outputs are read.

    `edition` tells one build of the key from another. `is_static` says that every inference is of one size, so that
    their times can be compared.
    """

    key: str
    backend: str
    model: str
    recognition: Recognition
    edition: str = ""
    is_static: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Class names of its detections."""
        return self.recognition.names


class OutputTensor(msgspec.Struct, frozen=True):
    """One output as the protocol carries it; `data` is raw contents."""

    name: str
    datatype: str
    shape: Shape
    data: bytes


class Answered(msgspec.Struct, frozen=True):
    """An answer: packed detections of a frame (None for raw outputs), or output tensors. Times in milliseconds."""

    engine: EngineRef
    detections: bytes | None
    outputs: tuple[OutputTensor, ...]
    width: int
    height: int
    queue_ms: float
    times: m.Times


class Work(ABC):
    """What is common to both kinds. The future ends with an Answered or an EdgedError; cancelling it drops the work."""

    __slots__ = ("future", "received", "retried")
    is_frame = False

    def __init__(self) -> None:
        self.future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self.received = time.monotonic()
        self.retried = False

    @property
    def is_wanted(self) -> bool:
        return not self.future.done()

    @abstractmethod
    def blobs(self) -> tuple[bytes | memoryview, ...]:
        """The bulk bytes, to be placed in the arena in this order."""

    @abstractmethod
    def message(self, job: int, session: int, spans: list[Span], reply: Span | None) -> m.Infer | m.Detect:
        """The order for the host, with the blobs where they were placed."""


class FrameWork(Work):
    """A picture to detect on: encoded bytes, or raw pixels with their geometry."""

    __slots__ = ("data", "height", "pixel_format", "stride", "thresholds", "width")
    is_frame = True

    def __init__(
        self,
        data: bytes,
        pixel_format: str = "",
        width: int = 0,
        height: int = 0,
        stride: int = 0,
        thresholds: Thresholds | None = None,
    ) -> None:
        super().__init__()
        self.data, self.thresholds = data, thresholds
        self.pixel_format, self.width, self.height, self.stride = pixel_format, width, height, stride

    def blobs(self) -> tuple[bytes | memoryview, ...]:
        return (self.data,)

    def message(self, job: int, session: int, spans: list[Span], reply: Span | None) -> m.Infer | m.Detect:
        picture = m.Picture(spans[0], self.pixel_format, self.width, self.height, self.stride)
        return m.Detect(job, session, picture, self.thresholds, reply)


class InputTensor(msgspec.Struct, frozen=True):
    """One input of a tensor request: raw contents, checked against its shape before it gets here."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class TensorWork(Work):
    """A tensor request. `outputs` None means all of them."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: tuple[InputTensor, ...], outputs: tuple[str, ...] | None) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs

    def blobs(self) -> tuple[bytes | memoryview, ...]:
        return tuple(tensor.data for tensor in self.inputs)

    def message(self, job: int, session: int, spans: list[Span], reply: Span | None) -> m.Infer | m.Detect:
        refs = tuple(
            m.TensorRef(tensor.name, tensor.datatype, tensor.shape, span)
            for tensor, span in zip(self.inputs, spans, strict=True)
        )
        return m.Infer(job, session, refs, self.outputs, reply)

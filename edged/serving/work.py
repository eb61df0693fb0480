"""Work for a slot, a camera frame or a tensor request, and its answer."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Protocol, TypeAlias

import msgspec

from edged.backends.profile import Profile
from edged.errors import DeadlineExceeded, EdgedError, Stale
from edged.ipc import messages as m
from edged.ipc.arena import Span
from edged.models.limits import Bounds
from edged.serving.schedule import Batching
from edged.tensors import Shape
from edged.vision.family import Recognition, Thresholds
from edged.vision.placement import Roi


class Source(Protocol):
    """Bulk bytes outside the daemon's memory, read once when the work is chosen. Code tests for bytes and views
    instead, because an isinstance check against a Protocol is slower."""

    @property
    def size(self) -> int: ...

    def read_into(self, place: memoryview) -> None:
        """Fill a place of `size` bytes; an EdgedError becomes the answer of the work."""


Blob: TypeAlias = "bytes | memoryview | Source"

_FRAMES = "frames"
ANY_NUMBER = 1 << 31  # of rows: more than any tensor has


class EngineRef(msgspec.Struct, frozen=True):
    """The engine that answers: its key, its backend, the digest of its model, and how pictures and outputs are read.

    `edition` distinguishes builds of the same key. `is_static` means that every inference has the same size, so that
    their times can be compared. `batching` is of frames, `rows` the most rows of tensor requests, `profile` the range
    of shapes that it was built for, empty if it takes any. `limits` are those of a request. `folded` are inputs with a
    default that its runtime may have built in. `outputs` are the datatypes of its outputs by name, empty if unknown.
    """

    key: str
    backend: str
    model: str
    recognition: Recognition
    edition: str = ""
    is_static: bool = False
    batching: Batching = Batching()
    rows: int = ANY_NUMBER
    limits: Bounds = Bounds()
    profile: Profile = Profile()
    folded: frozenset[str] = frozenset()
    outputs: dict[str, str] = {}

    def takes(self, work: Work) -> bool:
        """Whether work is in its range of shapes, and gives no input that it has built in. Frames always are: ranges
        are chosen to include pictures."""
        if not isinstance(work, TensorWork):
            return True
        if self.folded and not self.folded.isdisjoint(tensor.name for tensor in work.inputs):
            return False
        return not self.profile.ranges or self.profile.takes(work.named_shapes)


class OutputTensor(msgspec.Struct, frozen=True):
    """One output as the protocol carries it; `data` is raw contents."""

    name: str
    datatype: str
    shape: Shape
    data: bytes


class OutputView(msgspec.Struct, frozen=True):
    """One output in the arena, in memory that will be reused."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview

    def kept(self) -> OutputTensor:
        """Copy it out of the arena."""
        return OutputTensor(self.name, self.datatype, self.shape, bytes(self.data))


# Reads outputs before it returns; their memory is reused afterwards. An EdgedError becomes the answer.
Sink: TypeAlias = Callable[[tuple[OutputView, ...]], None]


class Answered(msgspec.Struct, frozen=True):
    """An answer: packed detections or classes of a frame (None for raw outputs), or output tensors. Milliseconds."""

    engine: EngineRef
    detections: bytes | None
    outputs: tuple[OutputTensor, ...]
    width: int
    height: int
    queue_ms: float
    times: m.Times
    classes: bytes | None = None


class Work(ABC):
    """The base of both kinds; `schedule.Waiting` describes its properties. Times are of time.monotonic().

    The future ends with an Answered or an EdgedError; cancelling it drops the work.
    """

    __slots__ = ("expires", "future", "is_suspect", "losses", "received")
    is_frame = False

    def __init__(self, expires: float = math.inf) -> None:
        self.future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self.received = time.monotonic()
        self.expires = expires
        self.is_suspect = False  # it may have crashed its host or needed too much memory, so it goes alone
        self.losses = 0  # of hosts that were killed from outside

    @property
    def is_wanted(self) -> bool:
        return not self.future.done()

    @property
    def group(self) -> Hashable | None:
        return None

    @property
    def rows(self) -> int:
        return 1

    @abstractmethod
    def blobs(self) -> tuple[Blob, ...]:
        """The bulk bytes, to be placed in the arena in this order."""

    def too_late(self) -> EdgedError:
        """The error for work that has expired."""
        return DeadlineExceeded("the deadline passed before it was this request's turn; send fewer at a time")


class FrameWork(Work):
    """A picture to detect on: encoded bytes, or raw pixels with their geometry."""

    __slots__ = ("data", "height", "must_answer", "pixel_format", "roi", "stride", "thresholds", "width")
    is_frame = True

    def __init__(
        self,
        data: Blob,
        pixel_format: str = "",
        width: int = 0,
        height: int = 0,
        stride: int = 0,
        thresholds: Thresholds | None = None,
        roi: Roi | None = None,
        expires: float = math.inf,
        must_answer: bool = False,
    ) -> None:
        """`must_answer`: it is a request with its caller's deadline, and not one of many frames of a camera."""
        super().__init__(expires)
        self.data, self.thresholds, self.roi, self.must_answer = data, thresholds, roi, must_answer
        self.pixel_format, self.width, self.height, self.stride = pixel_format, width, height, stride

    @property
    def group(self) -> Hashable:
        return _FRAMES

    def blobs(self) -> tuple[Blob, ...]:
        return (self.data,)

    def picture(self, span: Span) -> m.Picture:
        """The picture in the arena."""
        return m.Picture(span, self.pixel_format, self.width, self.height, self.stride, self.roi, self.thresholds)

    def too_late(self) -> EdgedError:
        return super().too_late() if self.must_answer else Stale("the frame was too old when its turn came")


class InputTensor(msgspec.Struct, frozen=True):
    """One input of a tensor request: raw contents, checked against its shape before it gets here."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Blob


class TensorWork(Work):
    """A tensor request. `outputs` None means all of them.

    `priority` is its level, from 1, which goes first; 0 is the model's default. `batch` is the number of its rows, the
    first dimension of every input and output, or None if rows are unknown; it may be batched with
    others, unless it goes `alone`. With a `sink` the outputs go there, and the answer has none.
    """

    __slots__ = ("batch", "inputs", "outputs", "priority", "shapes", "sink")

    def __init__(
        self,
        inputs: tuple[InputTensor, ...],
        outputs: tuple[str, ...] | None,
        expires: float = math.inf,
        priority: int = 0,
        batch: int | None = None,
        sink: Sink | None = None,
        alone: bool = False,
    ) -> None:
        super().__init__(expires)
        self.inputs, self.outputs, self.priority, self.batch, self.sink = inputs, outputs, priority, batch, sink
        self.shapes: Hashable = None
        if batch is not None and not alone:
            self.shapes = (outputs, *((tensor.name, tensor.datatype, tensor.shape[1:]) for tensor in inputs))

    @property
    def group(self) -> Hashable | None:
        return self.shapes

    @property
    def rows(self) -> int:
        return self.batch or 1

    @property
    def named_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its inputs by name."""
        return {tensor.name: tensor.shape for tensor in self.inputs}

    def blobs(self) -> tuple[Blob, ...]:
        return tuple(tensor.data for tensor in self.inputs)

    def take(self, outputs: tuple[OutputView, ...]) -> tuple[OutputTensor, ...]:
        """Pass outputs to the sink, or return copies for the answer, which outlives their memory."""
        if self.sink is None:
            return tuple(output.kept() for output in outputs)
        if self.is_wanted:
            self.sink(outputs)
        return ()

    def message(
        self, job: int, session: int, spans: list[Span], reply: Span | None, rows: int = 0, parts: int = 1
    ) -> m.Infer:
        """The message to the host, with the spans of the inputs; `rows` and `parts` of a batch of requests."""
        refs = tuple(
            m.TensorRef(tensor.name, tensor.datatype, (rows, *tensor.shape[1:]) if rows else tensor.shape, span)
            for tensor, span in zip(self.inputs, spans, strict=True)
        )
        return m.Infer(job, session, refs, self.outputs, reply, parts)

"""Work for a slot (a camera frame or a tensor request), and its answer."""

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
from edged.vision.content import Content
from edged.vision.family import Recognition, Thresholds
from edged.vision.placement import Roi


class Source(Protocol):
    """Data outside the daemon's memory, which is read when the work is sent to a host. To recognise a source, code
    tests that a value is neither bytes nor memoryview, because an isinstance check against a Protocol is slower."""

    @property
    def size(self) -> int: ...

    def read_into(self, place: memoryview) -> None:
        """Copy the bytes into `place`, which has `size` bytes. If this raises EdgedError, the client gets this error as
        the answer to its request or frame."""


Blob: TypeAlias = "bytes | memoryview | Source"

_FRAMES = "frames"
ANY_NUMBER = 1 << 31  # of rows: more than any tensor has


class EngineRef(msgspec.Struct, frozen=True):
    """The engine that answers: its key, its backend, the digest of its model, and how pictures and outputs are read.

    `edition` distinguishes builds of the same key. `is_static` means that all inferences have the same shapes, so that
    their times can be compared. `batching` applies to frames; `rows` is the maximum number of rows in a batch of
    tensor requests. `profile` is the range of shapes that the engine was built for, empty if it accepts any. `limits`
    apply to each request. `folded` are inputs with a default that the runtime may have built in. `outputs` maps output
    names to datatypes; empty if unknown.
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
        """Whether the engine accepts work. The work's shapes must be in the engine's range, and the work must have no
        value for an input that the engine has built in. Frames are always accepted, because every range includes the
        shape into which pictures are fitted."""
        if not isinstance(work, TensorWork):
            return True
        if self.folded and not self.folded.isdisjoint(tensor.name for tensor in work.inputs):
            return False
        return not self.profile.ranges or self.profile.takes(work.named_shapes)


class OutputTensor(msgspec.Struct, frozen=True):
    """One output as the protocol carries it; `data` has the format of raw_output_contents."""

    name: str
    datatype: str
    shape: Shape
    data: bytes


class OutputView(msgspec.Struct, frozen=True):
    """One output in the arena; its memory will be reused."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview

    def kept(self) -> OutputTensor:
        """Return a copy outside the arena."""
        return OutputTensor(self.name, self.datatype, self.shape, bytes(self.data))


# A sink must read the outputs before it returns: their memory is reused afterwards. An EdgedError becomes the answer.
Sink: TypeAlias = Callable[[tuple[OutputView, ...]], None]


class Answered(msgspec.Struct, frozen=True):
    """The answer to a frame or a tensor request. The answer to a frame has packed `detections` or a `content`. It has
    neither if the model has no family, because edged then cannot decode the outputs. Only requests, and frames of such
    models, have `outputs`.

    `crops` has the answer or the error of each region of a `CropsWork`. `second` has the answers of a pipeline's second
    model.
    """

    engine: EngineRef
    detections: bytes | None
    outputs: tuple[OutputTensor, ...]
    width: int
    height: int
    queue_ms: float
    times: m.Times
    content: Content | None = None
    crops: tuple[Answered | EdgedError, ...] = ()
    second: SecondStep | None = None


class SecondStep(msgspec.Struct, frozen=True):
    """The answers of a pipeline's second model to the crops of a frame.

    `answers` has the answer or the error for each of the detections in `rows`. `left_out` counts the detections without
    a crop among the detections of the pipeline's classes. `engine` is None if no crop was answered.
    """

    model: str
    rows: tuple[int, ...] = ()
    answers: tuple[Answered | EdgedError, ...] = ()
    left_out: int = 0
    engine: EngineRef | None = None
    queue_ms: float = 0.0
    times: m.Times = m.Times()
    total_ms: float = 0.0


class Work(ABC):
    """The base class of frames and tensor requests; `schedule.Waiting` describes its properties. Times are those of
    time.monotonic().

    The future ends with an Answered or an EdgedError; cancelling the future drops the work.
    """

    __slots__ = ("expires", "future", "is_split", "is_suspect", "losses", "received")
    is_frame = False

    def __init__(self, expires: float = math.inf) -> None:
        self.future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self.received = time.monotonic()
        self.expires = expires
        self.is_suspect = False  # it may have crashed its host or needed too much memory, so it runs alone
        self.losses = 0  # how often it was lost with a host that was killed from outside
        self.is_split = False  # its batch failed, so its rows run one by one

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
        """Return the data of the inputs, in the order in which the arena holds them."""

    def too_late(self) -> EdgedError:
        """Return the error for work that has expired."""
        return DeadlineExceeded("the deadline passed while the request was queued; send fewer requests at a time")


class FrameWork(Work):
    """A picture for inference: encoded bytes, or raw pixels with their format, width, height and stride."""

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
        """`must_answer`: the picture is a separate request with the caller's deadline. It is not a frame of a camera,
        which may be skipped."""
        super().__init__(expires)
        self.data, self.thresholds, self.roi, self.must_answer = data, thresholds, roi, must_answer
        self.pixel_format, self.width, self.height, self.stride = pixel_format, width, height, stride

    @property
    def group(self) -> Hashable:
        return _FRAMES

    def blobs(self) -> tuple[Blob, ...]:
        return (self.data,)

    def pictures(self, span: Span) -> tuple[m.Picture, ...]:
        """Return the picture as the host needs it: one item for each row that this work adds to a batch. `span` is the
        picture's place in the arena."""
        about = (span, self.pixel_format, self.width, self.height, self.stride)
        return (m.Picture(*about, self.roi, self.thresholds),)

    def too_late(self) -> EdgedError:
        return super().too_late() if self.must_answer else Stale("the frame was too old when its turn came")


class CropsWork(FrameWork):
    """Regions of one picture. Each region is a row. The picture is copied to the arena and decoded once."""

    __slots__ = ("regions",)

    def __init__(self, frame: FrameWork, data: Blob, regions: tuple[Roi, ...]) -> None:
        """Copy the picture's format, the deadline and the kind of request from `frame`."""
        super().__init__(
            data,
            frame.pixel_format,
            frame.width,
            frame.height,
            frame.stride,
            expires=frame.expires,
            must_answer=frame.must_answer,
        )
        self.regions = regions

    @property
    def rows(self) -> int:
        return len(self.regions)

    def pictures(self, span: Span) -> tuple[m.Picture, ...]:
        about = (span, self.pixel_format, self.width, self.height, self.stride)
        return tuple(m.Picture(*about, region) for region in self.regions)


class InputTensor(msgspec.Struct, frozen=True):
    """One input of a tensor request; `data` are raw contents whose size has been checked against the shape."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Blob


class TensorWork(Work):
    """A tensor request. `outputs` are the names of the requested outputs, None for all.

    `priority` is its level: 1 is the first, 0 the model's default. `batch` is its number of rows (the first dimension
    of every input and output), or None if unknown. A request with rows may be batched with others, unless `alone` is
    set. If a `sink` is set, it gets the outputs, and the answer has none.
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
        """A mapping from the names of inputs to their shapes."""
        return {tensor.name: tensor.shape for tensor in self.inputs}

    def blobs(self) -> tuple[Blob, ...]:
        return tuple(tensor.data for tensor in self.inputs)

    def take(self, outputs: tuple[OutputView, ...]) -> tuple[OutputTensor, ...]:
        """Pass the outputs to the sink if there is one. Otherwise return copies of the outputs, because the answer
        outlives their memory."""
        if self.sink is None:
            return tuple(output.kept() for output in outputs)
        if self.is_wanted:
            self.sink(outputs)
        return ()

    def message(
        self, job: int, session: int, spans: list[Span], reply: Span | None, rows: int = 0, parts: int = 1
    ) -> m.Infer:
        """Return the message to the host. `spans` are the places of the inputs in the arena. For a batch, `rows` is its
        number of rows and `parts` its number of requests."""
        refs = tuple(
            m.TensorRef(tensor.name, tensor.datatype, (rows, *tensor.shape[1:]) if rows else tensor.shape, span)
            for tensor, span in zip(self.inputs, spans, strict=True)
        )
        return m.Infer(job, session, refs, self.outputs, reply, parts)

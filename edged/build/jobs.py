"""What a one-shot child is asked and what it answers, as messages."""

from __future__ import annotations

import msgspec

from edged.backend.artefact import Artefact
from edged.backend.contract import Composition, Order
from edged.build.extent import Extent
from edged.build.standard import Tolerance
from edged.store.record import Verdict
from edged.vision.family import Recognition


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Answered by `edged.model.inspect.Inspection`."""

    path: str


class Check(msgspec.Struct, frozen=True, tag=True):
    """Whether a backend takes a model. Answered by `Done`."""

    backend: str
    path: str


class CheckSamples(msgspec.Struct, frozen=True, tag=True):
    """Whether pictures can be read, by their paths. Answered by `Done`, or by the first reason why not."""

    samples: tuple[str, ...]


class MakeGolden(msgspec.Struct, frozen=True, tag=True):
    """Runs the reference on golden inputs and keeps both in the file `out`. Answered by `MadeGolden`."""

    order: Order
    out: str
    recognition: Recognition
    samples: tuple[str, ...] = ()  # paths of the user's pictures
    extent: Extent = Extent()  # of the shapes to ask with


class Build(msgspec.Struct, frozen=True, tag=True):
    """Builds into the empty directory `out`. Answered by `Built`.

    `expects` is the version of the runtime that the engine's key names; with another one loaded the job is void.
    """

    order: Order
    out: str
    recognition: Recognition
    samples: tuple[str, ...] = ()  # paths of the user's pictures, which an int8 engine is calibrated on
    expects: str = ""


class Verify(msgspec.Struct, frozen=True, tag=True):
    """Opens a built engine, compares it with the golden outputs in the file `golden`, times it. Answered by `Timed`."""

    order: Order
    golden: str
    reference: Order
    tolerance: Tolerance
    recognition: Recognition  # how boxes are read from the outputs, so that they can be compared
    expects: str = ""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Told while a job is being done: the phase, and how much of it is done where the runtime says so, 0 to 1."""

    phase: str
    fraction: float | None = None


class Done(msgspec.Struct, frozen=True):
    """Nothing more to say."""


class MadeGolden(msgspec.Struct, frozen=True):
    """A line for each of the user's pictures that was left out, with the reason."""

    skipped: tuple[str, ...] = ()


class Built(msgspec.Struct, frozen=True):
    artefact: Artefact
    seconds: float
    peak_memory_mb: float
    composition: Composition = Composition()


class Timed(msgspec.Struct, frozen=True):
    """Medians of one inference, of the engine and of the reference in turns with it; None for a rejected engine."""

    verdict: Verdict
    latency_ms: float | None
    reference_ms: float | None = None
    load: float | None = None  # share of the box's processors, 0 to 1, that others used meanwhile


Job = Inspect | Check | CheckSamples | MakeGolden | Build | Verify


class Failure(msgspec.Struct, frozen=True):
    """How a child ends that could not do its job: a class of `edged.errors` and its message."""

    error: str
    message: str

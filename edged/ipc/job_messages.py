"""What a one-shot child is asked and what it answers, as messages."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from edged.backends.artefact import Artefact
from edged.backends.contract import Composition, Order, Signature
from edged.models.finding import Finding, Stage
from edged.store.record import Verdict
from edged.verification.shape_range import ShapeRange
from edged.verification.standard import Tolerance
from edged.vision.family import Recognition


class Lower(msgspec.Struct, frozen=True, tag=True):
    """Writes a model for older versions into the file `out`; 0 leaves a version as it is. Answered by `Lowered`."""

    path: str
    out: str
    opset: int = 0
    ir: int = 0


class Lowered(msgspec.Struct, frozen=True):
    """`by_definition`: nothing was changed but what means the same by the operators' own definitions."""

    by_definition: bool
    details: tuple[str, ...] = ()


class Prove(msgspec.Struct, frozen=True, tag=True):
    """Compares the answers of a repaired model with those of the original. Answered by `Proven`.

    The original is asked through ONNX Runtime, or, with `evaluate`, through ONNX's reference implementation, which is
    given about so many `seconds` for as many questions as it can answer in that time.
    """

    original: Order
    repaired: Order
    recognition: Recognition
    samples: tuple[str, ...] = ()
    shape_range: ShapeRange = ShapeRange()
    evaluate: bool = False
    seconds: float = 60.0


class Proven(msgspec.Struct, frozen=True):
    verdict: Verdict
    by: str
    questions: int


class FreeDims(msgspec.Struct, frozen=True, tag=True):
    """Finds what the inputs of a model really take, and writes it with inputs declared so into the file `out`, if that
    is not what they are declared as. `sizes`: whether pictures of other sizes are tried as well. Answered by `Freed`.
    """

    order: Order
    recognition: Recognition
    out: str
    dims: bool = True
    sizes: bool = False


class Freed(msgspec.Struct, frozen=True):
    """`changes` are lines "x: 10x3x32x32 -> Nx3x32x32", none if everything is declared as it is; `details` say how
    it was found, `refused` why something that was asked for was not done."""

    before: str = ""
    after: str = ""
    details: tuple[str, ...] = ()
    sized: bool = False  # whether pictures of other sizes are among it
    refused: str = ""
    figures: dict[str, float] = {}
    questions: int = 0


class Simplify(msgspec.Struct, frozen=True, tag=True):
    """Simplifies a model into the file `out`, its weights beside it in `weights` where they are too many for one file.
    Answered by `Simplified`."""

    path: str
    out: str
    weights: str


class Simplified(msgspec.Struct, frozen=True):
    """Numbers of nodes; `by` is the library with its version."""

    before: int
    after: int
    by: str


class RuntimeSupport(msgspec.Struct, frozen=True):
    """What a runtime of this version takes: ONNX opsets from `oldest` to `newest` and IR versions up to `newest_ir`.

    0 means any version.
    """

    version: str
    oldest: int
    newest: int
    newest_ir: int


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Answered by `edged.jobs.inspect.Inspection`."""

    path: str


class Check(msgspec.Struct, frozen=True, tag=True):
    """Whether a backend takes a model as it was written; the last of its stages is `through`. Answered by `Checked`.

    `support` is what is known of some version of the runtime already; `given` are the user's samples, paths by the
    digests of their contents.
    """

    order: Order
    opsets: dict[str, int]
    ir_version: int
    nodes: dict[str, str]  # the first node by operator
    recognition: Recognition | None  # None if it is not to be run
    shape_range: ShapeRange = ShapeRange()
    support: RuntimeSupport | None = None
    through: Stage = Stage.INFERENCE
    given: dict[str, str] = {}


class CheckSamples(msgspec.Struct, frozen=True, tag=True):
    """Whether pictures can be read, and tensors of a model of this signature, by their paths. Answered by `Done`, or by
    the first reason why not."""

    samples: tuple[str, ...]
    signature: Signature


class MakeGolden(msgspec.Struct, frozen=True, tag=True):
    """Runs the reference on golden inputs and keeps both in the file `out`. Answered by `MadeGolden`."""

    order: Order
    out: str
    recognition: Recognition
    samples: tuple[str, ...] = ()  # paths of what the user gave
    shape_range: ShapeRange = ShapeRange()  # of the shapes to ask with


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
    arithmetic: str = "fp32"  # the precision of fewest digits that is computed in, by the model or by the engine


class CompareLevels(msgspec.Struct, frozen=True, tag=True):
    """Compares a model at each level of ONNX Runtime's optimisation with the model as it was written, which `order` is
    for. Answered by `ComparedLevels`."""

    order: Order
    recognition: Recognition
    tolerance: Tolerance
    samples: tuple[str, ...] = ()  # paths of what the user gave
    shape_range: ShapeRange = ShapeRange()


class LoadRuntime(msgspec.Struct, frozen=True, tag=True):
    """Imports a backend's runtime and finds out what it takes. Answered by `LoadedRuntime`."""

    backend: str


class TryProvider(msgspec.Struct, frozen=True, tag=True):
    """Computes with one of ONNX Runtime's execution providers. Answered by `Done`."""

    provider: str


class ImportPackage(msgspec.Struct, frozen=True, tag=True):
    """Imports modules of an optional package. Answered by `Done`."""

    modules: tuple[str, ...]


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Progress of a job: the phase, and the share of it that is done if the runtime reports it, 0 to 1."""

    phase: str
    fraction: float | None = None


class Checked(msgspec.Struct, frozen=True):
    """The findings about a model on a runtime with these limits: why it is refused, or what to report."""

    support: RuntimeSupport
    finding: Finding | None = None
    warnings: tuple[Finding, ...] = ()
    tries: int = 1  # how often in a row it ended so
    seconds: float = 0.0  # from opening it to its first answer; 0 if it gave none


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


class LevelVerdict(msgspec.Struct, frozen=True):
    """What one level of optimisation does to the answers."""

    level: str
    verdict: Verdict


class ComparedLevels(msgspec.Struct, frozen=True):
    """In the order of the levels, each of which does all that the one before does, and more."""

    levels: tuple[LevelVerdict, ...]


class LoadedRuntime(msgspec.Struct, frozen=True):
    """`opset` and `ir_version` are the highest that it takes, 0 if it takes not even an old one, `ANY` where it does
    not look; `providers` are ONNX Runtime's; `talks` says how it could send something home, empty if it cannot."""

    ANY: ClassVar[int] = 64  # ONNX has come near this with neither number

    version: str
    opset: int
    ir_version: int
    providers: tuple[str, ...] = ()
    talks: str = ""


Job = (
    Inspect
    | Check
    | CheckSamples
    | MakeGolden
    | Build
    | Verify
    | CompareLevels
    | LoadRuntime
    | TryProvider
    | ImportPackage
    | Lower
    | Prove
    | FreeDims
    | Simplify
)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a child ends that could not do its job: a class of `edged.errors` and its message, and where the model is at
    fault the fields of the finding."""

    error: str
    message: str
    finding: dict[str, str] = {}

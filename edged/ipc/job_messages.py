"""The jobs of one-shot children, and their answers."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from edged.backends.artefact import Artefact
from edged.backends.contract import Composition, Order, Signature
from edged.models.finding import Finding, Stage
from edged.store.record import Speed, Verdict
from edged.verification.shape_range import ShapeRange
from edged.verification.standard import Tolerance
from edged.vision.family import Recognition


class Lower(msgspec.Struct, frozen=True, tag=True):
    """Write a model for older versions into the file `out`; 0 leaves a version as it is. Answered by `Lowered`."""

    path: str
    out: str
    opset: int = 0
    ir: int = 0


class Lowered(msgspec.Struct, frozen=True):
    """`by_definition`: all changes are equivalent by the definitions of the operators."""

    by_definition: bool
    details: tuple[str, ...] = ()


class Prove(msgspec.Struct, frozen=True, tag=True):
    """Compare the answers of a repaired model with those of the original. Answered by `Proven`.

    The original runs in ONNX Runtime, or, with `evaluate`, in ONNX's reference implementation, which answers as many
    questions as it can in about so many `seconds`.
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
    """Find the shapes that a model really takes. If they are not the declared ones, write the model with inputs
    declared so into the file `out`. `sizes`: whether to try pictures of other sizes as well. Answered by `Freed`."""

    order: Order
    recognition: Recognition
    out: str
    dims: bool = True
    sizes: bool = False


class Freed(msgspec.Struct, frozen=True):
    """`before` and `after` are the declared shapes; `details` say how they were found, `refused` why a requested change
    was not made."""

    before: str = ""
    after: str = ""
    details: tuple[str, ...] = ()
    sized: bool = False  # whether pictures of other sizes are taken
    refused: str = ""
    figures: dict[str, float] = {}
    questions: int = 0


class Simplify(msgspec.Struct, frozen=True, tag=True):
    """Simplify a model into the file `out`, with its weights in the file `weights` if they are too many for one file.
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
    """A version of a runtime, with the ONNX opsets from `oldest` to `newest` and the IR versions up to `newest_ir` that
    it takes. 0 means any version."""

    version: str
    oldest: int
    newest: int
    newest_ir: int


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Answered by `edged.jobs.inspect.Inspection`."""

    path: str


class Check(msgspec.Struct, frozen=True, tag=True):
    """Check whether a backend takes a model as it was written, through stage `through`. Answered by `Checked`.

    `batches`: also check whether its rows are independent. `support` is that of some version of the runtime, if known;
    `given` are the user's samples, paths by the digests of their contents.
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
    batches: bool = False


class CheckSamples(msgspec.Struct, frozen=True, tag=True):
    """Check that pictures, and tensors of a model with this signature, can be read. Answered by `Done`, or by the first
    failure."""

    samples: tuple[str, ...]
    signature: Signature


class AskPicture(msgspec.Struct, frozen=True, tag=True):
    """Run a model of a known family, as it was written, on a picture: a path, or empty for one that edged draws.
    Answered by `AskedPicture`."""

    order: Order
    recognition: Recognition
    picture: str = ""


class MakeGolden(msgspec.Struct, frozen=True, tag=True):
    """Run the reference on golden inputs and store both in the file `out`. Answered by `MadeGolden`."""

    order: Order
    out: str
    recognition: Recognition
    samples: tuple[str, ...] = ()  # paths of the user's samples
    shape_range: ShapeRange = ShapeRange()  # of the shapes of the inputs


class Build(msgspec.Struct, frozen=True, tag=True):
    """Build an engine in the empty directory `out`. Answered by `Built`.

    `expects` is the version of the runtime that the engine's key names; with another one loaded the job is void.
    """

    order: Order
    out: str
    recognition: Recognition
    samples: tuple[str, ...] = ()  # paths of the user's pictures, which an int8 engine is calibrated on
    expects: str = ""


class Verify(msgspec.Struct, frozen=True, tag=True):
    """Open a built engine and compare it with the golden outputs in the file `golden`. Answered by `Verified`."""

    order: Order
    golden: str
    reference: Order
    tolerance: Tolerance
    recognition: Recognition  # how boxes are read from outputs to be compared
    expects: str = ""
    arithmetic: str = "fp32"  # the lowest precision that the model or the engine computes in


class Time(Verify, frozen=True, tag=True):
    """Time a verified engine in turns with the reference, on one of the golden questions. Answered by `Timed`."""


class CompareLevels(msgspec.Struct, frozen=True, tag=True):
    """Compare a model at each level of ONNX Runtime's optimisation with the model as it was written, which `order`
    opens. Answered by `ComparedLevels`."""

    order: Order
    recognition: Recognition
    tolerance: Tolerance
    samples: tuple[str, ...] = ()  # paths of the user's samples
    shape_range: ShapeRange = ShapeRange()


class LoadRuntime(msgspec.Struct, frozen=True, tag=True):
    """Import a backend's runtime and find the versions that it takes. Answered by `LoadedRuntime`."""

    backend: str


class TryProvider(msgspec.Struct, frozen=True, tag=True):
    """Compute with one of ONNX Runtime's execution providers. Answered by `Done`."""

    provider: str


class ImportPackage(msgspec.Struct, frozen=True, tag=True):
    """Import modules of an optional package. Answered by `Done`."""

    modules: tuple[str, ...]


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Progress of a job: the phase, and the share of it that is done if the runtime reports it, 0 to 1."""

    phase: str
    fraction: float | None = None


class Checked(msgspec.Struct, frozen=True):
    """The findings about a model on a runtime with this support: why it is refused, or what to report."""

    support: RuntimeSupport
    finding: Finding | None = None
    warnings: tuple[Finding, ...] = ()
    tries: int = 1  # in a row that ended so
    seconds: float = 0.0  # from opening it to its first answer; 0 if it gave none
    batch_gain: float = 0.0  # as `jobs.batch_check.batch_gain`; 0 if not asked for


class FoundBox(msgspec.Struct, frozen=True):
    """A detection, in pixels of the picture."""

    x1: float
    y1: float
    x2: float
    y2: float
    score: float
    label: str


class AskedPicture(msgspec.Struct, frozen=True):
    """What a model found, the best first; `classes` are labels and scores. `picture` is a JPEG if edged drew it."""

    width: int
    height: int
    boxes: tuple[FoundBox, ...] = ()
    classes: tuple[tuple[str, float], ...] = ()
    picture: bytes = b""


class Done(msgspec.Struct, frozen=True):
    """The job is done."""


class MadeGolden(msgspec.Struct, frozen=True):
    """A line for each of the user's pictures that was left out, with the reason."""

    skipped: tuple[str, ...] = ()


class Built(msgspec.Struct, frozen=True):
    artefact: Artefact
    seconds: float
    peak_memory_mb: float
    composition: Composition = Composition()


class Verified(msgspec.Struct, frozen=True):
    verdict: Verdict


class Timed(msgspec.Struct, frozen=True):
    """`load`: the share of the box's processors, 0 to 1, that others used meanwhile."""

    speeds: tuple[Speed, ...]
    load: float


class LevelVerdict(msgspec.Struct, frozen=True):
    """The verdict on one level of optimisation."""

    level: str
    verdict: Verdict


class ComparedLevels(msgspec.Struct, frozen=True):
    """In the order of the levels, each of which includes the one before."""

    levels: tuple[LevelVerdict, ...]


class LoadedRuntime(msgspec.Struct, frozen=True):
    """`opset` and `ir_version` are the highest that it takes, 0 if it does not even take an old one, `ANY` if it does
    not check; `providers` are ONNX Runtime's; `talks` says how it could send telemetry, empty if it cannot."""

    ANY: ClassVar[int] = 64  # neither number of ONNX is near this

    version: str
    opset: int
    ir_version: int
    providers: tuple[str, ...] = ()
    talks: str = ""


Job = (
    Inspect
    | Check
    | CheckSamples
    | AskPicture
    | MakeGolden
    | Build
    | Verify
    | Time
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
    """The end of a job that failed: a class of `edged.errors`, its message, and the fields of the finding if the model
    is at fault."""

    error: str
    message: str
    finding: dict[str, str] = {}

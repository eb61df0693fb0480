"""The jobs for one-shot child processes, and the answers of the jobs."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from edged.backends.artefact import Artefact
from edged.backends.contract import Composition, Order, Signature
from edged.family_packages import Offer
from edged.models.collected import Collected
from edged.models.finding import Finding, Stage
from edged.store.judgement import Box
from edged.store.record import Blocks, Speed, Verdict
from edged.verification.served import Comparison
from edged.verification.shape_range import ShapeRange
from edged.verification.standard import Tolerance
from edged.vision.family import Recognition, Thresholds
from edged.vision.picture_statistics import PictureStatistics
from edged.vision.placement import Roi


class Lower(msgspec.Struct, frozen=True, tag=True):
    """Convert a model to a lower opset or IR version and write it to the file `out`. `opset` and `ir` are the new
    versions; 0 for a version that does not change. Answered by `Lowered`."""

    path: str
    out: str
    opset: int = 0
    ir: int = 0


class Lowered(msgspec.Struct, frozen=True):
    """The answer to `Lower`. `by_definition`: by the definitions of the operators, the new model is equivalent.
    `details` has a line for each kind of change."""

    by_definition: bool
    details: tuple[str, ...] = ()


class Prove(msgspec.Struct, frozen=True, tag=True):
    """Compare the answers of a repaired model with the answers of the original. Answered by `Proven`.

    The original runs in ONNX Runtime. With `evaluate` it runs in the reference implementation of the onnx package
    instead. Because that is slow, inputs are compared only until about `seconds` have passed.
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
    """Find the input shapes that a model accepts. If these differ from the declared shapes, write a model that declares
    the found shapes to the file `out`. `dims`: whether to correct the declared dimensions, such as the batch. `sizes`:
    whether to also try pictures of other sizes. Answered by `Freed`."""

    order: Order
    recognition: Recognition
    out: str
    dims: bool = True
    sizes: bool = False


class Freed(msgspec.Struct, frozen=True):
    """The answer to `FreeDims`. `before` and `after`: the input shapes that the original and the new model declare.
    `details`: how the new shapes were found. `refused`: why pictures of other sizes are not accepted."""

    before: str = ""
    after: str = ""
    details: tuple[str, ...] = ()
    sized: bool = False  # whether pictures of other sizes are accepted
    refused: str = ""
    figures: dict[str, float] = {}
    questions: int = 0


class Simplify(msgspec.Struct, frozen=True, tag=True):
    """Simplify a model and write it to the file `out`; if it is too large for one file, write its weights to the file
    `weights`. Answered by `Simplified`."""

    path: str
    out: str
    weights: str


class Simplified(msgspec.Struct, frozen=True):
    """The answer to `Simplify`: the numbers of nodes before and after. `by` is the library that simplified the model,
    with its version."""

    before: int
    after: int
    by: str


class RuntimeSupport(msgspec.Struct, frozen=True):
    """The ONNX opsets that a version of a runtime supports, from `oldest` to `newest`, and its newest IR version. 0
    means no limit."""

    version: str
    oldest: int
    newest: int
    newest_ir: int


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Inspect a model file. Answered by `edged.models.inspection.Inspection`."""

    path: str


class Tokenize(msgspec.Struct, frozen=True, tag=True):
    """Encode texts with a tokenizer. `files` are the paths of its files; `edged.jobs.tokenizer` lists the file names.
    Answered by `Tokenized`."""

    files: tuple[str, ...]
    texts: tuple[str, ...]


class Tokenized(msgspec.Struct, frozen=True):
    """The answer to `Tokenize`: the token ids of each text."""

    ids: tuple[tuple[int, ...], ...]


class Recognise(msgspec.Struct, frozen=True, tag=True):
    """Recognise a model with families (decoders of outputs) of other packages. Answered by `Recognised`. The fields
    after `families` are the arguments of `vision.family.recognise`."""

    families: tuple[Offer, ...]
    signature: Signature
    metadata: dict[str, str]
    settings: dict[str, str]
    operators: tuple[str, ...]
    heads: dict[str, str]


def loading(family: str) -> str:
    """Return the name of the phase in which a child imports a family. It shows which family hung or ended a child."""
    return f"loading {family}"


class Recognised(msgspec.Struct, frozen=True):
    """The answer to `Recognise`. `problems` has a line for each family that failed."""

    recognition: Recognition
    problems: tuple[str, ...] = ()


class LoadFamilies(msgspec.Struct, frozen=True, tag=True):
    """Load families of other packages. Answered by `LoadedFamilies`."""

    families: tuple[Offer, ...]


class LoadedFamilies(msgspec.Struct, frozen=True):
    """The answer to `LoadFamilies`: for each family, in order, why it cannot be used; empty if it can."""

    problems: tuple[str, ...]


class Check(msgspec.Struct, frozen=True, tag=True):
    """Check whether a backend accepts a model without changes, up to and including stage `through`. Answered by
    `Checked`.

    `batches`: also check whether the rows of a batch are independent. `support` is the known result for a version of
    the runtime. It is ignored if the child loads another version. `given` maps the digest of each of the user's samples
    to its path.
    """

    order: Order
    opsets: dict[str, int]
    ir_version: int
    nodes: dict[str, str]  # maps each operator to the first node that uses it
    recognition: Recognition | None  # None if the model must not be run
    shape_range: ShapeRange = ShapeRange()
    support: RuntimeSupport | None = None
    through: Stage = Stage.INFERENCE
    given: dict[str, str] = {}
    batches: bool = False


class CheckSamples(msgspec.Struct, frozen=True, tag=True):
    """Check that sample pictures and sample tensors can be read for a model with this signature. Answered by `Done`, or
    by the first failure."""

    samples: tuple[str, ...]
    signature: Signature


class AskPicture(msgspec.Struct, frozen=True, tag=True):
    """Run a model of a known family, without changes, on a picture. `picture` is a path; if it is empty, edged draws a
    picture. Answered by `AskedPicture`."""

    order: Order
    recognition: Recognition
    picture: str = ""


class TryFamilies(msgspec.Struct, frozen=True, tag=True):
    """Run a model, without changes, on a picture. Decode the outputs with the family of each recognition in
    `candidates`. `titles` are the captions of the candidates in the resulting picture. Answered by `TriedFamilies`."""

    order: Order
    candidates: tuple[Recognition, ...]
    titles: tuple[str, ...]
    picture: str


class MakeGolden(msgspec.Struct, frozen=True, tag=True):
    """Run the reference on golden inputs, and store inputs and outputs in the file `out`. Engines are later verified
    with these outputs. Answered by `MadeGolden`.

    `expects` are the versions of the runtime's packages from which the name of `out` was derived. The job fails if
    another version is loaded.
    """

    order: Order
    out: str
    recognition: Recognition
    samples: tuple[str, ...] = ()  # paths of the user's samples
    shape_range: ShapeRange = ShapeRange()  # of the shapes of the inputs
    expects: tuple[str, ...] = ()


class Build(msgspec.Struct, frozen=True, tag=True):
    """Build an engine in the empty directory `out`. Answered by `Built`.

    `expects` is the version of the runtime in the engine's key; the job fails if another version is loaded.

    The other fields are for int8. The engine is calibrated on the user's `samples` (paths) and on the frames in
    `collected` that are for calibration. If the answers of the int8 model exceed `tolerance`, layers are changed back
    to float32. This repair takes at most `repair_s` seconds, and ends at the latest `repairs_until_s` seconds after the
    start of the conversion. If `tolerance` is None, answers are not compared.
    """

    order: Order
    out: str
    recognition: Recognition
    samples: tuple[str, ...] = ()
    expects: str = ""
    tolerance: Tolerance | None = None
    collected: Collected | None = None
    repair_s: float = 0.0
    repairs_until_s: float = 1e9


class Verify(msgspec.Struct, frozen=True, tag=True):
    """Open a built engine and compare it with the golden outputs in the file `golden`. Answered by `Verified`."""

    order: Order
    golden: str
    reference: Order
    tolerance: Tolerance
    recognition: Recognition  # how to decode boxes, which are compared, from the outputs
    expects: str = ""
    arithmetic: str = "fp32"  # the lowest precision that the model or the engine computes in


class Time(Verify, frozen=True, tag=True):
    """Time a verified engine and the reference, alternately, on one golden input. `with_instances`: also time several
    instances of the engine at the same time. Answered by `Timed`."""

    with_instances: bool = True


class Judge(Verify, frozen=True, tag=True):
    """Compare a verified engine with the reference on frames of cameras, for about `seconds`. `frames` maps the path of
    each frame to its digest, in the order in which frames are judged. `cameras` maps the path of each frame to its
    camera. Answered by `edged.store.judgement.Judgement`."""

    model: str = ""  # its name, for messages
    collection: str = ""
    frames: dict[str, str] = {}
    cameras: dict[str, str] = {}
    seconds: float = 300.0


class FrameToDraw(msgspec.Struct, frozen=True):
    """A frame of a collection: its path, its digest, and the detections of the reference (`expected`) and of the engine
    (`found`)."""

    path: str
    sha256: str
    expected: tuple[Box, ...] = ()
    found: tuple[Box, ...] = ()


class DrawFrames(msgspec.Struct, frozen=True, tag=True):
    """Draw detections on frames of cameras, in JPEGs of at most `most_bytes` together. Answered by `DrawnFrames`."""

    frames: tuple[FrameToDraw, ...]
    most_bytes: int


class CompareLevels(msgspec.Struct, frozen=True, tag=True):
    """Compare a model at each of ONNX Runtime's optimisation levels with the unoptimised model. `order` says how to
    open the unoptimised model. Answered by `ComparedLevels`."""

    order: Order
    recognition: Recognition
    tolerance: Tolerance
    samples: tuple[str, ...] = ()  # paths of the user's samples
    shape_range: ShapeRange = ShapeRange()


class Candidate(msgspec.Struct, frozen=True):
    """A camera's frame in the file `name`. It is encoded if `pixel_format` is empty, otherwise raw with `width` and
    `height` in pixels and `stride` in bytes."""

    name: str
    pixel_format: str = ""
    width: int = 0
    height: int = 0
    stride: int = 0


class Sift(msgspec.Struct, frozen=True, tag=True):
    """Check whether `candidates`, files in the folder `out`, can become collected frames. For raw pixels in NAME, write
    a JPEG to NAME.jpg in this folder. Answered by `Sifted`."""

    out: str
    candidates: tuple[Candidate, ...]


class SiftedFrame(msgspec.Struct, frozen=True):
    """The outcome for a candidate. `likeness`: the hash of `vision.likeness`. `suffix`: the file suffix of the format,
    such as `.jpg`. `problem`: why the frame cannot be used; empty if it can."""

    likeness: int = 0
    suffix: str = ""
    problem: str = ""


class Sifted(msgspec.Struct, frozen=True):
    """The answer to `Sift`: an outcome for each candidate, in order."""

    frames: tuple[SiftedFrame, ...]


class Shadow(msgspec.Struct, frozen=True, tag=True):
    """Run the reference on a frame, and compare the reference's answer with the served answer. `order` says how to open
    the reference. Answered by `Shadowed`.

    `picture` is the path of the frame. The frame is encoded if `pixel_format` is empty. Otherwise it has raw pixels,
    with `width` and `height` in pixels and `stride` in bytes. `detections` or `content` is the served answer, packed.
    `slack` is how far two scores of the same detection may differ. If `keeps` is set, the frame and both answers are
    written to the folder `out`. The child ends after `cpu_seconds` of processor time.
    """

    order: Order
    recognition: Recognition
    picture: str
    out: str
    pixel_format: str = ""
    width: int = 0
    height: int = 0
    stride: int = 0
    roi: Roi | None = None
    thresholds: Thresholds | None = None
    detections: bytes | None = None
    content: bytes | None = None
    slack: float = 0.0
    keeps: bool = False
    cpu_seconds: int = 60


class LoadRuntime(msgspec.Struct, frozen=True, tag=True):
    """Import a backend's runtime and find the ONNX versions that it accepts. Answered by `LoadedRuntime`."""

    backend: str


class FinishExport(msgspec.Struct, frozen=True, tag=True):
    """Write an exported model, `path`, as one file, `out`, with more metadata. Answered by `FinishedExport`."""

    path: str
    out: str
    metadata: dict[str, str] = {}


class ExportLayers(msgspec.Struct, frozen=True, tag=True):
    """Run an exported model on the arrays in the file `inputs` (npz). Write samples of its modules' outputs to the file
    `out` (npz). `edged.export.frameworks.torch_model` samples the same elements. Answered by `Done`."""

    path: str
    inputs: str
    out: str


class TryProvider(msgspec.Struct, frozen=True, tag=True):
    """Run a model of one node with one of ONNX Runtime's execution providers. Answered by `Done`."""

    provider: str


class ImportPackage(msgspec.Struct, frozen=True, tag=True):
    """Import modules of an optional package. Answered by `Done`."""

    modules: tuple[str, ...]


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Progress of a job: the phase, and the finished fraction of the phase (0 to 1; None if not reported)."""

    phase: str
    fraction: float | None = None


class Checked(msgspec.Struct, frozen=True):
    """The answer to `Check`. `support` has the versions that the runtime supports. `finding` says why the runtime
    refuses the model; None if it accepts the model. `warnings` are about the model."""

    support: RuntimeSupport
    finding: Finding | None = None
    warnings: tuple[Finding, ...] = ()
    tries: int = 1  # how many times in a row the model was tried
    seconds: float = 0.0  # from opening the model to its first answer; 0 without an answer
    batch_gain: float = 0.0  # see `jobs.batch_check.batch_gain`; 0 if it was not requested


class AskedPicture(msgspec.Struct, frozen=True):
    """The answer to `AskPicture`. `boxes` are the detections, the highest score first. For a model with another kind of
    output, such as a text, `content` has lines that describe the output. `picture` is a JPEG if edged made the picture,
    or if the model's output is neither boxes nor classes: then the output is drawn on the picture. Otherwise `picture`
    is empty."""

    width: int
    height: int
    boxes: tuple[Box, ...] = ()
    content: tuple[str, ...] = ()
    picture: bytes = b""


class TriedFamily(msgspec.Struct, frozen=True):
    """The result of one family. `count` is the number of detections, and `best` describes the best of them. If the
    family has another kind of output, `count` is None and `best` describes the output. If the family failed, `error` is
    the reason, in one line."""

    count: int | None = None
    best: tuple[str, ...] = ()
    error: str = ""

    @property
    def line(self) -> str:
        """The result as one line for people."""
        best = ", ".join(self.best)
        found = best if self.count is None else f"{self.count} found{f': {best}' if best else ''}"
        return self.error or found or "nothing"


class TriedFamilies(msgspec.Struct, frozen=True):
    """The answer to `TryFamilies`: the result of each candidate, in order, and a JPEG with a tile for each."""

    families: tuple[TriedFamily, ...]
    picture: bytes


class Done(msgspec.Struct, frozen=True):
    """The job has succeeded and has no other answer."""


class MadeGolden(msgspec.Struct, frozen=True):
    """The answer to `MakeGolden`. `skipped` has a line with the reason for each user's picture that was left out."""

    skipped: tuple[str, ...] = ()


class Built(msgspec.Struct, frozen=True):
    artefact: Artefact
    seconds: float
    peak_memory_mb: float
    composition: Composition = Composition()


class Verified(msgspec.Struct, frozen=True):
    verdict: Verdict


class Timed(msgspec.Struct, frozen=True):
    """The answer to `Time`. `load`: the share of the box's processors, 0 to 1, that other processes used meanwhile.
    `blocks`: the times of single inferences, in alternating blocks of the engine and the reference."""

    speeds: tuple[Speed, ...]
    load: float
    blocks: Blocks = Blocks()


class DrawnFrames(msgspec.Struct, frozen=True):
    """The answer to `DrawFrames`: for each frame a JPEG with the detections of the reference, and a JPEG with the
    detections of the engine. Both are empty if the frame is gone or cannot be read."""

    pictures: tuple[tuple[bytes, bytes], ...]


class Shadowed(msgspec.Struct, frozen=True):
    """The answer to `Shadow`: how the answers agree, and statistics of the picture. `objects` and `score`: the number
    of objects that the reference found, and their mean score; 0 if the answers are not detections. `cpu_s`: the child's
    processor time in seconds."""

    comparison: Comparison
    picture: PictureStatistics
    objects: int
    score: float
    cpu_s: float


class LevelVerdict(msgspec.Struct, frozen=True):
    """The verdict on one level of optimisation."""

    level: str
    verdict: Verdict


class ComparedLevels(msgspec.Struct, frozen=True):
    """The answer to `CompareLevels`: a verdict for each level, the lowest level first. A level includes the
    optimisations of the level before."""

    levels: tuple[LevelVerdict, ...]


class FinishedExport(msgspec.Struct, frozen=True):
    """The answer to `FinishExport`: for each operator, the source line of its first node, if the exporter wrote it."""

    sources: dict[str, str]


class LoadedRuntime(msgspec.Struct, frozen=True):
    """The answer to `LoadRuntime`. `opset` and `ir_version` are the highest versions that the runtime accepts: 0 if it
    rejects even an old version, `ANY` if it does not check. `providers` are ONNX Runtime's execution providers.
    `talks`: how the runtime could send telemetry; empty if it cannot."""

    ANY: ClassVar[int] = 64  # far above both of ONNX's version numbers

    version: str
    opset: int
    ir_version: int
    providers: tuple[str, ...] = ()
    talks: str = ""


Job = (
    Inspect
    | Tokenize
    | Recognise
    | LoadFamilies
    | Check
    | CheckSamples
    | AskPicture
    | TryFamilies
    | MakeGolden
    | Build
    | Verify
    | Time
    | Judge
    | DrawFrames
    | CompareLevels
    | Sift
    | LoadRuntime
    | Shadow
    | TryProvider
    | FinishExport
    | ExportLayers
    | ImportPackage
    | Lower
    | Prove
    | FreeDims
    | Simplify
)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of a job that failed: a class of `edged.errors`, its message, and the fields of the finding if the
    model is at fault."""

    error: str
    message: str
    finding: dict[str, str] = {}

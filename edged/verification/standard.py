"""The standard that a model's engines must meet: the probes, and how far answers may differ from the reference's.

The daemon's event loop computes the standard of every planned engine. So nothing here decodes a picture. If the model
has the digests of its samples (`Model.contents`), nothing here reads the disk either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from edged.backends.contract import REFERENCE
from edged.backends.registry import ABSENT
from edged.device.validity import is_driver, relevant
from edged.models import settings as model_settings
from edged.models.model import Model
from edged.verification.shape_range import ShapeRange
from edged.vision.family import Recognition

# Part of the name of every file of golden answers. Increase it with every change of the probes (golden.py, probes.py,
# shape_range.py, pictures.py), of their noise (noise.py) or of the file's format.
_QUESTIONS = 7
# Increase it with every change in which answers count (`golden.deciding`) or in how they are compared (verify.py).
_RULE = 5

# The facts of the box that the reference's answers depend on: its runtime and the processor's instructions.
_FACTS = tuple(fact for fact in relevant(REFERENCE.backend, "cpu") if not is_driver(fact))


class Tolerance(msgspec.Struct, frozen=True):
    """How far an engine may differ from the reference. A figure is the worst value over all outputs and samples.

    Two figures are not worst values, but shares over all samples together. `top1` is a share of the rows of
    classifiers' outputs, [N, classes]. `boxes` is a share of the detections in pictures, if the model's family is
    known (see `edged.verification.boxes`).
    """

    cosine: float  # at least: cosine of the angle between the flattened outputs
    relative_l2: float  # at most: norm of the difference over norm of the reference
    element: float  # an element that differs by more than this share of its row's or column's maximum is an outlier
    outliers: float  # at most: share of elements that are outliers
    unequal: float  # at most: share of elements that differ, for integers, booleans and strings
    top1: float  # at least: share of the rows with a clear winner whose winner is the same
    boxes: float  # at least: share of one side's detections that the other side has too; the lower of both shares
    box_score: float  # at most: largest difference between the scores of a detection
    class_score: float  # at most: largest difference between the probabilities of a class, in pictures and samples
    class_map: float  # at least: mean IoU of the classes in a class map
    depth: float  # at most: RMS difference over the reference's standard deviation; after the best fit if without unit
    embedding: float  # at least: cosine of the angle between embeddings
    text: float  # at least: share of a text's characters that are equal, in texts that are read clearly
    anomaly: float  # at most: difference of anomaly scores over the larger score
    # The figures on frames of cameras. All are means over the frames or objects:
    recall: float  # at least: share of the reference's detections that the engine has too, matched one to one
    precision: float  # at least: share of the engine's detections that the reference has too
    recall_75: float  # at least: as `recall`, at an IoU of 0.75 instead of 0.5
    precision_75: float  # at least: as `precision`, at an IoU of 0.75 instead of 0.5
    score_drift: float  # at most: mean difference between the scores of a matched detection, or of the best class
    masks: float  # at least: mean IoU of the masks of matched detections
    keypoints: float  # at least: mean similarity of the keypoints of matched detections
    top5: float  # at least: share of frames whose best class is among the engine's best five
    objects: float = 50.0  # at least: objects that must be seen on frames of cameras to judge an engine by them
    finite: float = 1.0  # at least: share of elements that are finite, infinite or NaN as in the reference


# The figures that decide on frames of cameras, in the order in which reasons are given.
ON_FRAMES = (
    *("recall", "precision", "recall_75", "precision_75", "score_drift", "masks", "keypoints", "top1", "top5"),
    *("class_map", "depth", "embedding", "text", "anomaly"),
)
# The figures that measure what clients see in the golden probes.
DECODED = ("top1", "boxes", "box_score", "class_score", "class_map", "depth", "embedding", "text", "anomaly")

# Another order of additions changes float32 answers by about 1e-6, float16 answers by about 1e-3. A difference far
# above that is an error.
TOLERANCES = {
    "fp32": Tolerance(
        cosine=0.99999,
        relative_l2=2e-3,
        element=5e-3,
        outliers=0.002,
        unequal=0.001,
        top1=0.999,
        boxes=0.999,
        box_score=0.01,
        class_score=0.01,
        class_map=0.99,
        depth=0.01,
        embedding=0.9999,
        text=0.999,
        anomaly=0.01,
        recall=0.99,
        precision=0.99,
        recall_75=0.98,
        precision_75=0.98,
        score_drift=0.005,
        masks=0.98,
        keypoints=0.99,
        top5=0.999,
    ),
    # Factors are rounded to ten bits, sums are not.
    "tf32": Tolerance(
        cosine=0.9999,
        relative_l2=1e-2,
        element=2e-2,
        outliers=0.005,
        unequal=0.005,
        top1=0.99,
        boxes=0.98,
        box_score=0.03,
        class_score=0.03,
        class_map=0.98,
        depth=0.03,
        embedding=0.999,
        text=0.99,
        anomaly=0.03,
        recall=0.98,
        precision=0.98,
        recall_75=0.97,
        precision_75=0.97,
        score_drift=0.01,
        masks=0.97,
        keypoints=0.98,
        top5=0.99,
    ),
    "fp16": Tolerance(
        cosine=0.999,
        relative_l2=3e-2,
        element=5e-2,
        outliers=0.01,
        unequal=0.01,
        top1=0.98,
        boxes=0.95,
        box_score=0.05,
        class_score=0.05,
        class_map=0.96,
        depth=0.05,
        embedding=0.998,
        text=0.98,
        anomaly=0.05,
        recall=0.97,
        precision=0.97,
        recall_75=0.95,
        precision_75=0.95,
        score_drift=0.02,
        masks=0.96,
        keypoints=0.97,
        top5=0.99,
    ),
    "bf16": Tolerance(
        cosine=0.995,
        relative_l2=1e-1,
        element=1e-1,
        outliers=0.02,
        unequal=0.02,
        top1=0.95,
        boxes=0.9,
        box_score=0.1,
        class_score=0.1,
        class_map=0.92,
        depth=0.1,
        embedding=0.99,
        text=0.95,
        anomaly=0.1,
        recall=0.95,
        precision=0.95,
        recall_75=0.9,
        precision_75=0.9,
        score_drift=0.04,
        masks=0.93,
        keypoints=0.95,
        top5=0.98,
    ),
    "int8": Tolerance(
        cosine=0.98,
        relative_l2=2e-1,
        element=2e-1,
        outliers=0.05,
        unequal=0.05,
        top1=0.9,
        boxes=0.85,
        box_score=0.3,
        class_score=0.3,
        class_map=0.85,
        depth=0.3,
        embedding=0.95,
        text=0.9,
        anomaly=0.3,
        recall=0.9,
        precision=0.9,
        recall_75=0.8,
        precision_75=0.8,
        score_drift=0.1,
        masks=0.85,
        keypoints=0.9,
        top5=0.95,
    ),
}


# Bounds for the raw outputs of an engine that is judged on frames of cameras afterwards. Most values of a detector's
# maps become no detection, so these bounds only refuse garbage; the frames show what clients get.
_BEFORE_FRAMES = {"cosine": 0.5, "relative_l2": 1.0, "outliers": 1.0}


class Standard(msgspec.Struct, frozen=True):
    """The standard that one engine of a model must meet. A verdict made with another standard is out of date."""

    tolerance: Tolerance
    golden: str  # identifies the golden answers by the model, the reference and all else that they are made from
    detections: str = ""  # digest of how boxes are decoded; empty for a model without a family
    frames: str = ""  # id of the collection of frames that the engine is judged on; empty if it is not
    rule: int = _RULE

    @classmethod
    def of(cls, model: Model, precision: str, facts: Mapping[str, str]) -> Standard:
        """Return the standard for engines of a model in a precision. `facts` are the facts of the box on which the
        reference answers."""
        frames = model.collected.id if model.collected is not None and is_judged_on_frames(model, precision) else ""
        return cls(tolerance_of(model, precision), _golden(model, facts), _detections(model.recognition), frames)

    @property
    def digest(self) -> str:
        """A digest of all fields, 12 hexadecimal digits."""
        return _short(self)


def is_judged_on_frames(model: Model, precision: str) -> bool:
    """Whether engines of a precision are judged on collected frames. Engines in fp32 are not, because their answers
    differ by rounding only. False, too, if the model takes no pictures, or if no family decodes the model's
    answers."""
    return precision != "fp32" and model.recognition.family is not None and model.recognition.preprocess is not None


def coarser(precision: str, arithmetic: str) -> str:
    """Return the coarser of two precisions: of an engine, and of the model as exported (`arithmetic`). It determines
    how far two correct answers may differ."""
    return max(precision, arithmetic, key=list(TOLERANCES).index)


def tolerance_of(model: Model, precision: str) -> Tolerance:
    """Return how far an engine of a model may differ from the reference."""
    judged = model.collected is not None and is_judged_on_frames(model, precision)
    return tolerance(model.entry.settings, precision, model.inspection.arithmetic, judged_on_frames=judged)


def tolerance(
    settings: Mapping[str, str], precision: str, arithmetic: str = "fp32", *, judged_on_frames: bool = False
) -> Tolerance:
    """Return how far an engine may differ from the reference. `arithmetic` is the precision of the model as exported.

    If the model's setting `precisions` does not name `precision`, the bounds for decoded answers (`DECODED`) and on
    frames (`ON_FRAMES`) are those of `arithmetic`. If the setting names `precision`, and the engine is judged on frames
    of cameras, the bounds for its raw outputs are very wide. Bounds in the settings (`verify.`) replace these bounds.
    """
    found = TOLERANCES[coarser(precision, arithmetic)]
    if precision not in (model_settings.precisions(settings) or ()):
        exact = TOLERANCES[arithmetic]
        figures = {figure: getattr(exact, figure) for figure in (*DECODED, *ON_FRAMES)}
        found = msgspec.structs.replace(found, **figures)
    elif judged_on_frames:
        found = msgspec.structs.replace(found, **_BEFORE_FRAMES)
    return msgspec.structs.replace(found, **model_settings.verify_bounds(settings, precision))


def _golden(model: Model, facts: Mapping[str, str]) -> str:
    """Return the model's digest, a dash, and a digest of everything else that determines the probes and the reference's
    answers. ONNX Runtime's version is part of it, because another version may answer differently."""
    samples = sorted(map(model.content, model.samples))  # the names of the files do not matter
    shape_range = ShapeRange.of(model)
    shapes = [str(shape_range.profile), shape_range.given]
    reading, package = model.recognition.reading, model.recognition.package
    reference = [facts.get(fact, ABSENT) for fact in _FACTS]
    made_of: list[object] = [_QUESTIONS, model.recognition.preprocess, samples, shapes, reference]
    made_of += [reading.constants] if reading.constants else []
    made_of += [model.recognition.sound] if model.recognition.sound is not None else []
    made_of += [package] if package and reading.extras else []  # the package's code fills these inputs
    return f"{model.digest}-{_short(made_of)}"


def _detections(recognition: Recognition) -> str:
    if recognition.family is None:
        return ""
    decoded = [recognition.family, recognition.reading, recognition.thresholds]
    # Another package may change at any time, and a verdict by its earlier code is out of date.
    return _short([*decoded, recognition.package] if recognition.package is not None else decoded)


def _short(content: object) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:12]

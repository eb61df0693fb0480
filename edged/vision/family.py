"""Recognises the detector family of a model.

Order: the setting `family`, then metadata, then tensor names, then shapes. A model that no rule claims, or that is
known but not decoded, has family None with a reason, and serves raw tensors. A new family adds its rules to `_RULES`
and its spec to `_FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from edged.errors import ConfigError, Unsupported
from edged.tensors import TensorSpec
from edged.vision import settings as keys
from edged.vision.families import (
    classification,
    deepstream_yolo,
    rfdetr,
    rtdetr,
    rtdetr_ultralytics,
    ssd,
    ultralytics,
    ultralytics_end2end,
    ultralytics_obb,
    ultralytics_pose,
    ultralytics_segment,
    yolo_nas,
    yolov5,
    yolov7,
    yolox,
)
from edged.vision.families.contract import (
    Claim,
    Classifier,
    Evidence,
    Family,
    FamilySpec,
    Reading,
    Rule,
    Thresholds,
    undecided,
)
from edged.vision.metadata import ExportMetadata, read_metadata
from edged.vision.preprocess import (
    Preprocess,
    describe,
    find_picture,
    input_size,
    override,
    plain,
    raw_preprocess,
)

__all__ = ["Classifier", "Family", "Reading", "Recognition", "Thresholds", "open_family", "raw_preprocess", "recognise"]


class Recognition(msgspec.Struct, frozen=True):
    """A model's pictures and detections, as plain data that is sent to hosts.

    `family` None means raw tensors only; `preprocess` None means that the model takes no picture, `picture` says why.
    `reason` says why the family was recognised or not.
    """

    family: str | None
    reason: str
    preprocess: Preprocess | None
    picture: str
    names: tuple[str, ...]
    thresholds: Thresholds
    input: str = ""
    reading: Reading = Reading()
    is_set: bool = False  # the family is set by the user, not recognised from the file

    @property
    def output(self) -> str:
        """The first tensor that is decoded; empty without a family."""
        return self.reading.outputs[0] if self.reading.outputs else ""


_FAMILIES: dict[str, FamilySpec] = {
    ultralytics.NAME: ultralytics.SPEC,
    ultralytics_end2end.NAME: ultralytics_end2end.SPEC,
    ultralytics_segment.NAME: ultralytics_segment.SPEC,
    ultralytics_pose.NAME: ultralytics_pose.SPEC,
    ultralytics_obb.NAME: ultralytics_obb.SPEC,
    rtdetr_ultralytics.NAME: rtdetr_ultralytics.SPEC,
    yolov5.NAME: yolov5.SPEC,
    yolov7.NAME: yolov7.SPEC,
    yolox.NAME: yolox.SPEC,
    yolo_nas.NAME: yolo_nas.SPEC,
    rtdetr.NAME: rtdetr.SPEC,
    rfdetr.NAME: rfdetr.SPEC,
    deepstream_yolo.NAME: deepstream_yolo.SPEC,
    ssd.NAME: ssd.SPEC,
    classification.NAME: classification.SPEC,
    classification.ULTRALYTICS: classification.SPEC_ULTRALYTICS,
}


def _ambiguous_shape(evidence: Evidence) -> Claim | None:
    """Name the settings that decide between several formats of one shape, instead of guessing."""
    output = evidence.only_output
    if evidence.picture is None or output is None:
        return None
    if evidence.flat_list is not None:
        formats = "two formats (class before score, or after), or classes"
        what = f"{_shape_text(output)} is a list of detections in one of {formats}"
        return undecided(what, "yolov7", "yolo-nas", "classification")
    return _ambiguous_rows(evidence, output) if len(output.shape) == 3 else None


def _ambiguous_rows(evidence: Evidence, output: TensorSpec) -> Claim | None:
    """Detections in rows, [1, rows, columns]: boxes first, so at least 6 columns."""
    _, rows, columns = output.shape
    if not isinstance(columns, int) or columns < 6 or columns == evidence.cells():
        return None
    if columns == 6:
        formats = "three formats (corners in pixels, centres in 0..1, or suppression to be done)"
        what = f"{_shape_text(output)} is one of {formats}"
        return undecided(what, "ultralytics-end2end", "rtdetr-ultralytics", "deepstream-yolo")
    if rows == 300:
        return undecided(f"{_shape_text(output)} is 300 queries, as RT-DETR has", "rtdetr-ultralytics")
    return None


def _shape_text(output: TensorSpec) -> str:
    return f"{output.name} [{','.join(map(str, output.shape))}]"


# Quantised values and BF16, which numpy holds as plain integers, would be mistaken for pixels and scores.
_DECODED = frozenset({"FP64", "FP32", "FP16", "INT32", "INT64"})

# The first rule that returns a claim wins.
_RULES: tuple[Rule, ...] = (
    # Metadata of the exporter.
    rtdetr_ultralytics.by_metadata,
    ultralytics_end2end.by_metadata,
    ultralytics_segment.by_metadata,
    ultralytics_pose.by_metadata,
    ultralytics_obb.by_metadata,
    classification.by_metadata,
    ultralytics.by_metadata,
    # Names of inputs and outputs.
    rtdetr.by_names,
    rfdetr.by_names,
    classification.by_names,
    yolov7.by_names,
    yolo_nas.by_names,
    deepstream_yolo.by_names,
    ssd.by_names,
    # Shapes.
    yolov5.by_shape,
    yolox.by_shape,
    yolov7.by_shape,
    ssd.by_shape,
    _ambiguous_shape,
    classification.by_shape,
    ultralytics.by_shape,
)


def recognise(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    metadata: Mapping[str, str],
    settings: Mapping[str, str],
    operators: Iterable[str] | None = None,
    heads: Mapping[str, str] | None = None,
) -> Recognition:
    """Recognise a model by its tensors, metadata and settings (see `settings.KNOWN`); ConfigError for invalid settings.

    `operators` are the names of those in the graph, `heads` the operator of each output; None if unknown. Invalid
    metadata is ignored, as are settings of other modules.
    """
    keys.check(settings)
    exported = read_metadata(metadata)
    picture, _ = find_picture(inputs)
    size = input_size(picture, settings, exported.size) if picture else None
    used = None if operators is None else frozenset(operators)
    evidence = Evidence(inputs, outputs, exported, picture, size, settings, used, heads)
    claim = _readable(_claim(evidence, settings), outputs)
    filled = _FAMILIES[claim.family].extra_inputs if claim.family is not None else ()
    preprocess, why = raw_preprocess(tuple(i for i in inputs if i.name not in filled), settings, exported.size)
    if claim.family is not None and preprocess is None:
        claim = Claim(None, f"looks like {claim.family}, but {why}")
    if claim.family is not None and picture is not None and size is not None:
        preprocess = override(_FAMILIES[claim.family].feed(plain(picture, size)), settings)
        why = describe(picture, preprocess)
    names = _names(settings, exported, claim)
    return Recognition(
        family=claim.family,
        reason=claim.reason + exported.remark,
        preprocess=preprocess,
        picture=why,
        names=names,
        thresholds=_thresholds(settings, claim),
        input=picture.name if picture else "",
        reading=msgspec.structs.replace(claim.read, classes=claim.classes or len(names)),
        is_set=claim.family is not None and "family" in settings,
    )


def open_family(recognition: Recognition) -> Family | Classifier:
    """Return the decoder of a recognised model, a `Family` or a `Classifier`; Unsupported without a family."""
    if recognition.family not in _FAMILIES or recognition.preprocess is None:
        raise Unsupported(f"no family decodes this model: {recognition.reason}")
    spec = _FAMILIES[recognition.family]
    return spec.open(recognition.preprocess, recognition.names, recognition.reading)


def _claim(evidence: Evidence, settings: Mapping[str, str]) -> Claim:
    wanted = settings.get("family")
    if wanted == "raw":
        return Claim(None, "the setting family=raw")
    if wanted is not None:
        if wanted not in _FAMILIES:
            raise ConfigError(f"family={wanted[:60]} is unknown; {keys.nearest(wanted[:60], (*_FAMILIES, 'raw'))}")
        return _FAMILIES[wanted].by_setting(evidence)
    for rule in _RULES:
        claim = rule(evidence)
        if claim is not None:
            return claim
    return Claim(
        None,
        "metadata, names and shapes match no known detector; raw tensors are served;"
        f" if it is one, set family={' or family='.join(_FAMILIES)}",
    )


def _readable(claim: Claim, outputs: tuple[TensorSpec, ...]) -> Claim:
    """Replace a claim about datatypes that cannot be decoded."""
    for spec in outputs:
        if spec.name in claim.read.outputs and spec.datatype not in _DECODED:
            return Claim(
                None, f"looks like {claim.family}, but {spec.name} holds {spec.datatype}, which is not decoded"
            )
    return claim


def _names(settings: Mapping[str, str], exported: ExportMetadata, claim: Claim) -> tuple[str, ...]:
    given = keys.words(settings, "names")
    if given is None:
        # Names that do not match the tensor would label every box wrongly; then numbers are better.
        fits = claim.classes is None or len(exported.names) == claim.classes
        return exported.names if fits else ()
    if claim.background and claim.classes is not None and len(given) == claim.classes - claim.background:
        return (*["background"] * claim.background, *given)
    if claim.classes is not None and len(given) != claim.classes:
        raise ConfigError(f"names lists {len(given)} classes, the model has {claim.classes}")
    return given


def _thresholds(settings: Mapping[str, str], claim: Claim) -> Thresholds:
    base = _FAMILIES[claim.family].thresholds if claim.family is not None else Thresholds()
    score = keys.number(settings, "thresholds.score", 0, 1)
    iou = keys.number(settings, "thresholds.iou", 0, 1)
    most = keys.integer(settings, "thresholds.max_detections", 1, 4096)
    agnostic = keys.boolean(settings, "thresholds.class_agnostic")
    return Thresholds(
        score=base.score if score is None else score,
        iou=base.iou if iou is None else iou,
        max_detections=base.max_detections if most is None else most,
        class_agnostic=base.class_agnostic if agnostic is None else agnostic,
    )

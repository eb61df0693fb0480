"""Which detector family a model belongs to, and why.

Order: the setting `family`, then metadata, then tensor names, then row arithmetic. Nothing is guessed in
silence: a model that no rule claims, or that is known but not decoded, has family None, a reason that says
so, and serves raw tensors. A new family adds its rules to `_RULES` and its makers to `_FAMILIES`.
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
    Maker,
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
    """What is known about a model's pictures and detections; plain data, to store and to send to a host.

    `family` None means raw tensors only; `preprocess` None means that the model takes no picture. `picture`
    says why it does or does not, `reason` why the family was or was not recognised.
    """

    family: str | None
    reason: str
    preprocess: Preprocess | None
    picture: str
    names: tuple[str, ...]
    thresholds: Thresholds
    input: str = ""
    reading: Reading = Reading()
    is_set: bool = False  # the family is the user's word, and nothing in the file bears it out

    @property
    def output(self) -> str:
        """The first tensor that is decoded; empty for a model of no family."""
        return self.reading.outputs[0] if self.reading.outputs else ""


_FAMILIES: dict[str, Maker] = {
    ultralytics.NAME: ultralytics.MAKER,
    ultralytics_end2end.NAME: ultralytics_end2end.MAKER,
    ultralytics_segment.NAME: ultralytics_segment.MAKER,
    ultralytics_pose.NAME: ultralytics_pose.MAKER,
    ultralytics_obb.NAME: ultralytics_obb.MAKER,
    rtdetr_ultralytics.NAME: rtdetr_ultralytics.MAKER,
    yolov5.NAME: yolov5.MAKER,
    yolov7.NAME: yolov7.MAKER,
    yolox.NAME: yolox.MAKER,
    yolo_nas.NAME: yolo_nas.MAKER,
    rtdetr.NAME: rtdetr.MAKER,
    rfdetr.NAME: rfdetr.MAKER,
    deepstream_yolo.NAME: deepstream_yolo.MAKER,
    ssd.NAME: ssd.MAKER,
    classification.NAME: classification.MAKER,
    classification.ULTRALYTICS: classification.MAKER_ULTRALYTICS,
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


# Quantised numbers and BF16, which numpy holds as plain integers, would pass for pixels and scores.
_DECODED = frozenset({"FP64", "FP32", "FP16", "INT32", "INT64"})

# The first rule with something to say wins.
_RULES: tuple[Rule, ...] = (
    # What the exporter said.
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
    """Look at a model's tensors, metadata and settings (see `settings.KNOWN`); ConfigError for bad settings.

    `operators` are the names of those in the graph, `heads` those that make each output; None if not known. Metadata
    never raises. Settings of other rooms may be among `settings`; they are not looked at.
    """
    keys.check(settings)
    said = read_metadata(metadata)
    picture, _ = find_picture(inputs)
    size = input_size(picture, settings, said.size) if picture else None
    used = None if operators is None else frozenset(operators)
    evidence = Evidence(inputs, outputs, said, picture, size, settings, used, heads)
    claim = _readable(_claim(evidence, settings), outputs)
    filled = _FAMILIES[claim.family].companions if claim.family is not None else ()
    preprocess, why = raw_preprocess(tuple(i for i in inputs if i.name not in filled), settings, said.size)
    if claim.family is not None and preprocess is None:
        claim = Claim(None, f"looks like {claim.family}, but {why}")
    if claim.family is not None and picture is not None and size is not None:
        preprocess = override(_FAMILIES[claim.family].feed(plain(picture, size)), settings)
        why = describe(picture, preprocess)
    names = _names(settings, said, claim)
    return Recognition(
        family=claim.family,
        reason=claim.reason + said.remark,
        preprocess=preprocess,
        picture=why,
        names=names,
        thresholds=_thresholds(settings, claim),
        input=picture.name if picture else "",
        reading=msgspec.structs.replace(claim.read, classes=claim.classes or len(names)),
        is_set=claim.family is not None and "family" in settings,
    )


def open_family(recognition: Recognition) -> Family | Classifier:
    """The decoder of a recognised model: `isinstance(it, Classifier)` tells which. Unsupported where it has none."""
    if recognition.family not in _FAMILIES or recognition.preprocess is None:
        raise Unsupported(f"nothing is decoded for this model: {recognition.reason}")
    maker = _FAMILIES[recognition.family]
    return maker.open(recognition.preprocess, recognition.names, recognition.reading)


def _claim(evidence: Evidence, settings: Mapping[str, str]) -> Claim:
    wanted = settings.get("family")
    if wanted == "raw":
        return Claim(None, "the setting family=raw")
    if wanted is not None:
        if wanted not in _FAMILIES:
            raise ConfigError(f"family={wanted[:60]} is not decoded; {keys.nearest(wanted[:60], (*_FAMILIES, 'raw'))}")
        return _FAMILIES[wanted].by_setting(evidence)
    for rule in _RULES:
        claim = rule(evidence)
        if claim is not None:
            return claim
    return Claim(
        None,
        "neither metadata, names nor shapes are those of a known detector; raw tensors are served;"
        f" if it is one, set family={' or family='.join(_FAMILIES)}",
    )


def _readable(claim: Claim, outputs: tuple[TensorSpec, ...]) -> Claim:
    """The claim, where numpy knows the numbers that it is about."""
    for spec in outputs:
        if spec.name in claim.read.outputs and spec.datatype not in _DECODED:
            return Claim(
                None, f"looks like {claim.family}, but {spec.name} holds {spec.datatype}, which is not decoded"
            )
    return claim


def _names(settings: Mapping[str, str], said: ExportMetadata, claim: Claim) -> tuple[str, ...]:
    given = keys.words(settings, "names")
    if given is None:
        # Names that do not fit the tensor would label every box wrongly; numbers are honest.
        fits = claim.classes is None or len(said.names) == claim.classes
        return said.names if fits else ()
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

"""Recognises the detector family of a model.

The order is: the setting `family`, metadata, tensor names, shapes. If no rule claims a model, or if the claimed format
is not decoded, the family is None with a reason, and the model serves raw tensors. To add a family, add it to
`FAMILIES` and its rules to `_RULES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from edged.errors import ConfigError, Unsupported
from edged.tensors import TensorSpec
from edged.vision import settings as keys
from edged.vision.families.centerface import CenterFace
from edged.vision.families.classification import Classification, UltralyticsClassification
from edged.vision.families.contract import (
    Claim,
    ContentFamily,
    Evidence,
    Family,
    Reading,
    Rule,
    undecided,
)
from edged.vision.families.damo_yolo import DamoYolo
from edged.vision.families.decoding import Thresholds
from edged.vision.families.detr import RfDetr, RtDetr, UltralyticsRtDetr
from edged.vision.families.efficientdet import EfficientDet
from edged.vision.families.fastestdet import FastestDet
from edged.vision.families.huggingface import DeformableDetr, Detr, RtDetrTransformers
from edged.vision.families.mmdet import MmDet, RtmDet
from edged.vision.families.movenet import MoveNet
from edged.vision.families.nanodet import NanoDet, NanoDetPlus
from edged.vision.families.paddle import PicoDet, PpYoloEPlus
from edged.vision.families.scrfd import Scrfd
from edged.vision.families.ssd import Ssd
from edged.vision.families.topdown import HrNet, RtmPose
from edged.vision.families.torchvision import TorchVision
from edged.vision.families.ultraface import UltraFace
from edged.vision.families.ultralytics import Ultralytics, UltralyticsEnd2End, UltralyticsObb, UltralyticsPose
from edged.vision.families.ultralytics_segment import UltralyticsSegment
from edged.vision.families.yolo import DeepStreamYolo, YoloNas, YoloV5, YoloV7, YoloX
from edged.vision.families.yolov6 import YoloV6
from edged.vision.families.yunet import YuNet
from edged.vision.metadata import ExportMetadata, read_metadata
from edged.vision.preprocess import Preprocess, find_picture, input_size, preprocess_for

__all__ = ["ContentFamily", "Family", "Reading", "Recognition", "Thresholds", "open_family", "recognise"]


class Recognition(msgspec.Struct, frozen=True):
    """How a model's pictures are prepared and its outputs decoded, as plain data that is sent to hosts.

    If `family` is None, only raw tensors are served. If `preprocess` is None, the model takes no pictures; `picture`
    says why. `reason` says why the family was recognised or not.
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
        """The name of the first tensor that is decoded; empty without a family."""
        return self.reading.outputs[0] if self.reading.outputs else ""


FAMILIES: dict[str, type[Family] | type[ContentFamily]] = {
    family.name: family
    for family in (
        Ultralytics,
        UltralyticsEnd2End,
        UltralyticsSegment,
        UltralyticsPose,
        UltralyticsObb,
        UltralyticsRtDetr,
        YoloV5,
        YoloV6,
        YoloV7,
        YoloX,
        YoloNas,
        DamoYolo,
        RtDetr,
        RfDetr,
        Detr,
        DeformableDetr,
        RtDetrTransformers,
        RtmDet,
        MmDet,
        PicoDet,
        PpYoloEPlus,
        NanoDetPlus,
        NanoDet,
        FastestDet,
        EfficientDet,
        TorchVision,
        DeepStreamYolo,
        Ssd,
        YuNet,
        Scrfd,
        UltraFace,
        CenterFace,
        RtmPose,
        HrNet,
        MoveNet,
        Classification,
        UltralyticsClassification,
    )
}


def _ambiguous_shape(evidence: Evidence) -> Claim | None:
    """If several formats have the output's shape, do not guess: return a claim that names the settings that decide."""
    output = evidence.only_output
    if output is None:
        return None
    if evidence.flat_list is not None:
        formats = "two formats (class before score, or after), or classes"
        what = f"{_shape_text(output)} is a list of detections in one of {formats}"
        return undecided(what, "yolov7", "yolo-nas", "classification")
    return _ambiguous_rows(evidence, output) if len(output.shape) == 3 else None


def _ambiguous_rows(evidence: Evidence, output: TensorSpec) -> Claim | None:
    """Like `_ambiguous_shape`, for detections in rows, [1, rows, columns], with at least 6 columns, box first."""
    _, rows, columns = output.shape
    if not isinstance(columns, int) or columns < 6 or columns == evidence.cells():
        return None
    if columns == 6:
        formats = "three formats (corners in pixels; centres in 0..1; or boxes that need NMS)"
        what = f"{_shape_text(output)} is one of {formats}"
        return undecided(what, "ultralytics-end2end", "rtdetr-ultralytics", "deepstream-yolo")
    if rows == 300:
        return undecided(f"{_shape_text(output)} is 300 queries, as RT-DETR has", "rtdetr-ultralytics")
    return None


def _shape_text(output: TensorSpec) -> str:
    return f"{output.name} [{','.join(map(str, output.shape))}]"


# Other datatypes are not decoded: numpy holds quantised values and BF16 as plain integers.
_DECODED = frozenset({"FP64", "FP32", "FP16", "INT32", "INT64"})

# The first rule that returns a claim wins.
_RULES: tuple[Rule, ...] = (
    # Metadata of the exporter.
    UltralyticsRtDetr.by_metadata,
    UltralyticsEnd2End.by_metadata,
    UltralyticsSegment.by_metadata,
    UltralyticsPose.by_metadata,
    UltralyticsObb.by_metadata,
    UltralyticsClassification.by_metadata,
    Ultralytics.by_metadata,
    # Names of inputs and outputs.
    TorchVision.by_names,
    RtDetr.by_names,
    RfDetr.by_names,
    Detr.by_names,
    RtmDet.by_names,
    PicoDet.by_names,
    Classification.by_names,
    YoloV6.by_names,
    YoloV7.by_names,
    DamoYolo.by_names,
    NanoDetPlus.by_names,
    NanoDet.by_names,
    EfficientDet.by_names,
    YoloNas.by_names,
    DeepStreamYolo.by_names,
    UltraFace.by_names,  # before Ssd, whose names it has
    Ssd.by_names,
    YuNet.by_names,
    Scrfd.by_names,
    CenterFace.by_names,
    RtmPose.by_names,
    # Shapes.
    YoloV5.by_shape,
    YoloX.by_shape,
    YoloV7.by_shape,
    RtmDet.by_shape,
    NanoDet.by_shape,
    EfficientDet.by_shape,
    FastestDet.by_shape,
    Ssd.by_shape,
    Scrfd.by_shape,
    CenterFace.by_shape,
    HrNet.by_shape,
    MoveNet.by_shape,
    _ambiguous_shape,
    Classification.by_shape,
    Ultralytics.by_shape,
)


def recognise(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    metadata: Mapping[str, str],
    settings: Mapping[str, str],
    operators: Iterable[str] | None = None,
    heads: Mapping[str, str] | None = None,
) -> Recognition:
    """Recognise a model by its tensors, metadata and settings (see `settings.KNOWN`). Raises ConfigError if a setting
    is invalid.

    `operators` are the names of the graph's operators, `heads` is the operator that computes each output; None if
    unknown. Invalid metadata and settings of other modules are ignored.
    """
    keys.check(settings)
    exported = read_metadata(metadata)
    picture, _ = find_picture(inputs)
    evidence = None
    if picture is not None:
        size = input_size(picture, settings, exported.size)
        used = None if operators is None else frozenset(operators)
        evidence = Evidence(inputs, outputs, exported, picture, size, settings, used, heads)
    claim = _readable(_claim(evidence, outputs, settings), outputs)
    family = FAMILIES[claim.family] if claim.family is not None else None
    filled, feed = (family.own_inputs, family.feed) if family is not None else ((), {})
    preprocess, why = preprocess_for(tuple(i for i in inputs if i.name not in filled), settings, exported.size, feed)
    if family is not None and preprocess is None:
        claim, family = Claim(None, f"looks like {claim.family}, but {why}"), None
    names = _names(settings, exported, claim)
    return Recognition(
        family=claim.family,
        reason=claim.reason + exported.remark,
        preprocess=preprocess,
        picture=why,
        names=names,
        thresholds=_thresholds(settings, Thresholds() if family is None else family.thresholds),
        input=picture.name if picture else "",
        reading=msgspec.structs.replace(claim.reading, classes=claim.classes or len(names)),
        is_set=family is not None and "family" in settings,
    )


def open_family(recognition: Recognition) -> Family | ContentFamily:
    """Return the decoder of a recognised model. Raises Unsupported if it has no family."""
    if recognition.family not in FAMILIES or recognition.preprocess is None:
        raise Unsupported(f"no family decodes this model: {recognition.reason}")
    return FAMILIES[recognition.family](recognition.preprocess, recognition.names, recognition.reading)


def _claim(evidence: Evidence | None, outputs: tuple[TensorSpec, ...], settings: Mapping[str, str]) -> Claim:
    wanted = settings.get("family")
    if wanted == "raw":
        return Claim(None, "the setting family=raw")
    if wanted is not None:
        if wanted not in FAMILIES:
            raise ConfigError(f"family={wanted[:60]} is unknown; {keys.nearest(wanted[:60], (*FAMILIES, 'raw'))}")
        claim = None if evidence is None else FAMILIES[wanted].claim(evidence, f"the setting family={wanted}")
        if claim is None:
            needs = "one picture input" if evidence is None else FAMILIES[wanted].needs
            found = ", ".join(map(_shape_text, outputs))
            raise ConfigError(f"family={wanted} needs {needs}; the model has {found[:200]}; set family=raw")
        if claim.family is None:
            raise ConfigError(claim.reason)
        return claim
    claims = (rule(evidence) for rule in _RULES) if evidence is not None else iter(())
    unknown = (
        "metadata, names and shapes match no known detector; raw tensors are served;"
        " if docs/families.md lists its kind, set family to the name there"
    )
    return next((claim for claim in claims if claim is not None), Claim(None, unknown))


def _readable(claim: Claim, outputs: tuple[TensorSpec, ...]) -> Claim:
    """Return the claim, or one without a family if an output has a datatype that is not decoded."""
    for spec in outputs:
        if spec.name in claim.reading.outputs and spec.datatype not in _DECODED:
            what = f"{spec.name} holds {spec.datatype}, which is not decoded"
            return Claim(None, f"looks like {claim.family}, but {what}")
    return claim


def _names(settings: Mapping[str, str], exported: ExportMetadata, claim: Claim) -> tuple[str, ...]:
    given = keys.words(settings, "names")
    if given is None:
        # Names whose number does not match the tensor would label every box wrongly; numbers are better than that.
        fits = claim.classes is None or len(exported.names) == claim.classes
        return exported.names if fits and exported.names else claim.names
    if claim.background and claim.classes is not None and len(given) == claim.classes - claim.background:
        return (*["background"] * claim.background, *given)
    if claim.classes is not None and len(given) != claim.classes:
        raise ConfigError(f"names lists {len(given)} classes, the model has {claim.classes}")
    return given


def _thresholds(settings: Mapping[str, str], base: Thresholds) -> Thresholds:
    given = {
        "score": keys.number(settings, "thresholds.score", 0, 1),
        "iou": keys.number(settings, "thresholds.iou", 0, 1),
        "max_detections": keys.integer(settings, "thresholds.max_detections", 1, 4096),
        "class_agnostic": keys.boolean(settings, "thresholds.class_agnostic"),
    }
    return msgspec.structs.replace(base, **{key: value for key, value in given.items() if value is not None})

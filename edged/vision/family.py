"""Recognises the detector family of a model.

The order is: the setting `family`, metadata, tensor names, shapes. If no rule claims a model, or if the claimed format
is not decoded, the family is None, the reason says what the model may be (`nearest`), and the model serves raw tensors.
To add a family, add it to `FAMILIES` and its rules to `_RULES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from edged.errors import ConfigError, Unsupported
from edged.tensors import TensorSpec
from edged.vision import nearest
from edged.vision import settings as keys
from edged.vision.comparison import Tensors, nearest_form, shown
from edged.vision.families.ambiguous import ambiguous_shape
from edged.vision.families.centerface import CenterFace
from edged.vision.families.classification import Classification, UltralyticsClassification
from edged.vision.families.contract import Claim, ContentFamily, Evidence, Family, Reading, Rule, readable
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
from edged.vision.signatures import needs

__all__ = ["ContentFamily", "Family", "Reading", "Recognition", "Thresholds", "open_family", "recognise"]


class Recognition(msgspec.Struct, frozen=True):
    """How a model's pictures are prepared and its outputs decoded, as plain data that is sent to hosts.

    If `family` is None, only raw tensors are served. If `preprocess` is None, the model takes no pictures; `picture`
    says why. `reason` says why the family was recognised or not, and is cut to fit in a few lines.

    Without a family: `between` are the families that accept the tensors and may be right, the most likely first; `kind`
    is the kind of a model whose tensors are not decoded, see `kinds`.
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
    between: tuple[str, ...] = ()
    kind: str = ""

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


_MOST_SHOWN = 8  # outputs in an error

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
    ambiguous_shape,
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
    evidence = evidence_of(inputs, outputs, exported, settings, operators, heads)
    claim = readable(_claim(evidence, inputs, outputs, settings), outputs)
    family = FAMILIES[claim.family] if claim.family is not None else None
    filled, feed = (family.own_inputs, family.feed) if family is not None else ((), {})
    preprocess, why = preprocess_for(tuple(i for i in inputs if i.name not in filled), settings, exported.size, feed)
    if family is not None and preprocess is None:
        claim, family = Claim(None, f"looks like {claim.family}, but {why}"), None
    names = _names(settings, exported, claim)
    return Recognition(
        family=claim.family,
        reason=nearest.cut(f"{claim.reason}{exported.remark}"),
        preprocess=preprocess,
        picture=why,
        names=names,
        thresholds=_thresholds(settings, Thresholds() if family is None else family.thresholds),
        input=evidence.picture.name if evidence is not None else "",
        reading=msgspec.structs.replace(claim.reading, classes=claim.classes or len(names)),
        is_set=family is not None and "family" in settings,
        between=claim.between,
        kind=claim.kind,
    )


def evidence_of(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    exported: ExportMetadata,
    settings: Mapping[str, str],
    operators: Iterable[str] | None = None,
    heads: Mapping[str, str] | None = None,
) -> Evidence | None:
    """Return what rules get, see `recognise`; None if the model takes no picture."""
    picture, _ = find_picture(inputs)
    if picture is None:
        return None
    size = input_size(picture, settings, exported.size)
    used = None if operators is None else frozenset(operators)
    return Evidence(inputs, outputs, exported, picture, size, settings, used, heads)


def open_family(recognition: Recognition) -> Family | ContentFamily:
    """Return the decoder of a recognised model. Raises Unsupported if it has no family."""
    if recognition.family not in FAMILIES or recognition.preprocess is None:
        raise Unsupported(f"no family decodes this model: {recognition.reason}")
    return FAMILIES[recognition.family](recognition.preprocess, recognition.names, recognition.reading)


def _claim(
    evidence: Evidence | None,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    settings: Mapping[str, str],
) -> Claim:
    wanted = settings.get("family")
    if wanted == "raw":
        return Claim(None, "the setting family=raw")
    if wanted is not None:
        return _set(wanted, evidence, outputs)
    claims = (rule(evidence) for rule in _RULES) if evidence is not None else iter(())
    claimed = next((claim for claim in claims if claim is not None), None)
    if evidence is None:
        return nearest.explain_without_picture(Tensors.of(inputs, outputs, None))
    if claimed is None:
        return nearest.explain(evidence, FAMILIES)
    return nearest.advise(claimed, evidence, FAMILIES)


def _set(wanted: str, evidence: Evidence | None, outputs: tuple[TensorSpec, ...]) -> Claim:
    """Return the claim of the family that the user set. Raises ConfigError if it does not accept the model."""
    if wanted not in FAMILIES:
        raise ConfigError(f"family={wanted[:60]} is unknown; {keys.nearest(wanted[:60], (*FAMILIES, 'raw'))}")
    claim = None if evidence is None else FAMILIES[wanted].claim(evidence, f"the setting family={wanted}")
    if claim is None:
        form = None if evidence is None else nearest_form(FAMILIES[wanted].signatures, evidence.tensors)
        found = ", ".join(map(shown, outputs[:_MOST_SHOWN]))
        wants = "one picture input" if form is None else f"tensors like {needs(form)}"
        raise ConfigError(f"family={wanted} needs {wants}; the model has {found[:200]}; set family=raw")
    if claim.family is None:
        raise ConfigError(claim.reason)
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

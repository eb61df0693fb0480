"""Recognises the family of a model.

The sources are, in this order: the setting `family`, metadata, tensor names, shapes. If no rule claims a model, or if
the claimed format is not decoded, the family is None. Then the reason says what the model may be (see `nearest`), and
the model returns raw tensors. To add a family, add it to `FAMILIES` and its rules to `_RULES`.

Rules of families from other packages come after edged's own rules. So installing a package does not change a model that
edged itself recognises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from edged import family_packages
from edged.errors import ConfigError, Unsupported
from edged.family_packages import Package
from edged.tensors import TensorSpec
from edged.vision import nearest
from edged.vision import settings as keys
from edged.vision.comparison import Tensors, nearest_form, shown
from edged.vision.detections import MOST_DETECTIONS
from edged.vision.families import embedding, text_lines
from edged.vision.families.ambiguous import ambiguous_shape
from edged.vision.families.anomaly import Anomalib, AnomalibV1
from edged.vision.families.centerface import CenterFace
from edged.vision.families.classification import Classification, UltralyticsClassification
from edged.vision.families.contract import Claim, ContentFamily, Evidence, Family, Reading, Rule, readable
from edged.vision.families.damo_yolo import DamoYolo
from edged.vision.families.dbnet import DbNet
from edged.vision.families.decoding import Thresholds
from edged.vision.families.depth import MetricDepth, RelativeDepth
from edged.vision.families.detr import RfDetr, RtDetr, UltralyticsRtDetr
from edged.vision.families.efficientdet import EfficientDet
from edged.vision.families.fastestdet import FastestDet
from edged.vision.families.huggingface import DeformableDetr, Detr, RtDetrTransformers
from edged.vision.families.mmdet import MmDet, RtmDet
from edged.vision.families.movenet import MoveNet
from edged.vision.families.nanodet import NanoDet, NanoDetPlus
from edged.vision.families.paddle import PicoDet, PpYoloEPlus
from edged.vision.families.prompted import GroundingDino, OwlV2, OwlVit
from edged.vision.families.scrfd import Scrfd
from edged.vision.families.segmentation import PaddleSeg, Segmentation
from edged.vision.families.sound import SOUND_FAMILIES, SoundEvidence, SoundFamily
from edged.vision.families.ssd import Ssd
from edged.vision.families.text_lines import Ctc, Parseq, PpOcrCls
from edged.vision.families.third_party import RULE_NAMES, ThirdParty
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
from edged.vision.sound import Sound

__all__ = [
    "ContentFamily",
    "Family",
    "Reading",
    "Recognition",
    "SoundFamily",
    "Thresholds",
    "open_family",
    "open_sound",
    "recognise",
]


RAW = "raw"  # the setting `family` of a model that serves raw tensors


class Recognition(msgspec.Struct, frozen=True):
    """How a model's pictures are prepared and its outputs decoded. Plain data, which the daemon sends to engine hosts.

    If `family` is None, only raw tensors are served. If `preprocess` is None, edged feeds no pictures; `picture` says
    why. `sound` is set if the model takes sound: hosts then get tensors, and the daemon decodes the outputs. `reason`
    says why the family was recognised, or why no family was, in a few lines.

    Two fields can be set only without a family. `between` are the families that accept the tensors and may be right,
    the most likely first. `kind` is the name of a kind of model that edged does not decode (see `kinds`).
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
    package: Package | None = None  # the other package that the family is from; None for a family of edged
    between: tuple[str, ...] = ()
    kind: str = ""
    sound: Sound | None = None
    gives_boxes: bool = False  # the family decodes detections, not a content

    @property
    def reads_pictures(self) -> bool:
        """Whether the model has a family that takes pictures."""
        return self.family is not None and self.sound is None

    @property
    def other_family(self) -> str:
        """A text that names the family and its package if the family is from another package, otherwise empty."""
        return f"family {self.family} of package {self.package}" if self.package is not None else ""

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
        OwlVit,
        OwlV2,
        GroundingDino,
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
        embedding.GenericEmbedding,
        embedding.ArcFace,
        embedding.SFace,
        embedding.OsNet,
        embedding.Clip,
        embedding.Siglip,
        embedding.DinoV2,
        Anomalib,
        AnomalibV1,
        Segmentation,
        PaddleSeg,
        RelativeDepth,
        MetricDepth,
        DbNet,
        Ctc,
        Parseq,
        PpOcrCls,
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
    Ctc.by_metadata,
    Ultralytics.by_metadata,
    # Names of inputs and outputs.
    TorchVision.by_names,
    RtDetr.by_names,
    RfDetr.by_names,
    OwlVit.by_names,
    GroundingDino.by_names,  # before Detr, which has the same outputs
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
    UltraFace.by_names,  # before Ssd, which has the same names
    Ssd.by_names,
    YuNet.by_names,
    Scrfd.by_names,
    CenterFace.by_names,
    RtmPose.by_names,
    Anomalib.by_names,
    embedding.by_names,
    Segmentation.by_names,
    PaddleSeg.by_names,
    RelativeDepth.by_names,
    DbNet.by_names,
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
    Ctc.by_shape,
    PpOcrCls.by_shape,
    ambiguous_shape,
    Classification.by_shape,
    Segmentation.by_shape,
    Ultralytics.by_shape,
    text_lines.by_height,
)


def recognise(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    metadata: Mapping[str, str],
    settings: Mapping[str, str],
    operators: Iterable[str] | None = None,
    heads: Mapping[str, str] | None = None,
    others: Sequence[ThirdParty] = (),
) -> Recognition:
    """Recognise a model by its tensors, metadata and settings (see `settings.KNOWN`). Raises ConfigError if a setting
    is invalid.

    `operators` are the names of the graph's operators, `heads` maps each output to the operator that computes it; both
    are None if unknown. `settings` override the settings in the metadata (`settings.METADATA_PREFIX`). Settings of
    other modules are ignored, and so is invalid metadata that is not a setting. `others` are families of other
    packages. Raises FamilyFailed if one of these families fails.
    """
    settings = {**keys.from_metadata(metadata), **settings}
    keys.check(settings)
    exported = read_metadata(metadata)
    if (heard := _claim_sound(SoundEvidence(inputs, outputs, settings))) is not None:
        return _of_sound(heard, settings, exported)
    evidence = evidence_of(inputs, outputs, exported, settings, operators, heads)
    claim = readable(_claim(evidence, inputs, outputs, settings, others), outputs)
    other = next((each for each in others if each.name == claim.family), None)
    known = FAMILIES.get(claim.family or "")
    family = known if other is None else other.kind
    filled, feed = (family.own_inputs, family.feed) if family is not None else ((), {})
    usual = exported.size or (family.open_size if family is not None else None)
    preprocess, why = preprocess_for(tuple(i for i in inputs if i.name not in filled), settings, usual, feed)
    if family is not None and preprocess is None:
        claim, family, other = Claim(None, f"looks like {claim.family}, but {why}"), None, None
    elif preprocess is not None and evidence is not None and evidence.size is None:
        why += f"; {preprocess.width} x {preprocess.height} pixels by default"
    names = _names(settings, exported, claim)
    thresholds, score_range = Thresholds(), (0.0, 1.0)
    if family is not None:
        thresholds, score_range = claim.thresholds or family.thresholds, family.score_range
    return Recognition(
        family=claim.family,
        reason=nearest.cut(f"{claim.reason}{exported.remark}"),
        preprocess=preprocess,
        picture=why,
        names=names,
        thresholds=_thresholds(settings, thresholds, score_range),
        input=evidence.picture.name if evidence is not None else "",
        reading=msgspec.structs.replace(claim.reading, classes=claim.classes or len(names)),
        is_set=family is not None and "family" in settings,
        package=None if other is None else other.package,
        between=claim.between,
        kind=claim.kind,
        gives_boxes=family is not None and issubclass(family, Family),
    )


def _claim_sound(evidence: SoundEvidence) -> Claim | None:
    """Return the claim of the first sound family that accepts the model, or None. If the setting `family` is set, only
    the named family is tried. Without this setting, return None for a model that takes pictures. Raises ConfigError if
    the named family takes sound and does not accept the model."""
    wanted = evidence.settings.get("family")
    if wanted is None:
        if find_picture(evidence.inputs)[0] is not None:
            return None
        claims = (family.by_rule(evidence) for family in SOUND_FAMILIES.values())
        return next((claim for claim in claims if claim is not None), None)
    family = SOUND_FAMILIES.get(wanted)
    if family is None:
        return None
    claim = family.claim(evidence, f"the setting family={wanted}")
    if claim is None:
        form = nearest_form(family.signatures, Tensors.of(evidence.inputs, evidence.outputs, None))
        raise ConfigError(f"setting family={wanted} does not fit: it needs tensors like {needs(form)}; set family=raw")
    if claim.family is None:
        raise ConfigError(claim.reason)
    return claim


def _of_sound(claim: Claim, settings: Mapping[str, str], exported: ExportMetadata) -> Recognition:
    """Return the recognition of a model that takes sound, from the claim of its family."""
    assert claim.family is not None
    assert claim.sound is not None
    names = _names(settings, exported, claim)
    return Recognition(
        family=claim.family,
        reason=nearest.cut(f"{claim.reason}{exported.remark}"),
        preprocess=None,
        picture=f"the model takes {claim.sound}",
        names=names,
        thresholds=_thresholds(settings, SOUND_FAMILIES[claim.family].thresholds, (0.0, 1.0)),
        reading=msgspec.structs.replace(claim.reading, classes=claim.classes or len(names)),
        is_set="family" in settings,
        sound=claim.sound,
    )


def is_decoded_here(recognition: Recognition) -> bool:
    """Whether the model has a family whose code this process may run. The daemon, for example, must not run code of
    other packages."""
    return recognition.family is not None and (recognition.package is None or family_packages.is_permitted())


def evidence_of(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    exported: ExportMetadata,
    settings: Mapping[str, str],
    operators: Iterable[str] | None = None,
    heads: Mapping[str, str] | None = None,
) -> Evidence | None:
    """Return the facts from which rules recognise a model; None if the model takes no picture. The arguments are as for
    `recognise`. Raises ConfigError if a setting contradicts the model."""
    picture, _ = find_picture(inputs)
    if picture is None:
        return None
    size = input_size(picture, settings, exported.size)
    used = None if operators is None else frozenset(operators)
    return Evidence(inputs, outputs, exported, picture, size, settings, used, heads)


def open_family(recognition: Recognition) -> Family | ContentFamily:
    """Return the decoder of a recognised model. Raises Unsupported if the model has no family that takes pictures, and
    the errors of `ThirdParty.load` if the family is from another package."""
    family, package, preprocess = recognition.family, recognition.package, recognition.preprocess
    if family is None or preprocess is None or (package is None and family not in FAMILIES):
        raise Unsupported(f"no family decodes this model: {recognition.reason}")
    about = preprocess, recognition.names, recognition.reading
    return FAMILIES[family](*about) if package is None else ThirdParty.load(family, package).open(*about)


def open_sound(recognition: Recognition) -> SoundFamily:
    """Return the decoder of a recognised model that takes sound. Raises Unsupported if the model takes no sound."""
    if recognition.sound is None or recognition.family not in SOUND_FAMILIES:
        raise Unsupported(f"this model takes no sound: {recognition.reason}")
    return SOUND_FAMILIES[recognition.family](recognition.sound, recognition.names, recognition.reading)


def _claim(
    evidence: Evidence | None,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    settings: Mapping[str, str],
    others: Sequence[ThirdParty],
) -> Claim:
    wanted = settings.get("family")
    if wanted == RAW:
        return Claim(None, "the setting family=raw")
    if wanted is not None:
        return _claim_by_setting(wanted, evidence, Tensors.of(inputs, outputs, None), others)
    claims = (rule(evidence) for rule in _RULES) if evidence is not None else iter(())
    claimed = next((claim for claim in claims if claim is not None), None)
    if claimed is not None and claimed.family is not None:
        return claimed
    if evidence is not None and (found := _claim_by_others(evidence, others)) is not None:
        return found
    if evidence is None:
        return nearest.explain_without_picture(Tensors.of(inputs, outputs, None))
    if claimed is None:
        return nearest.explain(evidence, FAMILIES)
    return nearest.advise(claimed, evidence, FAMILIES)


def _claim_by_setting(wanted: str, evidence: Evidence | None, tensors: Tensors, others: Sequence[ThirdParty]) -> Claim:
    """Return the claim of the family `wanted`, which the setting names. Raises ConfigError if no family has this name,
    or if the family does not accept the model."""
    other = next((each for each in others if each.name == wanted), None)
    family = FAMILIES.get(wanted) if other is None else other.kind
    if family is None:
        known = (*FAMILIES, *SOUND_FAMILIES, RAW)
        raise ConfigError(f"setting family={wanted[:60]} names an unknown family; {keys.nearest(wanted[:60], known)}")
    claim = None if evidence is None else (other or family).claim(evidence, f"the setting family={wanted}")
    if claim is None:
        if evidence is None:
            wants, kind, specs = "one picture input", "inputs", tensors.inputs
        else:
            wants, kind, specs = _needs(family, evidence), "outputs", tensors.outputs
        found = ", ".join(map(shown, specs[:_MOST_SHOWN]))[:200]
        raise ConfigError(f"setting family={wanted} needs {wants}; the model has {kind} {found}; set family=raw")
    if claim.family is None:
        raise ConfigError(claim.reason)
    return claim


def _needs(family: type[Family] | type[ContentFamily], evidence: Evidence) -> str:
    """Describe the tensors that a family needs, in the form that is nearest to the model's tensors."""
    return f"tensors like {needs(nearest_form(family.signatures, evidence.tensors))}"


def _claim_by_others(evidence: Evidence, others: Sequence[ThirdParty]) -> Claim | None:
    """Return the first claim by a family from another package, or None."""
    claims = (other.by_rule(rule, evidence) for rule in RULE_NAMES for other in others)
    return next((claim for claim in claims if claim is not None and claim.family is not None), None)


def _names(settings: Mapping[str, str], exported: ExportMetadata, claim: Claim) -> tuple[str, ...]:
    given = keys.words(settings, "names")
    if given is None:
        # If the number of names does not match the tensor, boxes get class numbers, because the names would be wrong.
        fits = claim.classes is None or len(exported.names) == claim.classes
        return exported.names if fits and exported.names else claim.names
    if claim.background and claim.classes is not None and len(given) == claim.classes - claim.background:
        return (*["background"] * claim.background, *given)
    if claim.classes is not None and len(given) != claim.classes:
        raise ConfigError(f"setting 'names' lists {len(given)} classes, but the model has {claim.classes}")
    return given


def _thresholds(settings: Mapping[str, str], base: Thresholds, score_range: tuple[float, float]) -> Thresholds:
    given = {
        "score": keys.number(settings, keys.THRESHOLD, *score_range),
        "iou": keys.number(settings, "thresholds.iou", 0, 1),
        "max_detections": keys.integer(settings, "thresholds.max_detections", 1, MOST_DETECTIONS),
        "class_agnostic": keys.boolean(settings, "thresholds.class_agnostic"),
    }
    return msgspec.structs.replace(base, **{key: value for key, value in given.items() if value is not None})

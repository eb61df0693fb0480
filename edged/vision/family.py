"""Which detector family a model belongs to, and why.

Order: the setting `family`, then metadata, then tensor names, then row arithmetic. Nothing is guessed in
silence: a model that no rule claims, or that is known but not decoded, has family None, a reason that says
so, and serves raw tensors. A new family adds its rules to `_RULES` and its makers to `_FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from edged.errors import ConfigError, Unsupported
from edged.tensors import TensorSpec
from edged.vision import settings as keys
from edged.vision.families import lookalikes, ultralytics
from edged.vision.families.contract import Claim, Evidence, Family, Rule, Thresholds
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

__all__ = ["Family", "Recognition", "Thresholds", "open_family", "raw_preprocess", "recognise"]


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
    output: str = ""


class _Maker(msgspec.Struct, frozen=True):
    """How a family is claimed by setting, fed and opened."""

    by_setting: Callable[[Evidence], Claim]
    feed: Callable[[Preprocess], Preprocess]
    open: Callable[[Preprocess, tuple[str, ...], str], Family]


_FAMILIES: dict[str, _Maker] = {
    ultralytics.NAME: _Maker(ultralytics.by_setting, ultralytics.feed, ultralytics.Ultralytics),
}

# The first rule with something to say wins.
_RULES: tuple[Rule, ...] = (
    ultralytics.by_metadata,
    lookalikes.by_names,
    lookalikes.by_shape,
    ultralytics.by_shape,
)


def recognise(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    metadata: Mapping[str, str],
    settings: Mapping[str, str],
) -> Recognition:
    """Look at a model's tensors, metadata and settings (see `settings.KNOWN`); ConfigError for bad settings.

    Metadata never raises. Settings of other rooms may be among `settings`; they are not looked at.
    """
    keys.check(settings)
    said = read_metadata(metadata)
    picture, _ = find_picture(inputs)
    size = input_size(picture, settings, said.size) if picture else None
    claim = _claim(Evidence(inputs, outputs, said, picture, size), settings)
    preprocess, why = raw_preprocess(inputs, settings, said.size)
    if claim.family is not None and preprocess is None:
        claim = Claim(None, f"looks like {claim.family}, but {why}")
    if claim.family is not None and picture is not None and size is not None:
        preprocess = override(_FAMILIES[claim.family].feed(plain(picture, size)), settings)
        why = describe(picture, preprocess)
    return Recognition(
        family=claim.family,
        reason=claim.reason + said.remark,
        preprocess=preprocess,
        picture=why,
        names=_names(settings, said, claim),
        thresholds=_thresholds(settings),
        input=picture.name if picture else "",
        output=claim.output,
    )


def open_family(recognition: Recognition) -> Family:
    """The decoder of a recognised model; Unsupported where it has none."""
    if recognition.family not in _FAMILIES or recognition.preprocess is None:
        raise Unsupported(f"no detections are decoded for this model: {recognition.reason}")
    maker = _FAMILIES[recognition.family]
    return maker.open(recognition.preprocess, recognition.names, recognition.output)


def _claim(evidence: Evidence, settings: Mapping[str, str]) -> Claim:
    wanted = settings.get("family")
    if wanted == "raw":
        return Claim(None, "the setting family=raw")
    if wanted is not None:
        if wanted not in _FAMILIES:
            raise ConfigError(f"family={wanted} is not decoded; {keys.nearest(wanted, (*_FAMILIES, 'raw'))}")
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


def _names(settings: Mapping[str, str], said: ExportMetadata, claim: Claim) -> tuple[str, ...]:
    given = keys.words(settings, "names")
    if given is None:
        # Names that do not fit the tensor would label every box wrongly; numbers are honest.
        fits = claim.classes is None or len(said.names) == claim.classes
        return said.names if fits else ()
    if claim.classes is not None and len(given) != claim.classes:
        raise ConfigError(f"names lists {len(given)} classes, the model has {claim.classes}")
    return given


def _thresholds(settings: Mapping[str, str]) -> Thresholds:
    base = Thresholds()
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

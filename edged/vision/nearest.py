"""Describes a model that no rule recognises: its kind, or the families whose signatures are nearest, and the values of
the setting `family` that may be right.

Only families that accept the model are named as values of the setting. Families whose signatures have more in common
with the model, such as names of tensors, come first (see `edged.vision.comparison`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edged.errors import ConfigError, either
from edged.vision.comparison import Comparison, Tensors, best
from edged.vision.families.contract import Claim, Evidence, Opened, readable, undecided
from edged.vision.kinds import identify

TRY_ALL = "edged inspect FILE --draw PICTURE --try-all"
# Settings that are tried if a family needs one of them. The anchors are those of YOLOv5's and YOLOv7's own models, in
# models/yolov5s.yaml of ultralytics/yolov5 and cfg/deploy/yolov7.yaml of WongKinYiu/yolov7.
VARIANTS: tuple[Mapping[str, str], ...] = (
    {"decode.boxes": "grid"},
    {"decode.boxes": "pixels"},
    {"decode.boxes": "corners"},
    {"decode.boxes": "offsets"},
    {"decode.scores": "best"},
    {"decode.scores": "each"},
    {"decode.anchors": "10,13,16,30,33,23; 30,61,62,45,59,119; 116,90,156,198,373,326"},
    {"decode.anchors": "12,16,19,36,40,28; 36,75,76,55,72,146; 142,110,192,243,459,401"},
)

_UNKNOWN = "metadata, names and shapes match nothing that edged knows; raw tensors are served"
_LONGEST_REASON = 1000
_MOST_GROUPS = 2  # the most groups of families that a reason names
_MOST_DIFFERENCES = 3
# The fewest points with which a family is named as a value of the setting. One map or table in common is not enough,
# because many kinds of models have such a tensor.
_ENOUGH = 5

Families = Mapping[str, type[Opened]]


def explain(evidence: Evidence, families: Families) -> Claim:
    """Return a claim without a family for a model that no rule claims. Its reason says what the model looks like."""
    tensors = evidence.tensors
    compared = {name: best(family.signatures, tensors) for name, family in families.items()}
    near = sorted((name for name in compared if compared[name].is_near), key=lambda name: -compared[name].score)
    fitting = [name for name in near if compared[name].is_readable and compared[name].points >= _ENOUGH]
    found = identify(tensors)
    if found is not None and all(found[1].score >= compared[name].score for name in near):
        # A family that differs from the model is less likely than the kind, which does not differ.
        fitting = [name for name in fitting if not compared[name].cost]
        claim = msgspec.structs.replace(undecided(f"looks like {found[0].text}", *fitting), kind=found[0].name)
    elif near:
        claim = undecided(_likeness(near, compared), *fitting)
    else:
        page = "if docs/families.md lists this kind of model, set 'family' to the name given there"
        return Claim(None, f"{_UNKNOWN}; {page}")
    return _with_advice(claim, evidence, families)


def explain_without_picture(tensors: Tensors) -> Claim:
    """Return a claim without a family for a model that takes no picture. Its reason says what the model looks like."""
    found = identify(tensors)
    if found is None:
        return Claim(None, _UNKNOWN)
    return Claim(None, f"looks like {found[0].text}; raw tensors are served", kind=found[0].name)


def advise(claim: Claim, evidence: Evidence, families: Families) -> Claim:
    """Return the claim of a rule, with advice if the claim is undecided. With advice, `between` keeps only the families
    that accept the model, the most likely first, and the reason also names the settings that select these families. If
    a kind is nearer to the model than all these families, the claim also has this kind."""
    if not claim.between:
        return claim
    accepting = [families[name] for name in claim.between if accepts(families[name], evidence)]
    tensors, found = evidence.tensors, identify(evidence.tensors)
    if found is not None and all(found[1].score > best(each.signatures, tensors).score for each in accepting):
        reason = f"{claim.reason}; looks like {found[0].text}"
        claim = msgspec.structs.replace(claim, reason=reason, kind=found[0].name)
    return _with_advice(claim, evidence, families)


def accepts(family: type[Opened], evidence: Evidence) -> bool:
    """Whether the setting `family` could select a family. This needs three things: `claim` accepts the tensors, perhaps
    with a further setting; their datatypes are decoded; and the family fills all inputs besides the picture."""
    try:
        claim = family.claim(evidence, "")
    except ConfigError:  # a setting for another family
        return False
    if claim is None or (claim.family is not None and readable(claim, evidence.outputs).family is None):
        return False
    return [spec.name for spec in evidence.inputs if spec.name not in family.own_inputs] == [evidence.picture.name]


def cut(reason: str) -> str:
    """Shorten a reason that is too long. Leave out its middle, because the advice is at the end."""
    half = _LONGEST_REASON // 2
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[: half - 5]} ... {reason[-half:]}"


def _with_advice(claim: Claim, evidence: Evidence, families: Families) -> Claim:
    tensors = evidence.tensors
    accepting = [name for name in claim.between if accepts(families[name], evidence)]
    accepting.sort(key=lambda name: -best(families[name].signatures, tensors).score)
    if accepting:
        choices = ", ".join(f"family={name}" for name in accepting)
        is_tried = any(_is_tried(families[name], evidence) for name in accepting)
        advice = f": set {choices} or family=raw" + f"; {TRY_ALL} shows what each finds" * is_tried
    else:
        advice = "; raw tensors are served"
    return msgspec.structs.replace(claim, reason=claim.reason + advice, between=tuple(accepting))


def _is_tried(family: type[Opened], evidence: Evidence) -> bool:
    """Whether the command `TRY_ALL` tries a family: the family needs no further setting, or one of `VARIANTS` has the
    settings that it needs."""
    if evidence.size is None and family.open_size is None:
        return False  # the size of the input must be set first
    for variant in ({}, *VARIANTS):
        try:
            claim = family.claim(msgspec.structs.replace(evidence, settings={**evidence.settings, **variant}), "")
        except ConfigError:
            continue
        if claim is not None and claim.family is not None:
            return True
    return False


def _likeness(near: list[str], compared: Mapping[str, Comparison]) -> str:
    """Return a text that names the nearest families and their differences from the model. Families with the same
    differences are named together. If any family has no difference, only the families without differences are named."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in near:
        groups.setdefault(compared[name].differences, []).append(name)
    if () in groups:
        return f"has the tensors of {either(groups[()])}"
    texts = []
    for differences, names in list(groups.items())[:_MOST_GROUPS]:
        but = "; ".join(differences[:_MOST_DIFFERENCES])
        texts.append(f"looks like {either(names)}, but {but}")
    return ", or ".join(texts)

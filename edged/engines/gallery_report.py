"""Reports on galleries (names for the vectors of embedding models), with the reason if a gallery is not used."""

from __future__ import annotations

from collections.abc import Mapping

from edged.api_types import GalleryInfo
from edged.engines.plan import PlannedModel
from edged.serving.galleries import Galleries
from edged.vision.gallery import Gallery, space_of


def galleries(kept: Galleries, models: Mapping[str, PlannedModel]) -> list[GalleryInfo]:
    """Report all galleries sorted by model. Galleries with a damaged file are reported too."""
    damaged = [GalleryInfo(model, {}, 0, _unusable(model, why)) for model, why in kept.damaged().items()]
    found = [gallery(model, each, models.get(model)) for model, each in kept.all().items()]
    return sorted(found + damaged, key=lambda info: info.model)


def gallery(model: str, found: Gallery, planned: PlannedModel | None) -> GalleryInfo:
    """Report the gallery of a model. `planned` is None if the daemon does not have the model."""
    return GalleryInfo(model, found.counts(), len(found.vectors), _problem(model, found, planned))


def notes(kept: Galleries, planned: PlannedModel) -> tuple[str, ...]:
    """Return a line for `edged models show` if a model has a gallery that is not used."""
    name = planned.entry.name
    if name in kept.damaged():
        return (f"the model's gallery is not used: {_unusable(name, kept.damaged()[name])}",)
    found = kept.all().get(name)
    problem = "" if found is None else _problem(name, found, planned)
    return (f"the model's gallery is not used: {problem}",) if problem else ()


def _unusable(model: str, why: str) -> str:
    return f"the file cannot be used: {why}; {_add_again(model)}"


def _add_again(model: str) -> str:
    return f"add its pictures again: edged gallery add {model} NAME PICTURE"


def _problem(model: str, found: Gallery, planned: PlannedModel | None) -> str:
    if planned is None:
        return "the daemon has no model of this name"
    answering = planned.answering
    if answering is None or found.space == space_of(answering.digest, answering.recognition):
        return ""
    what = "the gallery was made with another version of the model, or with other preprocessing settings"
    return f"{what}; {_add_again(model)}"

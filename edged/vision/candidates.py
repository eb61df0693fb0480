"""Finds all families that accept a model's tensors, and the settings that each family needs.

Some formats have the same shapes, and the file does not say which format it has. A person sees which format is right if
the boxes that each family finds are drawn on a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from edged.errors import ConfigError
from edged.tensors import TensorSpec
from edged.vision.comparison import best
from edged.vision.family import FAMILIES, Recognition, evidence_of, recognise
from edged.vision.metadata import read_metadata
from edged.vision.nearest import VARIANTS, accepts

_MOST = 48  # candidates; all families together have fewer forms


class Candidate(msgspec.Struct, frozen=True):
    """A family that accepts the model. `settings` are the settings that select this family, including `family`."""

    settings: dict[str, str]
    recognition: Recognition


def candidates(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    metadata: Mapping[str, str],
    settings: Mapping[str, str],
    operators: Iterable[str] | None = None,
    heads: Mapping[str, str] | None = None,
) -> tuple[Candidate, ...]:
    """Return the families that accept a model: first the families that `recognise` names, then the others. In both
    groups the family with the nearest signature comes first.

    The arguments are those of `recognise`, but the setting `family` is ignored. A family is left out if another setting
    contradicts the family, for example if `names` has a wrong number of names.
    """
    given = {key: value for key, value in settings.items() if key != "family"}
    evidence = evidence_of(inputs, outputs, read_metadata(metadata), given, operators, heads)
    if evidence is None:
        return ()
    names = [name for name, family in FAMILIES.items() if accepts(family, evidence)]
    tensors, plain = evidence.tensors, recognise(inputs, outputs, metadata, given, operators, heads)
    first = (plain.family, *plain.between)
    names.sort(key=lambda name: (name not in first, -best(FAMILIES[name].signatures, tensors).score))

    def recognised(chosen: Mapping[str, str]) -> Candidate | None:
        try:
            found = recognise(inputs, outputs, metadata, {**given, **chosen}, operators, heads)
        except ConfigError:
            return None
        return Candidate(dict(chosen), found) if found.family is not None else None

    def forms(name: str) -> Iterator[Candidate]:
        alone = recognised({"family": name})
        choices = (recognised({"family": name, **variant}) for variant in VARIANTS) if alone is None else (alone,)
        yield from (each for each in choices if each is not None)

    return tuple(each for name in names for each in forms(name))[:_MOST]

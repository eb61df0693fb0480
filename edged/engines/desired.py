"""Which engines the box should have: its facts, its models and their settings decide, and nothing else does. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edged.backends.contract import Recipe
from edged.device.fingerprint import Fingerprint
from edged.engines.policy import candidates, lanes
from edged.engines.recipes import complete
from edged.models.model import Model
from edged.store.key import EngineKey
from edged.verification.standard import Standard


class DesiredEngine(msgspec.Struct, frozen=True):
    """One engine that a model should have. `standard` is the digest of what it is held to, `lane` names those that are
    made one after the other, `problem` says why it cannot be made; empty when it can."""

    key: EngineKey
    recipe: Recipe
    standard: str
    lane: str
    problem: str = ""


def desired(fingerprint: Fingerprint, models: Mapping[str, Model]) -> dict[str, tuple[DesiredEngine, ...]]:
    """For every model the engines it should have on a device, in order of preference, the reference first.

    A model's settings come with it; equal models have equal engines.
    """
    return {name: _of_model(fingerprint, model) for name, model in models.items()}


def _of_model(fingerprint: Fingerprint, model: Model) -> tuple[DesiredEngine, ...]:
    lane = lanes(fingerprint.facts)
    engines = []
    for candidate in candidates(
        model.entry.settings, fingerprint.facts, is_decoded=model.recognition.family is not None
    ):
        recipe, problem = complete(candidate, model, fingerprint.facts)
        key = EngineKey.of(model.digest, recipe, fingerprint)
        standard = Standard.of(model, recipe.precision).digest
        engines.append(DesiredEngine(key, recipe, standard, lane.get(recipe.device, recipe.device), problem))
    return tuple(engines)

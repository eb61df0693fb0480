"""Which engines the box should have: its facts, its models and their settings decide, and nothing else does. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edged.backend.contract import Recipe
from edged.build.standard import Standard
from edged.control.policy import candidates
from edged.device.fingerprint import Fingerprint
from edged.model.model import Model
from edged.store.key import EngineKey


class DesiredEngine(msgspec.Struct, frozen=True):
    """One engine that a model should have. `standard` is the digest of what it is held to."""

    key: EngineKey
    recipe: Recipe
    standard: str


def desired(fingerprint: Fingerprint, models: Mapping[str, Model]) -> dict[str, tuple[DesiredEngine, ...]]:
    """For every model the engines it should have on a device, in order of preference, the reference first.

    A model's settings come with it; equal models have equal engines.
    """
    return {name: _of_model(fingerprint, model) for name, model in models.items()}


def _of_model(fingerprint: Fingerprint, model: Model) -> tuple[DesiredEngine, ...]:
    return tuple(
        DesiredEngine(
            EngineKey.of(model.digest, recipe, fingerprint), recipe, Standard.of(model, recipe.precision).digest
        )
        for recipe in candidates(model.entry.settings, fingerprint.facts)
    )

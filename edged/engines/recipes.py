"""Completes recipes with what depends on the model: its shapes, its settings, its pictures. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edged.backends.contract import Recipe
from edged.backends.profile import PREFIX, Profile
from edged.backends.trt import options as trt_options
from edged.errors import ConfigError, Unsuitable
from edged.models.model import Model
from edged.verification import calibration

# Backends that build for a range of shapes and take options of TensorRT's.
_TENSORRT = frozenset({"tensorrt", "tensorrt_rtx"})
# One that takes any shape, and keeps to a range where somebody asks for one: what is true of it is tested with it.
_NULL = "null"
RANGED = _TENSORRT | {_NULL}


def complete(recipe: Recipe, model: Model, facts: Mapping[str, str]) -> tuple[Recipe, str]:
    """The recipe of a model's engine on a box with those facts, and why it cannot be made; empty when it can."""
    try:
        return _complete(recipe, model, facts), ""
    except (ConfigError, Unsuitable) as error:
        return recipe, str(error)


def _complete(recipe: Recipe, model: Model, facts: Mapping[str, str]) -> Recipe:
    if recipe.precision == "int8":
        digest = calibration.digest(model.recognition, model.samples, model.content)
        if not digest:
            raise Unsuitable(f"int8 is calibrated on pictures, and this model takes none: {model.recognition.picture}")
        recipe = msgspec.structs.replace(recipe, calibration=digest)
    if recipe.backend in _TENSORRT:
        settings = model.entry.settings
        options = trt_options.of(settings, _memory_mb(recipe, facts))
        recipe = msgspec.structs.replace(
            recipe, optimization=options.optimization, options=str(options), profile=str(model.profile)
        )
    elif recipe.backend == _NULL:
        recipe = msgspec.structs.replace(recipe, profile=str(_asked_for(model)))
    return recipe


def _asked_for(model: Model) -> Profile:
    """The range that settings or traffic give a model; empty where they give none."""
    is_told = any(name.startswith(PREFIX) for name in model.entry.settings)
    return model.profile if model.learnt.ranges or is_told else Profile()


def _memory_mb(recipe: Recipe, facts: Mapping[str, str]) -> int | None:
    """The GPU's own, in MiB. A limit that somebody set on this process is no part of a key."""
    _, _, index = recipe.device.partition(":")
    text = facts.get(f"gpu.{index or 0}.memory_mb", "")
    return int(text) if text.isdecimal() else None

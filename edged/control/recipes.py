"""Completes recipes with what depends on the model: its shapes, its settings, its pictures. Pure."""

from __future__ import annotations

import msgspec

from edged.backend.contract import Recipe
from edged.backend.profile import Profile
from edged.backend.trt import options as trt_options
from edged.build import calibration
from edged.device.devices import Device
from edged.errors import ConfigError, Unsuitable
from edged.model.model import Model

# Backends that build for a range of shapes and take options of TensorRT's.
_TENSORRT = frozenset({"tensorrt", "tensorrt_rtx"})


def complete(recipe: Recipe, model: Model, device: Device | None) -> tuple[Recipe, str]:
    """The recipe of a model's engine for a device, and why it cannot be made; empty when it can."""
    try:
        return _complete(recipe, model, device), ""
    except (ConfigError, Unsuitable) as error:
        return recipe, str(error)


def _complete(recipe: Recipe, model: Model, device: Device | None) -> Recipe:
    if recipe.precision == "int8":
        digest = calibration.digest(model.recognition, model.samples)
        if not digest:
            raise Unsuitable(f"int8 is calibrated on pictures, and this model takes none: {model.recognition.picture}")
        recipe = msgspec.structs.replace(recipe, calibration=digest)
    if recipe.backend in _TENSORRT:
        settings = model.entry.settings
        options = trt_options.of(settings, device.memory_mb if device else None)
        profile = Profile.of(model.inspection.signature, settings, model.picture)
        recipe = msgspec.structs.replace(
            recipe, optimization=options.optimization, options=str(options), profile=str(profile)
        )
    return recipe

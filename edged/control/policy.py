"""Which engines a model should have on a device. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from edged.backend import registry
from edged.backend.contract import Recipe
from edged.build.builder import REFERENCE
from edged.model import settings as model_settings


def candidates(settings: Mapping[str, str], facts: Mapping[str, str]) -> tuple[Recipe, ...]:
    """Every engine worth having, the reference first: it answers before anything is built.

    The setting `backends` narrows the choice, also to backends that are never chosen by themselves (`null`); the
    reference stays, since what is verified is verified against it.
    """
    threads = model_settings.threads(settings)
    wanted = model_settings.backends(settings) or registry.installed(facts)
    reference = Recipe(REFERENCE.backend, optimization=REFERENCE.optimization, threads=threads)
    return (reference, *(Recipe(backend, threads=threads) for backend in wanted))

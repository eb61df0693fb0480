"""Which engines a model should have on a device. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from edged.backend import registry
from edged.backend.contract import Recipe
from edged.build.builder import REFERENCE
from edged.model import settings as model_settings

# What a CPU must be able to do for a precision below fp32 to be worth a try, by backend. Without it the runtime would
# emulate it or silently go on in fp32.
_NATIVE: dict[str, dict[str, frozenset[str]]] = {
    "openvino": {
        "bf16": frozenset({"avx512_bf16", "amx_bf16", "svebf16"}),
        "fp16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
    },
}


def candidates(settings: Mapping[str, str], facts: Mapping[str, str]) -> tuple[Recipe, ...]:
    """Every engine worth having, the reference first: it answers before anything is built.

    Backends x precisions x threads. The setting `backends` narrows the choice, also to backends that are never chosen
    by themselves (`null`); `precisions` narrows or widens it within what the backend and the processor can do;
    `threads` lists the numbers to try. The reference stays, since what is verified is verified against it.
    """
    counts = model_settings.threads(settings)
    wanted = model_settings.backends(settings) or registry.installed(facts)
    reference = Recipe(REFERENCE.backend, optimization=REFERENCE.optimization, threads=counts[0])
    others = (
        Recipe(backend, precision=precision, threads=count)
        for backend in wanted
        for precision in precisions(backend, settings, facts)
        for count in counts
    )
    return tuple(dict.fromkeys((reference, *others)))


def precisions(backend: str, settings: Mapping[str, str], facts: Mapping[str, str]) -> tuple[str, ...]:
    """The precisions to try with a backend: those that the settings name, otherwise fp32 and what the processor does
    natively; never one that the backend does not know."""
    features = frozenset(facts.get("cpu.features", "").split())
    known = _NATIVE.get(backend, {})
    chosen = model_settings.precisions(settings)
    if chosen is not None:
        return tuple(precision for precision in chosen if precision == "fp32" or precision in known)
    return ("fp32", *(precision for precision, needed in known.items() if features & needed))

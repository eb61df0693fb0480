"""Decides which engines the box should have, from its facts, its models and their settings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from edged.backends import registry
from edged.backends.contract import INT8_ASYMMETRIC, REFERENCE, Recipe
from edged.backends.profile import PREFIX, Profile
from edged.backends.trt import options as trt_options
from edged.device import fatbin
from edged.device.fingerprint import Device, Fingerprint, devices
from edged.errors import ConfigError, Unsuitable
from edged.models import settings as model_settings
from edged.models.model import Model
from edged.models.settings import PRECISIONS
from edged.store.key import EngineKey
from edged.verification import user_samples
from edged.verification.standard import Standard

# Decides from the device and the CPU's instructions whether a precision is tried if no setting names precisions.
_Suits: TypeAlias = Callable[[Device, frozenset[str]], bool]


def _with_any(*instructions: str) -> _Suits:
    return lambda _, known: not known.isdisjoint(instructions)


def _from(major: int, minor: int) -> _Suits:
    return lambda device, _: (_capability(device) or (0, 0)) >= (major, minor)


def _by_itself(device: Device, known: frozenset[str]) -> bool:
    return True


def _on_request(device: Device, known: frozenset[str]) -> bool:
    return False


# The precisions that a backend can build for a kind of device. If builds take long, the most promising precision is
# first. The hardware is checked, because a runtime emulates a precision that the hardware lacks, or silently uses fp32.
# int8 must be requested: its accuracy depends on the calibration pictures.
_CUDA: dict[str, _Suits] = {"fp16": _from(5, 3), "tf32": _from(8, 0), "fp32": _by_itself, "int8": _on_request}
_PRECISIONS: dict[tuple[str, str], dict[str, _Suits]] = {
    ("null", "cpu"): {"fp32": _by_itself},
    ("onnxruntime", "cpu"): {"fp32": _by_itself, "fp16": _on_request, "int8": _on_request},
    ("onnxruntime", "cuda"): _CUDA,
    ("openvino", "cpu"): {
        "fp32": _by_itself,
        "bf16": _with_any("avx512_bf16", "amx_bf16", "svebf16"),
        "fp16": _with_any("avx512_fp16", "amx_fp16", "asimdhp"),
        "int8": _on_request,
    },
    ("openvino", "intel-gpu"): {"fp16": _by_itself, "fp32": _by_itself, "int8": _on_request},
    ("openvino", "intel-npu"): {"fp16": _by_itself, "int8": _on_request},  # the NPU has no wider type
    ("tensorrt", "cuda"): _CUDA,
    ("tensorrt_rtx", "cuda"): _CUDA,
}


def reference_recipe(settings: Mapping[str, str]) -> Recipe:
    """Return the recipe of a model's reference, which verification and timing compare with the model's engines."""
    return msgspec.structs.replace(REFERENCE, threads=model_settings.threads(settings)[0])


def candidates(settings: Mapping[str, str], facts: Mapping[str, str], *, is_decoded: bool = True) -> tuple[Recipe, ...]:
    """Return the recipes of all engines to make: devices x backends x precisions x threads.

    The reference is always the first, because it answers before an engine is built, and because engines are verified
    against the reference. The setting `backends` selects backends, even a backend that is never chosen automatically
    (`null`). `precisions` selects precisions that the backend supports on the device. `threads` lists the thread counts
    to try on the CPU. If edged does not decode the outputs (`is_decoded` is false), the effect of a lower precision is
    unknown. Then lower precisions are tried only if the settings name them.
    """
    counts = model_settings.threads(settings)
    wanted = model_settings.backends(settings) or registry.usable(facts)
    reference = reference_recipe(settings)
    others = [
        Recipe(backend, device.name, precision, threads=count, options=option)
        for device in devices(Fingerprint(dict(facts)))
        for backend in wanted
        for precision in precisions(backend, device, settings, facts)
        if is_decoded or precision == REFERENCE.precision or PRECISIONS in settings
        for option in _options(backend, device, precision)
        for count in (counts if device.kind == "cpu" else (0,))
    ]
    # A lower precision serves only if it is faster than every exact (fp32) engine. On a CPU, where a build takes
    # seconds, the exact engines are made and timed first, so that a lower precision does not serve before.
    others.sort(key=lambda recipe: recipe.device == "cpu" and recipe.precision != REFERENCE.precision)
    return tuple(dict.fromkeys((reference, *others)))


def _options(backend: str, device: Device, precision: str) -> tuple[str, ...]:
    """Return the options of the recipes to try. INT8_ASYMMETRIC is tried only for int8 with OpenVINO on a CPU. It needs
    int8 kernels for zero points, and for depthwise convolutions with a scale for each channel of the input. No other
    runtime has such kernels."""
    has_kernels = (backend, device.kind, precision) == ("openvino", "cpu", "int8")
    return ("", INT8_ASYMMETRIC) if has_kernels else ("",)


def precisions(backend: str, device: Device, settings: Mapping[str, str], facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the precisions to try with a backend on a device: the precisions that the setting `precisions` names and
    the backend supports. Without the setting, return the precisions that suit the hardware. Empty if the backend cannot
    use the device.

    fp32 is tried even if the setting does not name it. A lower precision serves only if it is faster than fp32, and
    fp32 serves if the lower precision is rejected.
    """
    known = _PRECISIONS.get((backend, device.kind), {})
    if not _is_usable(backend, device, facts):
        return ()
    chosen = model_settings.precisions(settings)
    if chosen is not None:
        exact = () if REFERENCE.precision in chosen else (REFERENCE.precision,)
        return tuple(precision for precision in (*exact, *chosen) if precision in known)
    instructions = frozenset(facts.get("cpu.features", "").split())
    return tuple(precision for precision, suits in known.items() if suits(device, instructions))


def lanes(facts: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping from each device to its lane. Engines of one lane are made one after the other.

    Devices that use the system's memory share a lane, because two parallel builds may exhaust a small box.
    """
    return {d.name: "cpu" if d.is_integrated else d.name for d in devices(Fingerprint(dict(facts)))}


def _is_usable(backend: str, device: Device, facts: Mapping[str, str]) -> bool:
    if device.kind != "cuda":
        return True
    # Without a compute capability, a key cannot name the GPU for which the engine is built.
    if _capability(device) is None or device.compute_capability is None:
        return False
    if backend != "onnxruntime":
        return True
    code = facts.get("runtime.onnxruntime_gpu_code")  # the package's kernels are compiled ahead for certain GPUs
    is_compiled_for = code is None or fatbin.runs_on(code, device.compute_capability)
    return "runtime.onnxruntime_gpu" in facts and is_compiled_for  # only the package onnxruntime-gpu supports CUDA


def _capability(device: Device) -> tuple[int, int] | None:
    major, _, minor = (device.compute_capability or "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


# The backend for tests of shape ranges. Without a range it accepts any shape.
_NULL = "null"
# Backends that build engines for a range of shapes.
RANGED = registry.TIMING_KERNELS | {_NULL}


def complete(recipe: Recipe, model: Model, facts: Mapping[str, str]) -> tuple[Recipe, str]:
    """Return the recipe with the parts that depend on the model and the box: calibration, options and shape range.
    Return also why no engine can be made from this recipe (empty if an engine can be made)."""
    try:
        return _complete(recipe, model, facts), ""
    except (ConfigError, Unsuitable) as error:
        return recipe, str(error)


def _complete(recipe: Recipe, model: Model, facts: Mapping[str, str]) -> Recipe:
    if recipe.precision == "int8":
        collection = model.collected.id if model.collected is not None else ""
        digest = user_samples.calibration_digest(model.recognition, model.samples, model.content, collection)
        if not digest:
            raise Unsuitable(f"int8 is calibrated on pictures, and this model takes none: {model.recognition.picture}")
        recipe = msgspec.structs.replace(recipe, calibration=digest)
    if recipe.backend in registry.TIMING_KERNELS:
        settings = model.entry.settings
        options = trt_options.of(settings, _memory_mb(recipe, facts))
        recipe = msgspec.structs.replace(
            recipe, optimization=options.optimization, options=str(options), profile=str(model.profile)
        )
    elif recipe.backend == _NULL:
        recipe = msgspec.structs.replace(recipe, profile=str(_asked_for(model)))
    return recipe


def _asked_for(model: Model) -> Profile:
    """Return the shape range that the settings or the learnt shapes of a model define; empty if neither defines a
    range."""
    is_configured = any(name.startswith(PREFIX) for name in model.entry.settings)
    return model.profile if model.learnt.ranges or is_configured else Profile()


def _memory_mb(recipe: Recipe, facts: Mapping[str, str]) -> int | None:
    """Return the GPU's total memory in MiB; None if unknown. Limits of this process are ignored, because they must not
    affect keys."""
    _, _, index = recipe.device.partition(":")
    text = facts.get(f"gpu.{index or 0}.memory_mb", "")
    return int(text) if text.isdecimal() else None


class DesiredEngine(msgspec.Struct, frozen=True):
    """One engine that a model should have. `standard`: digest of its verification standard. `lane`: engines of one lane
    are made one after the other. `problem`: why the engine cannot be made; empty if it can be made."""

    key: EngineKey
    recipe: Recipe
    standard: str
    lane: str
    problem: str = ""


def desired(fingerprint: Fingerprint, model: Model) -> tuple[DesiredEngine, ...]:
    """Return the engines that a model should have on a device, in order of preference, the reference first."""
    lane = lanes(fingerprint.facts)
    engines = []
    for candidate in candidates(
        model.entry.settings, fingerprint.facts, is_decoded=model.recognition.family is not None
    ):
        recipe, problem = complete(candidate, model, fingerprint.facts)
        key = EngineKey.of(model.digest, recipe, fingerprint)
        standard = Standard.of(model, recipe.precision, fingerprint.facts).digest
        engines.append(DesiredEngine(key, recipe, standard, lane.get(recipe.device, recipe.device), problem))
    return tuple(engines)


# The optimisation level is lowered only in fp32, because an engine of lower precision is rejected for its precision,
# not for its fusions.
_BACKEND, _PRECISION = "onnxruntime", "fp32"
_BELOW = {"all": "extended", "extended": "basic"}


def below(recipe: Recipe) -> Recipe | None:
    """Return the recipe with the next lower optimisation level; None if there is no lower level.

    Each optimisation level of ONNX Runtime includes the fusions of the level below. If a fusion of one level is wrong,
    engines of the levels below may still be right.
    """
    if (recipe.backend, recipe.precision) != (_BACKEND, _PRECISION) or recipe.optimization not in _BELOW:
        return None
    return msgspec.structs.replace(recipe, optimization=_BELOW[recipe.optimization])


def lowered(wanted: Iterable[DesiredEngine], is_rejected: Callable[[DesiredEngine], bool]) -> tuple[DesiredEngine, ...]:
    """Return the desired engines. Each rejected engine is followed by less optimised engines, up to the first that is
    not rejected."""
    found: list[DesiredEngine] = []
    for each in wanted:
        engine: DesiredEngine | None = each
        while engine is not None:
            found.append(engine)
            engine = _lower_engine(engine) if is_rejected(engine) else None
    return tuple(found)


def _lower_engine(engine: DesiredEngine) -> DesiredEngine | None:
    lower = below(engine.recipe)
    if lower is None:
        return None
    return msgspec.structs.replace(engine, recipe=lower, key=key_below(engine.key, lower))


def key_below(key: EngineKey, lower: Recipe) -> EngineKey:
    return EngineKey({**key.parts, **lower.parts()})

"""Plans for commands that run without a daemon: for the models and the store on disk, or for another box's device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from edged.device.fingerprint import Fingerprint
from edged.engines.builder import Builder
from edged.engines.desired import DesiredEngine, desired
from edged.engines.ensembles import PlannedEnsemble
from edged.engines.plan import PlannedModel, Planner
from edged.errors import EdgedError, InvalidInput, ModelNotFound
from edged.models.entries import ModelEntry
from edged.models.model import Model
from edged.models.repository import Repository
from edged.serving.slot import Slot


async def plans(repository: Repository, builder: Builder, planner: Planner) -> dict[str, PlannedModel]:
    """Plan every model of the repository for this box, without building or opening an engine. Ensembles and language
    models are left out."""
    planned = await read(repository.entries().values(), builder)
    for each in planned.values():
        if each.model is not None:
            try:
                planner.plan(each, each.model)
            except EdgedError as error:
                each.problem = error
    return planned


async def read(entries: Iterable[ModelEntry], builder: Builder) -> dict[str, PlannedModel]:
    """Read models, but do not plan their engines. Ensembles and language models are left out."""
    found: dict[str, PlannedModel] = {}
    for entry in entries:
        if entry.is_ensemble or entry.is_language:
            continue
        planned = found[entry.name] = PlannedModel(entry, Slot(entry.name))
        try:
            planned.model = await builder.model(entry, await builder.inspect(Path(entry.path)))
        except EdgedError as error:
            planned.problem = error
    return found


def ensembles(entries: Iterable[ModelEntry], plans: Mapping[str, PlannedModel]) -> list[PlannedEnsemble]:
    """Return the ensembles among the entries. `plans` maps the name of an entry to its plan, for all models that an
    ensemble can contain."""

    def find(model: str, version: str) -> PlannedModel:
        same = [planned for planned in plans.values() if planned.entry.model == model]
        found = next((planned for planned in same if version in ("", planned.entry.version)), None)
        if found is None:
            raise ModelNotFound(f"no model {model!r}{f' with version {version}' if same else ''}")
        return found

    return [PlannedEnsemble(entry, find) for entry in entries if entry.is_ensemble]


# The only backend that can build for another device.
BACKEND = "tensorrt_rtx"
_RUNTIME = "runtime.tensorrt_rtx"
_HOST = "cpu.arch"
_CAPABILITY = re.compile(r"(?:sm_?)?([0-9]{1,2})\.?([0-9])", re.IGNORECASE)


class Target(msgspec.Struct, frozen=True):
    """A device to build for: its name, its compute capability ("8.6"), and the facts for its engine keys.

    Facts that are unknown are absent. An absent fact matches any value.
    """

    name: str
    capability: str
    fingerprint: Fingerprint


def target(text: str, own: Fingerprint) -> Target:
    """Return the target with a compute capability (`sm_86`, `8.6`). Raises InvalidInput for any other text."""
    match = _CAPABILITY.fullmatch(text)
    if match is None:
        raise InvalidInput(
            f"{text[:40]!r} is neither a compute capability such as sm_86 nor a file with the output of:"
            " edged device --json"
        )
    capability = f"{int(match[1])}.{match[2]}"
    facts = {name: own.facts[name] for name in (_RUNTIME, _HOST) if name in own.facts}
    facts["gpu.0.compute_capability"] = capability
    return Target(f"sm_{match[1]}{match[2]}", capability, Fingerprint(facts))


def recorded_target(facts: Mapping[str, str], own: Fingerprint, name: str) -> Target:
    """Return the first GPU of another box as the target, from the recorded facts of that box.

    Engines for this target get exactly the keys that the other box plans. Raises InvalidInput if that box has no NVIDIA
    GPU, or has another CPU architecture or TensorRT-RTX version than this box.
    """
    theirs = Fingerprint(dict(facts))
    capability = theirs.facts.get("gpu.0.compute_capability")
    if capability is None:
        raise InvalidInput(f"{name} describes a box that has no NVIDIA GPU with a known compute capability")
    here, there = own.facts.get(_HOST), theirs.facts.get(_HOST)
    if there is None:
        raise InvalidInput(
            f"{name} does not have the fact {_HOST}; write it again on that box with: edged device --json"
        )
    if there != here:
        raise InvalidInput(
            f"{name} describes a box with {there}, but engines built here are for {here}; build them on that box"
        )
    here, there = own.facts.get(_RUNTIME), theirs.facts.get(_RUNTIME)
    if there is None:
        raise InvalidInput(
            f"{name} describes a box without TensorRT-RTX, which the engines need; install it on that box, then write"
            " the file again: edged device --json"
        )
    if here != there:
        raise InvalidInput(
            f"{name} describes a box with TensorRT-RTX {there}, but this box has {here}; install the same version"
        )
    gpu = theirs.facts.get("gpu.0.name", f"sm_{capability.replace('.', '')}")
    return Target(gpu, capability, theirs)


def engines(model: Model, on: Target, precisions: tuple[str, ...]) -> tuple[DesiredEngine, ...]:
    """Return the engines to build for a model on the target, in the given precisions. If `precisions` is empty, return
    engines in all precisions that suit the device.

    Raises InvalidInput if there is no engine to build.
    """
    chosen = {"precisions": ",".join(precisions)} if precisions else {}
    entry = msgspec.structs.replace(model.entry, settings={**model.entry.settings, **chosen, "backends": BACKEND})
    wanted = desired(on.fingerprint, msgspec.structs.replace(model, entry=entry))
    found = tuple(
        engine
        for engine in wanted
        if engine.recipe.device == "cuda:0" and (not precisions or engine.recipe.precision in precisions)
    )
    if not found:
        asked = f" in {', '.join(precisions)}" if precisions else ""
        raise InvalidInput(
            f"TensorRT-RTX can build no engine for {on.name}{asked}; choose a precision that it supports, such as fp16,"
            " with --precision or the setting 'precisions'"
        )
    return found

"""Which runtimes and providers really load and compute, each tried in a child of its own, and what they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from edged import packages
from edged.backends import registry
from edged.config.limits import Limits
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong
from edged.doctor.examination import Step, plain
from edged.engines.child import run
from edged.errors import EdgedError
from edged.ipc import job_messages as jobs

_REFERENCE = "onnxruntime"
_PACKAGES = ("onnxruntime", "onnxruntime_gpu", "onnxruntime_openvino")
_CPU = "CPUExecutionProvider"
# Providers that edged gives models to, by the kind of fact that shows a device for them.
_DEVICE_OF = {"CUDAExecutionProvider": "gpu."}
_SECONDS = 90.0
_TRIAL = Limits(seconds=_SECONDS, memory_mb=4096)


class Runtimes:
    """Asks every installed runtime; afterwards `loaded` has what those said that work."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        self._facts = facts
        self.loaded: dict[str, jobs.LoadedRuntime] = {}

    def steps(self) -> list[Step]:
        """One for each runtime that is installed, and one to say that the reference's is not."""
        present = registry.present(self._facts)
        steps = [self._step(name) for name in present]
        if _REFERENCE not in present:
            steps.insert(0, self._step(_REFERENCE))
        return steps

    def packages(self) -> Step:
        """Which packages of ONNX Runtime there are."""
        return plain(Name.RUNTIME, lambda: judge_packages(self._facts), "packages")

    def provider_steps(self) -> list[Step]:
        """One for each provider of ONNX Runtime, once that is loaded."""
        known = self.loaded.get(_REFERENCE)
        return [self._provider_step(name) for name in (known.providers if known is not None else ())]

    def _step(self, backend: str) -> Step:
        async def ask() -> list[Check]:
            version = registry.version(backend, self._facts)
            try:
                loaded = await run(jobs.LoadRuntime(backend), jobs.LoadedRuntime, _TRIAL)
            except EdgedError as error:
                return [broken(backend, version, str(error), self._facts)]
            self.loaded[backend] = loaded
            return list(judge(backend, version or "", loaded))

        return Step(Name.RUNTIME, backend, ask, _SECONDS, is_heavy=True)

    def _provider_step(self, provider: str) -> Step:
        async def ask() -> list[Check]:
            refusal = ""
            try:
                await run(jobs.TryProvider(provider), jobs.Done, _TRIAL)
            except EdgedError as error:
                refusal = str(error)
            return [judge_provider(provider, refusal, self._facts)]

        return Step(Name.PROVIDER, provider, ask, _SECONDS, is_heavy=True)


def judge(backend: str, packaged: str, loaded: jobs.LoadedRuntime) -> Iterator[Check]:
    """Judges a runtime that was imported. `packaged` is its version as its package or file says."""
    if packaged and not registry.agree(loaded.version, packaged):
        yield wrong(
            Name.RUNTIME,
            f"it is {loaded.version} when it is loaded and {packaged} as it is installed: two of them are mixed up",
            f"uninstall every package of it, then install one: {_reinstall(backend)}",
            backend,
        )
    else:
        yield ok(Name.RUNTIME, f"{loaded.version} loads", backend)
    if not loaded.opset or not loaded.ir_version:
        said = "it takes not even a model of one node of opset 13"
        yield wrong(Name.OPSET, said, _reinstall(backend), backend)
    else:
        taken = [_up_to(what, most) for what, most in (("opset", loaded.opset), ("IR version", loaded.ir_version))]
        yield ok(Name.OPSET, f"it takes {' and '.join(taken)}", backend)
    if loaded.talks:
        remedy = "start edged without that variable, or set ORT_DISABLE_TELEMETRY=1"
        yield warning(Name.TELEMETRY, f"it may send data home: {loaded.talks}", remedy, backend)
    else:
        yield ok(Name.TELEMETRY, "nothing is sent home", backend)


def judge_packages(facts: Mapping[str, str]) -> Iterator[Check]:
    """Judges the packages that ONNX Runtime comes in. They all hold one module: the last one installed has written over
    the others, and removing any of them leaves half a module."""
    found = sorted(name for name in _PACKAGES if f"runtime.{name}" in facts)
    plain_names = ", ".join(name.replace("_", "-") for name in found)
    if len(found) > 1:
        names = plain_names.split(", ")
        remedy = f"{packages.uninstall(*names)}, then install the one that is wanted: {packages.install(names[-1])}"
        yield warning(Name.RUNTIME, f"{plain_names} are all installed and hold one module", remedy, "packages")
    has_card = any(fact.startswith("gpu.") for fact in facts)
    if found == [_REFERENCE] and has_card:
        said = "this onnxruntime is built for the CPU alone, and there is an NVIDIA GPU"
        yield warning(Name.RUNTIME, said, "install onnxruntime-gpu instead, or leave the GPU to TensorRT", "packages")


def broken(backend: str, packaged: str | None, reason: str, facts: Mapping[str, str]) -> Check:
    """Judges a runtime that cannot be imported; a spare one hurts less than the one that every engine needs."""
    what = f"{packaged} is installed and does not load" if packaged else "it is not installed"
    remedy = _reinstall(backend) if packaged else packages.install(backend)
    if backend == _REFERENCE:
        return wrong(Name.RUNTIME, f"{what}, and nothing can be served without it: {reason}", remedy, backend)
    if backend not in registry.installed(facts):
        return warning(Name.RUNTIME, f"{what}: {reason}", f"{remedy}, or uninstall it", backend)
    return wrong(Name.RUNTIME, f"{what}: {reason}", f"{remedy}, or uninstall it", backend)


def judge_provider(provider: str, refusal: str, facts: Mapping[str, str]) -> Check:
    """Judges an execution provider that ONNX Runtime lists. It matters where there is a device for it."""
    if not refusal:
        return ok(Name.PROVIDER, "a session of one node runs on it", provider)
    said = f"ONNX Runtime lists it and cannot use it: {refusal}"
    cuda = packages.install("onnxruntime-gpu[cuda,cudnn]")
    remedy = f"install what is missing; for CUDA: {cuda}, and the NVIDIA driver"
    if provider == _CPU or any(fact.startswith(_DEVICE_OF.get(provider, "?")) for fact in facts):
        return wrong(Name.PROVIDER, said, remedy, provider)
    return warning(Name.PROVIDER, f"{said}; models run without it", remedy, provider)


def judge_opsets(model: str, opset: int, ir_version: int, loaded: Mapping[str, jobs.LoadedRuntime]) -> Iterator[Check]:
    """Judges a model's opset and IR version against every runtime that loads."""
    said = f"opset {opset}, IR version {ir_version}"
    refusing = {
        backend: " and ".join(_up_to(what, most) for what, asked, most in _beyond(opset, ir_version, limits))
        for backend, limits in loaded.items()
        if any(_beyond(opset, ir_version, limits))
    }
    remedy = f"export it with opset {_lowest(loaded)} or lower, or update the runtime"
    for backend, takes in refusing.items():
        reason = f"it has {said}; {backend} takes {takes}"
        yield (wrong if backend == _REFERENCE else warning)(Name.MODEL_OPSET, reason, remedy, model)
    if not loaded:
        yield unknown(Name.MODEL_OPSET, f"it has {said}, and no runtime loads that could be asked", model)
    elif not refusing:
        yield ok(Name.MODEL_OPSET, f"{said}, which {', '.join(loaded)} {'take' if len(loaded) > 1 else 'takes'}", model)


def _beyond(opset: int, ir_version: int, limits: jobs.LoadedRuntime) -> Iterator[tuple[str, int, int]]:
    for what, asked, most in (("opset", opset, limits.opset), ("IR version", ir_version, limits.ir_version)):
        if asked > most and most != jobs.LoadedRuntime.ANY:
            yield what, asked, most


def _lowest(loaded: Mapping[str, jobs.LoadedRuntime]) -> int:
    return min((limits.opset for limits in loaded.values()), default=0)


def _up_to(what: str, most: int) -> str:
    return f"any {what}" if most == jobs.LoadedRuntime.ANY else f"{what} up to {most}"


def _reinstall(package: str) -> str:
    return packages.install(package, option="--force-reinstall")


_EXTRA_SECONDS = 90.0
_EXTRA_TRIAL = Limits(seconds=_EXTRA_SECONDS, memory_mb=2048)


class Extra(msgspec.Struct, frozen=True):
    """An optional part of edged by the name that pip knows it by: the modules that it is made of, what it is for."""

    name: str
    modules: tuple[str, ...]
    purpose: str

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules whose packages are not installed. Nothing is imported."""
        return tuple(module for module in self.modules if not packages.is_installed(module))


EXTRAS = (
    Extra("media", ("av",), "video files and network cameras"),
    Extra("mqtt", ("paho.mqtt.client",), "results over MQTT"),
    Extra("http", ("uvicorn", "h11"), "clients that speak HTTP"),
    Extra("tracking", ("supervision", "trackers"), "tracker ids"),
)


def extra_steps() -> list[Step]:
    """One for each extra."""
    return [_step(extra) for extra in EXTRAS]


def judge_extra(extra: Extra, refusal: str | None) -> Check:
    """Judges one: `refusal` is why it does not load, empty where it does, None where it was not tried."""
    if refusal is None:
        said = f"not installed; it is for {extra.purpose}"
        return unknown(Name.EXTRA, said, extra.name, packages.install_extra(extra.name))
    if refusal:
        said = f"it is installed and does not load, which {extra.purpose} need: {refusal}"
        again = packages.install(*_packages(extra), option="--force-reinstall")
        return wrong(Name.EXTRA, said, again, extra.name)
    return ok(Name.EXTRA, f"it loads; it is for {extra.purpose}", extra.name)


def _step(extra: Extra) -> Step:
    async def ask() -> list[Check]:
        if extra.missing:
            return [judge_extra(extra, None)]
        try:
            await run(jobs.ImportPackage(extra.modules), jobs.Done, _EXTRA_TRIAL)
        except EdgedError as error:
            return [judge_extra(extra, str(error))]
        return [judge_extra(extra, "")]

    return Step(Name.EXTRA, extra.name, ask, _EXTRA_SECONDS, is_heavy=not extra.missing)


def _packages(extra: Extra) -> tuple[str, ...]:
    return tuple("paho-mqtt" if module.startswith("paho") else module.partition(".")[0] for module in extra.modules)

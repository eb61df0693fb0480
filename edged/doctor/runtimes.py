"""Checks of runtimes, execution providers and optional packages: whether they load and run, each in a child process,
and which opsets they support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from edged import packages
from edged.backends import registry
from edged.config.child_limits import Limits
from edged.device import fatbin
from edged.device.fingerprint import Device, Fingerprint, devices
from edged.doctor.check import Check, Name, Step, ok, unknown, warning, wrong
from edged.engines.child import run
from edged.errors import EdgedError
from edged.ipc import job_messages as jobs

_REFERENCE = "onnxruntime"
_PACKAGES = ("onnxruntime", "onnxruntime_gpu", "onnxruntime_openvino")
_CPU = "CPUExecutionProvider"
_CODE = "runtime.onnxruntime_gpu_code"
_CUDA = "CUDAExecutionProvider"
# By provider: the prefix of the facts about the devices that the provider serves.
_DEVICE_OF = {_CUDA: "gpu."}
_SECONDS = 90.0
_LIMITS = Limits(seconds=_SECONDS, memory_mb=4096)


class Extra(msgspec.Struct, frozen=True):
    """An optional extra of edged: its name for pip, its modules and its purpose."""

    name: str
    modules: tuple[str, ...]
    purpose: str

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules of the extra that are not installed. No module is imported to find out."""
        return tuple(module for module in self.modules if not packages.is_installed(module))


EXTRAS = (
    Extra("media", ("av",), "video files and network cameras"),
    Extra("mqtt", ("paho.mqtt.client",), "results over MQTT"),
    Extra("tracking", ("supervision", "trackers"), "tracker ids"),
)


class Runtimes:
    """Makes the steps that check runtimes. When all steps have run, `loaded` has the reports of runtimes that load."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        self._facts = facts
        self.loaded: dict[str, jobs.LoadedRuntime] = {}

    def steps(self) -> list[Step]:
        """Return a step for each installed runtime and for each extra. The reference's runtime always has a step, even
        if it is not installed."""
        present = registry.installed(self._facts)
        names = present if _REFERENCE in present else [_REFERENCE, *present]
        return [
            *(self._runtime_step(name) for name in names),
            *(_extra_step(extra) for extra in EXTRAS),
        ]

    def provider_steps(self) -> list[Step]:
        """Return a step for each provider of ONNX Runtime; empty if ONNX Runtime does not load. Call this method after
        the steps from `steps` have run."""
        known = self.loaded.get(_REFERENCE)
        return [self._provider_step(name) for name in (known.providers if known is not None else ())]

    def _runtime_step(self, backend: str) -> Step:
        async def ask() -> list[Check]:
            version = registry.version(backend, self._facts)
            try:
                loaded = await run(jobs.LoadRuntime(backend), jobs.LoadedRuntime, _LIMITS)
            except EdgedError as error:
                return [broken_runtime(backend, version, str(error), self._facts)]
            self.loaded[backend] = loaded
            return list(loaded_runtime(backend, version or "", loaded))

        return Step(Name.RUNTIME, backend, ask, _SECONDS, is_heavy=True)

    def _provider_step(self, name: str) -> Step:
        async def ask() -> list[Check]:
            return [provider(name, await _refusal(jobs.TryProvider(name)), self._facts)]

        return Step(Name.PROVIDER, name, ask, _SECONDS, is_heavy=True)


def _extra_step(each: Extra) -> Step:
    async def ask() -> list[Check]:
        return [extra(each, None if each.missing else await _refusal(jobs.ImportPackage(each.modules)))]

    return Step(Name.EXTRA, each.name, ask, _SECONDS, is_heavy=not each.missing)


async def _refusal(job: jobs.TryProvider | jobs.ImportPackage) -> str:
    """Run a job in a child and return why it failed; an empty text if it succeeded."""
    try:
        await run(job, jobs.Done, _LIMITS)
    except EdgedError as error:
        return str(error)
    return ""


def loaded_runtime(backend: str, packaged: str, loaded: jobs.LoadedRuntime) -> Iterator[Check]:
    """Check a runtime that loads. `packaged` is the version of its package or file."""
    if packaged and not registry.agree(loaded.version, packaged):
        yield wrong(
            Name.RUNTIME,
            f"version {loaded.version} loads, but version {packaged} is installed: two packages are mixed",
            f"uninstall every package of the runtime, then install one: {packages.reinstall_runtime(backend)}",
            backend,
        )
    else:
        yield ok(Name.RUNTIME, f"version {loaded.version} loads", backend)
    if not loaded.opset or not loaded.ir_version:
        message = "the runtime rejects a test model with one node of opset 13"
        yield wrong(Name.OPSET, message, packages.reinstall_runtime(backend), backend)
    else:
        taken = [_up_to(what, most) for what, most in (("opset", loaded.opset), ("IR version", loaded.ir_version))]
        yield ok(Name.OPSET, f"the runtime supports {' and '.join(taken)}", backend)
    if loaded.talks:
        own = "start edged without this variable, or set the variable to 1"
        remedy = own if backend == _REFERENCE else packages.uninstall("openvino-telemetry")
        yield warning(Name.TELEMETRY, f"the runtime may send telemetry: {loaded.talks}", remedy, backend)
    else:
        yield ok(Name.TELEMETRY, "the runtime sends no telemetry", backend)


def runtime_packages(facts: Mapping[str, str]) -> Iterator[Check]:
    """Check ONNX Runtime's packages. All of them contain the same module. If two are installed, the later installation
    has overwritten files of the earlier one, and uninstalling either package leaves an incomplete module."""
    found = sorted(name for name in _PACKAGES if f"runtime.{name}" in facts)
    plain_names = ", ".join(name.replace("_", "-") for name in found)
    if len(found) > 1:
        names = plain_names.split(", ")
        remedy = f"{packages.uninstall(*names)}, then install only one of them: {packages.install(names[-1])}"
        yield warning(
            Name.RUNTIME,
            f"{plain_names} are all installed, but exclude each other: they contain the same module",
            remedy,
            "packages",
        )
    if found == [_REFERENCE] and any(fact.startswith("gpu.") for fact in facts):
        yield _without_cuda(facts)
    yield from missing_code(facts)


def missing_code(facts: Mapping[str, str]) -> Iterator[Check]:
    """Yield a warning for each GPU of the box that the installed onnxruntime-gpu has no code for."""
    for device in without_code(facts):
        version, code = facts["runtime.onnxruntime_gpu"], facts[_CODE]
        message = f"onnxruntime-gpu {version} cannot use {device.description}: it has code only for {code}"
        yield warning(Name.RUNTIME, message, right_package(facts), "packages")


def _without_cuda(facts: Mapping[str, str]) -> Check:
    """Check a box that has an NVIDIA GPU, but only the package onnxruntime, which uses only the CPU. This package is
    right for a Jetson, because onnxruntime-gpu of PyPI has no code for a Jetson's GPU."""
    message = "this onnxruntime supports only the CPU, but the box has an NVIDIA GPU"
    if all(device.compute_capability not in fatbin.TEGRA for device in devices(Fingerprint(dict(facts)))):
        remedy = "install onnxruntime-gpu instead, or leave the GPU to TensorRT"
        return warning(Name.RUNTIME, message, remedy, "packages")
    if _has_tensorrt(facts):
        return ok(Name.RUNTIME, "onnxruntime is the right package for a Jetson, with TensorRT for its GPU", "packages")
    why = "keep onnxruntime, since onnxruntime-gpu of PyPI has no code for a Jetson's GPU"
    return warning(Name.RUNTIME, message, f"{why}, and {_tensorrt(facts)}", "packages")


def without_code(facts: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the NVIDIA GPUs for which the installed onnxruntime-gpu has no code."""
    code = facts.get(_CODE, "")
    return tuple(
        device
        for device in devices(Fingerprint(dict(facts)))
        if code and device.compute_capability and not fatbin.runs_on(code, device.compute_capability)
    )


def right_package(facts: Mapping[str, str]) -> str:
    """Return the remedy for a box with a GPU for which onnxruntime-gpu has no code."""
    swap = f"{packages.uninstall('onnxruntime-gpu')}, then {packages.install(_REFERENCE, option='--force-reinstall')}"
    return f"{swap}; for the GPU, {'TensorRT is already installed' if _has_tensorrt(facts) else _tensorrt(facts)}"


def _has_tensorrt(facts: Mapping[str, str]) -> bool:
    return not registry.TIMING_KERNELS.isdisjoint(registry.usable(facts))


def _is_jetson(facts: Mapping[str, str]) -> bool:
    return "jetson.l4t" in facts or "jetson.soc" in facts


def _tensorrt(facts: Mapping[str, str]) -> str:
    """Return how to install TensorRT, which compiles for any GPU that it finds."""
    if _is_jetson(facts):
        return "install JetPack's TensorRT: sudo apt install nvidia-jetpack"
    return f"install TensorRT: {packages.install_runtime('tensorrt')}"


def broken_runtime(backend: str, packaged: str | None, reason: str, facts: Mapping[str, str]) -> Check:
    """Return the check of a runtime that cannot be imported. The result is `wrong` if it is the reference's runtime, or
    if the box has a device for it. Otherwise the result is `warning`."""
    what = f"version {packaged} is installed but does not load" if packaged else "the runtime is not installed"
    remedy = packages.reinstall_runtime(backend) if packaged else packages.install_runtime(backend)
    if backend == "tensorrt" and _is_jetson(facts):  # pip has no TensorRT for a Jetson
        remedy = _tensorrt(facts)
    if backend == _REFERENCE:
        return wrong(Name.RUNTIME, f"{what}; without this runtime no model can be served: {reason}", remedy, backend)
    make = wrong if backend in registry.usable(facts) else warning
    return make(Name.RUNTIME, f"{what}: {reason}", f"{remedy}, or uninstall the runtime", backend)


def provider(name: str, refusal: str, facts: Mapping[str, str]) -> Check:
    """Check an execution provider that ONNX Runtime lists. If the provider does not work, the result is `wrong` if
    the box has a device for it, and otherwise `warning`."""
    if not refusal:
        return ok(Name.PROVIDER, "a test session with one node runs on the provider", name)
    message = f"ONNX Runtime lists the provider but cannot use it: {refusal}"
    if name == _CUDA and without_code(facts):
        return warning(Name.PROVIDER, f"{message}; the package has no code for this GPU", right_package(facts), name)
    cuda = packages.install("onnxruntime-gpu[cuda,cudnn]")
    remedy = f"install the missing libraries; for CUDA, install the NVIDIA driver, and run: {cuda}"
    if name == _CPU or any(fact.startswith(_DEVICE_OF.get(name, "?")) for fact in facts):
        return wrong(Name.PROVIDER, message, remedy, name)
    return warning(Name.PROVIDER, f"{message}; models run without this provider", remedy, name)


def model_opset(model: str, opset: int, ir_version: int, loaded: Mapping[str, jobs.LoadedRuntime]) -> Iterator[Check]:
    """Check a model's opset and IR version against every runtime that loads."""
    version = f"opset {opset}, IR version {ir_version}"
    refusing = {
        backend: " and ".join(_up_to(what, most) for what, asked, most in _beyond(opset, ir_version, limits))
        for backend, limits in loaded.items()
        if any(_beyond(opset, ir_version, limits))
    }
    lowest = min((limits.opset for limits in loaded.values()), default=0)
    beyond = {what for limits in loaded.values() for what, _, _ in _beyond(opset, ir_version, limits)}
    lower = f"export the model with opset {lowest} or lower" if "opset" in beyond else "add it again with --convert"
    remedy = f"{lower}, or update the runtime"
    for backend, takes in refusing.items():
        reason = f"the model has {version}, but {backend} supports only {takes}"
        yield (wrong if backend == _REFERENCE else warning)(Name.MODEL_OPSET, reason, remedy, model)
    if not loaded:
        yield unknown(Name.MODEL_OPSET, f"not checked, because no runtime loads: the model has {version}", model)
    elif not refusing:
        yield ok(Name.MODEL_OPSET, f"the model has {version}, supported by {', '.join(loaded)}", model)


def _beyond(opset: int, ir_version: int, limits: jobs.LoadedRuntime) -> Iterator[tuple[str, int, int]]:
    for what, asked, most in (("opset", opset, limits.opset), ("IR version", ir_version, limits.ir_version)):
        if asked > most and most != jobs.LoadedRuntime.ANY:
            yield what, asked, most


def _up_to(what: str, most: int) -> str:
    return f"any {what}" if most == jobs.LoadedRuntime.ANY else f"{what} up to {most}"


def extra(each: Extra, refusal: str | None) -> Check:
    """Check an extra. `refusal` says why the extra does not load; empty if it loads, None if it is not installed."""
    if refusal is None:
        message = f"the extra is not installed; it is for {each.purpose}"
        return unknown(Name.EXTRA, message, each.name, packages.install_extra(each.name))
    if refusal:
        message = f"the extra for {each.purpose} is installed but does not load: {refusal}"
        names = ("paho-mqtt" if name.startswith("paho") else name.partition(".")[0] for name in each.modules)
        return wrong(Name.EXTRA, message, packages.install(*names, option="--force-reinstall"), each.name)
    return ok(Name.EXTRA, f"the extra loads; it is for {each.purpose}", each.name)

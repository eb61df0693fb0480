"""Tests which models an installed runtime really accepts on this box. Runs in a child: a broken runtime may crash."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from edged.backends import one_node, registry
from edged.backends.contract import Backend
from edged.errors import EngineUnusable, Unsupported
from edged.ipc import job_messages as jobs

_ANY = jobs.LoadedRuntime.ANY
_ORT = "onnxruntime"
_OPSET, _IR = 13, 7  # every supported runtime accepts these; a search changes only one of the two
# The largest version to try. Real versions are far smaller, and a runtime may loop up to the given version.
MOST_VERSION = 1024


def load(job: jobs.LoadRuntime) -> jobs.LoadedRuntime:
    """Import a backend's runtime, and find the versions that it accepts. Raises Unsupported if the import fails."""
    backend = registry.load(job.backend)
    providers: tuple[str, ...] = ()
    if job.backend == _ORT:
        from edged.backends.ort import runtime

        providers = runtime.available_providers()
    opset = ir_version = 0  # the result for a runtime that accepts no model
    if takes_anything(backend):
        found = find_support(backend)
        opset, ir_version = found.newest or _ANY, found.newest_ir or _ANY
    return jobs.LoadedRuntime(backend.version(), opset, ir_version, providers, _talks(job.backend))


def try_provider(job: jobs.TryProvider) -> jobs.Done:
    """Run a tiny model on a provider. Raises EngineUnusable if the provider does not work on this box."""
    from edged.backends.ort import runtime

    runtime.try_provider(job.provider)
    return jobs.Done()


def import_package(job: jobs.ImportPackage) -> jobs.Done:
    """Import the modules of a package. Raises Unsupported if a module cannot be imported."""
    for module in job.modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a package may raise anything while it is imported
            raise Unsupported(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    return jobs.Done()


def _talks(backend: str) -> str:
    """Return how the runtime in this process could send telemetry; empty if it cannot."""
    if backend == _ORT and os.environ.get("ORT_DISABLE_TELEMETRY") in (None, "", "0"):
        return f"environment variable ORT_DISABLE_TELEMETRY is {os.environ.get('ORT_DISABLE_TELEMETRY')!r}"
    if backend == "openvino" and sys.modules.get("openvino_telemetry") is not None:
        return "openvino_telemetry is loaded"
    return ""


def find_support(backend: Backend) -> jobs.RuntimeSupport:
    """Return the opsets and the newest IR version that a runtime supports. Opens dozens of one-node models, which takes
    tens of milliseconds."""

    def opset(number: int) -> bool:
        return takes(backend, one_node.relu(number, _IR))

    def ir_version(number: int) -> bool:
        return takes(backend, one_node.relu(_OPSET, number))

    return jobs.RuntimeSupport(backend.version(), _lowest(opset), _highest(opset, _OPSET), _highest(ir_version, _IR))


def takes_anything(backend: Backend) -> bool:
    """Whether a runtime opens a one-node model whose opset and IR version every supported runtime accepts."""
    return takes(backend, one_node.relu(_OPSET, _IR))


def newest_of(backend: Backend, domain: str) -> int:
    """Return the newest opset of another domain that a runtime accepts; 0 if the runtime accepts every opset."""

    def opset(number: int) -> bool:
        return takes(backend, one_node.importing(one_node.relu(_OPSET, _IR), domain, number))

    return _highest(opset, 1)


def takes(backend: Backend, model: bytes) -> bool:
    """Whether a runtime opens a tiny model. The model is a memory file, so a killed child leaves no file behind."""
    with os.fdopen(os.memfd_create("model.onnx", os.MFD_CLOEXEC), "wb") as file:
        file.write(model)
        file.flush()
        try:
            backend.check(Path(f"/proc/self/fd/{file.fileno()}"))
        except EngineUnusable:
            return False
    return True


def _highest(accepts: Callable[[int], bool], known: int) -> int:
    """Return the highest accepted number, not below `known`, which is accepted; 0 if `MOST_VERSION` is accepted."""
    if accepts(MOST_VERSION):
        return 0
    low, high = known, MOST_VERSION
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def _lowest(accepts: Callable[[int], bool]) -> int:
    number = _OPSET
    while number > 1 and accepts(number - 1):
        number -= 1
    return number

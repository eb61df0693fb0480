"""What an installed runtime really does on this box. Runs in a child: a runtime that is broken may take it down."""

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
_OPSET, _IR = 13, 7  # tried with versions of the other: every supported runtime takes them
# The largest version that a runtime is tried with: none has come near, and a runtime may count up to what it is given.
MOST_VERSION = 1024


def load(job: jobs.LoadRuntime) -> jobs.LoadedRuntime:
    """Imports a backend's runtime and asks it; Unsupported with the reason when it cannot be imported."""
    backend = registry.load(job.backend)
    providers: tuple[str, ...] = ()
    if job.backend == _ORT:
        from edged.backends.ort import runtime

        providers = runtime.available_providers()
    opset = ir_version = 0  # of a runtime that takes nothing
    if takes_anything(backend):
        found = find_support(backend)
        opset, ir_version = found.newest or _ANY, found.newest_ir or _ANY
    return jobs.LoadedRuntime(backend.version(), opset, ir_version, providers, _talks(job.backend))


def try_provider(job: jobs.TryProvider) -> jobs.Done:
    """EngineUnusable with the reason when the provider does not compute here."""
    from edged.backends.ort import runtime

    runtime.try_provider(job.provider)
    return jobs.Done()


def import_package(job: jobs.ImportPackage) -> jobs.Done:
    """Unsupported with the reason when one of the modules cannot be imported."""
    for module in job.modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a package may raise anything while it is imported
            raise Unsupported(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    return jobs.Done()


def _talks(backend: str) -> str:
    """How this process, as edged starts its children, could send something home; empty if it cannot."""
    if backend == _ORT and os.environ.get("ORT_DISABLE_TELEMETRY") in (None, "", "0"):
        return f"ORT_DISABLE_TELEMETRY is {os.environ.get('ORT_DISABLE_TELEMETRY')!r}"
    if backend == "openvino" and sys.modules.get("openvino_telemetry") is not None:
        return "openvino_telemetry is loaded"
    return ""


def find_support(backend: Backend) -> jobs.RuntimeSupport:
    """Some dozens of models of one node are opened for it, which takes some tens of milliseconds."""

    def opset(number: int) -> bool:
        return takes(backend, one_node.relu(number, _IR))

    def ir_version(number: int) -> bool:
        return takes(backend, one_node.relu(_OPSET, number))

    return jobs.RuntimeSupport(backend.version(), _lowest(opset), _highest(opset, _OPSET), _highest(ir_version, _IR))


def takes_anything(backend: Backend) -> bool:
    """Whether it takes the model of one node with which everything else is found."""
    return takes(backend, one_node.relu(_OPSET, _IR))


def newest_of(backend: Backend, domain: str) -> int:
    """The newest opset of another domain that it takes; 0 if it takes whatever is written there."""

    def opset(number: int) -> bool:
        return takes(backend, one_node.importing(one_node.relu(_OPSET, _IR), domain, number))

    return _highest(opset, 1)


def takes(backend: Backend, model: bytes) -> bool:
    """Whether a runtime opens a tiny model: a file in memory, of which a child that is killed leaves nothing behind."""
    with os.fdopen(os.memfd_create("model.onnx", os.MFD_CLOEXEC), "wb") as file:
        file.write(model)
        file.flush()
        try:
            backend.check(Path(f"/proc/self/fd/{file.fileno()}"))
        except EngineUnusable:
            return False
    return True


def _highest(accepts: Callable[[int], bool], known: int) -> int:
    """The last number that is accepted, where what comes before it is as well; 0 if `MOST_VERSION` is."""
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

"""What an installed runtime really does on this box. Runs in a child: a runtime that is broken may take it down."""

from __future__ import annotations

import importlib
import os
import sys

from edged.backends import registry
from edged.errors import Unsupported
from edged.ipc import job_messages as jobs
from edged.verification import reach

_ANY = jobs.LoadedRuntime.ANY
_ORT = "onnxruntime"


def load(job: jobs.LoadRuntime) -> jobs.LoadedRuntime:
    """Imports a backend's runtime and asks it; Unsupported with the reason when it cannot be imported."""
    backend = registry.load(job.backend)
    providers: tuple[str, ...] = ()
    if job.backend == _ORT:
        from edged.backends.ort import runtime

        providers = runtime.available_providers()
    opset = ir_version = 0  # which is what is said of one that takes nothing
    if reach.takes_anything(backend):
        found = reach.find(backend)
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
    """How this process, as edged starts its children, could send something home; empty where it cannot."""
    if backend == _ORT and os.environ.get("ORT_DISABLE_TELEMETRY") in (None, "", "0"):
        return f"ORT_DISABLE_TELEMETRY is {os.environ.get('ORT_DISABLE_TELEMETRY')!r}"
    if backend == "openvino" and sys.modules.get("openvino_telemetry") is not None:
        return "openvino_telemetry is loaded"
    return ""

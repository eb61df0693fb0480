"""Asks the installed runtimes which ONNX versions they take."""

from __future__ import annotations

from collections.abc import Iterable

from edged.api_types import RuntimeSupport
from edged.config.child_limits import Limits
from edged.engines.child import run
from edged.errors import EdgedError
from edged.ipc import job_messages as jobs

_LIMITS = Limits(seconds=120.0, memory_mb=4096)


async def supports(backends: Iterable[str]) -> tuple[RuntimeSupport, ...]:
    """Return the newest ONNX versions that each backend's runtime takes. A child process tests each runtime in turn."""
    found: list[RuntimeSupport] = []
    for backend in backends:
        try:
            loaded = await run(jobs.LoadRuntime(backend), jobs.LoadedRuntime, _LIMITS)
        except EdgedError as error:
            found.append(RuntimeSupport(backend, problem=str(error)))
            continue
        problem = "" if loaded.opset and loaded.ir_version else "it takes no model"
        found.append(RuntimeSupport(backend, loaded.version, loaded.opset, loaded.ir_version, problem))
    return tuple(found)

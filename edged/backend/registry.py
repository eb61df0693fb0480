"""Which backends there are, and which can be used here. Nothing is imported until a backend is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from edged.backend.contract import Backend
from edged.errors import Unsupported

# name -> (module, facts that say that the runtime is installed and in which version; none where it needs no runtime)
_BACKENDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "onnxruntime": ("edged.backend.onnxruntime", ("runtime.onnxruntime", "runtime.onnxruntime_gpu")),
    "openvino": ("edged.backend.openvino", ("runtime.openvino",)),
    "null": ("edged.backend.null", ()),
}
NAMES = tuple(_BACKENDS)
# How a key writes a fact that is not there.
ABSENT = "absent"


def load(name: str) -> Backend:
    """Imports a backend and its runtime; Unsupported when the name is unknown or the runtime cannot be imported."""
    try:
        module, _ = _BACKENDS[name]
    except KeyError:
        raise Unsupported(f"there is no backend {name!r}; there are {', '.join(NAMES)}") from None
    try:
        backend: Backend = importlib.import_module(module).BACKEND
    except ImportError as error:
        raise Unsupported(f"backend {name} cannot be loaded: {error}; install edged[{name}]") from error
    return backend


def installed(facts: Mapping[str, str]) -> tuple[str, ...]:
    """The backends whose runtime the device's facts show, without importing any. `null` is never offered."""
    return tuple(name for name in _BACKENDS if version(name, facts) is not None)


def version(name: str, facts: Mapping[str, str]) -> str | None:
    """The version of a backend's runtime as the device's facts show it; None where it is not installed or has none."""
    found = (facts.get(fact, ABSENT) for fact in _BACKENDS[name][1])
    return next((version for version in found if version != ABSENT), None)

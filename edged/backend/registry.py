"""Which backends there are, and which can be used here. Nothing is imported until a backend is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from edged.backend.contract import Backend
from edged.errors import Unsupported

# name -> (module, fact that says the runtime is installed; None for a backend that needs no runtime)
_BACKENDS: dict[str, tuple[str, str | None]] = {
    "onnxruntime": ("edged.backend.onnxruntime", "runtime.onnxruntime"),
    "openvino": ("edged.backend.openvino", "runtime.openvino"),
    "null": ("edged.backend.null", None),
}
NAMES = tuple(_BACKENDS)


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
    return tuple(name for name, (_, fact) in _BACKENDS.items() if fact is not None and fact in facts)

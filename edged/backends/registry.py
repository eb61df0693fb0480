"""The backends, and which can be used on this box. Imports a backend only to load it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import NamedTuple

from edged.backends.contract import Backend
from edged.errors import Unsupported


class _Entry(NamedTuple):
    """`module` has the backend as `BACKEND`. `versions` are facts of which one is the runtime's version, `needs` those
    that must exist as well; both empty if there is no runtime. `device` is the prefix of a fact that must exist, such
    as "gpu."; empty if any box will do."""

    module: str
    versions: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    device: str = ""


_BACKENDS: dict[str, _Entry] = {
    "onnxruntime": _Entry("edged.backends.onnxruntime", ("runtime.onnxruntime", "runtime.onnxruntime_gpu")),
    "openvino": _Entry("edged.backends.openvino", ("runtime.openvino",)),
    # The library's own version decides; without the Python package it cannot be reached.
    "tensorrt": _Entry("edged.backends.tensorrt", ("tensorrt.version",), ("runtime.tensorrt",), "gpu."),
    "tensorrt_rtx": _Entry("edged.backends.tensorrt_rtx", ("runtime.tensorrt_rtx",), (), "gpu."),
    "null": _Entry("edged.backends.null"),
}
NAMES = tuple(_BACKENDS)
# They build by timing kernels on the device: for minutes, undisturbed, and for ranges of shapes.
TIMING_KERNELS = frozenset({"tensorrt", "tensorrt_rtx"})
# How people call the runtimes.
TITLES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorrt": "TensorRT",
    "tensorrt_rtx": "TensorRT-RTX",
}
# How a key writes a fact that is not there.
ABSENT = "absent"


def load(name: str) -> Backend:
    """Imports a backend and its runtime; Unsupported if the name is unknown or the runtime cannot be imported."""
    try:
        module = _BACKENDS[name].module
    except KeyError:
        raise Unsupported(f"there is no backend {name!r}; there are {', '.join(NAMES)}") from None
    try:
        backend: Backend = importlib.import_module(module).BACKEND
    except ImportError as error:
        raise Unsupported(f"backend {name} cannot be loaded: {error}; install edged[{name}]") from error
    return backend


def usable(facts: Mapping[str, str]) -> tuple[str, ...]:
    """The backends whose runtime is installed by the device's facts, with a device for it. Imports none. `null` is
    never offered."""
    return tuple(name for name in installed(facts) if any(fact.startswith(_BACKENDS[name].device) for fact in facts))


def installed(facts: Mapping[str, str]) -> tuple[str, ...]:
    """The backends whose runtime is installed by the facts, with or without a device that it could use."""
    return tuple(name for name in _BACKENDS if version(name, facts) is not None)


def version(name: str, facts: Mapping[str, str]) -> str | None:
    """The version of a backend's runtime as the device's facts show it; None if it is not installed or has none."""
    entry = _BACKENDS[name]
    if any(facts.get(fact, ABSENT) == ABSENT for fact in entry.needs):
        return None
    found = (facts.get(fact, ABSENT) for fact in entry.versions)
    return next((version for version in found if version != ABSENT), None)


def agree(loaded: str, expected: str) -> bool:
    """Whether two versions are equal in their common part: a library may have four numbers and its package three."""
    one, other = loaded.split("."), expected.split(".")
    return all(mine == theirs for mine, theirs in zip(one, other, strict=False))

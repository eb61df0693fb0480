"""The backends, and which of them this box can use. A backend is imported only when it is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import NamedTuple

from edged.backends.contract import Backend
from edged.errors import Unsupported


class _Entry(NamedTuple):
    """A known backend. `module` exports it as `BACKEND`. `versions` and `needs` are names of facts about the box, such
    as "runtime.openvino". The first fact of `versions` that exists is the runtime's version; all facts of `needs` must
    exist, too. Both are empty if the backend has no runtime. `device_facts` is the prefix of a fact that must exist,
    such as "gpu." for NVIDIA's GPUs; empty if the backend runs on any box."""

    module: str
    versions: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    device_facts: str = ""


_BACKENDS: dict[str, _Entry] = {
    "onnxruntime": _Entry("edged.backends.onnxruntime", ("runtime.onnxruntime", "runtime.onnxruntime_gpu")),
    "openvino": _Entry("edged.backends.openvino", ("runtime.openvino",)),
    # The version is the library's own; the Python package is needed to use it.
    "tensorrt": _Entry("edged.backends.tensorrt", ("tensorrt.version",), ("runtime.tensorrt",), "gpu."),
    "tensorrt_rtx": _Entry("edged.backends.tensorrt_rtx", ("runtime.tensorrt_rtx",), (), "gpu."),
    "null": _Entry("edged.backends.null"),
}
NAMES = tuple(_BACKENDS)
# Backends that time kernels on the device when they build. Such a build takes minutes, must run alone, needs ranges of
# shapes, and has TensorRT's options.
TIMING_KERNELS = frozenset({"tensorrt", "tensorrt_rtx"})
# Names of the runtimes for people.
TITLES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorrt": "TensorRT",
    "tensorrt_rtx": "TensorRT-RTX",
}
# The value of a missing fact in a key.
ABSENT = "absent"


def load(name: str) -> Backend:
    """Import a backend and its runtime. Raises Unsupported if the name is unknown or the import fails."""
    try:
        module = _BACKENDS[name].module
    except KeyError:
        raise Unsupported(f"unknown backend {name!r}; the backends are {', '.join(NAMES)}") from None
    try:
        backend: Backend = importlib.import_module(module).BACKEND
    except ImportError as error:
        raise Unsupported(f"backend {name} cannot be loaded: {error}; `edged doctor` shows a remedy") from error
    return backend


def usable(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the backends whose runtime and device exist according to the facts, without `null`. Imports nothing."""
    return tuple(
        name for name in installed(facts) if any(fact.startswith(_BACKENDS[name].device_facts) for fact in facts)
    )


def installed(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the backends whose runtime is installed according to the facts, with or without a usable device."""
    return tuple(name for name in _BACKENDS if version(name, facts) is not None)


def version(name: str, facts: Mapping[str, str]) -> str | None:
    """Return the version of a backend's runtime from the device's facts; None if no runtime is installed."""
    return next(iter(versions(name, facts)), None)


def versions(name: str, facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the versions of the installed packages that may contain a backend's runtime. There are several versions
    if, for example, `onnxruntime` and `onnxruntime-gpu` are installed. Then only the loaded module shows which package
    is in use."""
    entry = _BACKENDS[name]
    if any(facts.get(fact, ABSENT) == ABSENT for fact in entry.needs):
        return ()
    return tuple(found for fact in entry.versions if (found := facts.get(fact, ABSENT)) != ABSENT)


def agree(loaded: str, expected: str) -> bool:
    """Whether two versions agree in the numbers that both have: a library may have four numbers, its package three. The
    text after a plus sign is ignored, because it only distinguishes builds of a version."""
    one, other = (each.partition("+")[0].split(".") for each in (loaded, expected))
    return all(mine == theirs for mine, theirs in zip(one, other, strict=False))

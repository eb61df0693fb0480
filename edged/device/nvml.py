"""The live NVIDIA driver's own answers, through NVML (nvidia-ml-py, module `pynvml`), if both are there.

NVML's state does not survive a fork, so it is opened and closed within one call and nothing is kept; nothing
happens at import. Opening it takes some 10 ms, and up to seconds on a GPU that no one holds and without
persistence mode.
"""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

REBOOT_PENDING = "reboot pending"
# nvml.h: NVML_ERROR_LIB_RM_VERSION_MISMATCH, the new driver's library over the old kernel module until a
# reboot.
_VERSION_MISMATCH = 18


class Reading(msgspec.Struct, frozen=True):
    """Facts of the box, and of each GPU by PCI address (`0000:01:00.0`)."""

    facts: dict[str, str] = {}
    gpus: dict[str, dict[str, str]] = {}


def read() -> Reading:
    """What NVML says now; empty when nvidia-ml-py or the driver's library is missing."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return Reading()
    return ask(library)


def ask(library: Any) -> Reading:
    """As `read`, of a given module."""
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return Reading(_state(library, error))
    try:
        return Reading(_driver(library), _gpus(library))
    finally:
        _call(library, "nvmlShutdown")


def _state(library: Any, error: Any) -> dict[str, str]:
    if isinstance(error, library.NVMLError_LibraryNotFound):
        return {}
    code = getattr(error, "value", None)
    return {"nvidia.state": REBOOT_PENDING if code == _VERSION_MISMATCH else f"NVML error {code}"}


def _driver(library: Any) -> dict[str, str]:
    facts = {}
    driver = _call(library, "nvmlSystemGetDriverVersion")
    if driver:
        facts["nvidia.driver"] = _text(driver)
    cuda = _call(library, "nvmlSystemGetCudaDriverVersion_v2")
    if cuda:
        # 12040 is 12.4: the newest CUDA that this driver runs.
        facts["cuda.driver"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    return facts


def _gpus(library: Any) -> dict[str, dict[str, str]]:
    gpus = {}
    for index in range(_call(library, "nvmlDeviceGetCount") or 0):
        handle = _call(library, "nvmlDeviceGetHandleByIndex", index)
        pci = _call(library, "nvmlDeviceGetPciInfo", handle) if handle is not None else None
        if pci is not None:
            gpus[_address(_text(pci.busId))] = _gpu(library, handle)
    return gpus


def _gpu(library: Any, handle: Any) -> dict[str, str]:
    """Name, memory in MiB and the constants an engine is tied to; what the driver cannot tell is absent."""
    memory = _call(library, "nvmlDeviceGetMemoryInfo", handle)
    capability = _call(library, "nvmlDeviceGetCudaComputeCapability", handle)
    answers = {
        "name": _call(library, "nvmlDeviceGetName", handle),
        "memory_mb": memory.total >> 20 if memory else None,
        "compute_capability": "{}.{}".format(*capability) if capability else None,
        "cores": _call(library, "nvmlDeviceGetNumGpuCores", handle),
        "memory_bus_bits": _call(library, "nvmlDeviceGetMemoryBusWidth", handle),
    }
    return {name: _text(answer) for name, answer in answers.items() if answer}


def _call(library: Any, function: str, *arguments: Any) -> Any:
    """The answer, or None where this driver or this nvidia-ml-py does not know the question."""
    try:
        return getattr(library, function)(*arguments)
    except (AttributeError, library.NVMLError):
        return None


def _text(answer: Any) -> str:
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)


def _address(bus_id: str) -> str:
    """NVML's `00000000:01:00.0` -> `0000:01:00.0`, as /proc writes it."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"

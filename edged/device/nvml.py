"""Facts from the running NVIDIA driver through NVML, the C library (`nvml.h`) that comes with every driver.

Each call opens, queries and closes the library. Nothing happens at import. There are two reasons. The library's state
does not survive a fork. And after a driver update without a reboot, an old library that stayed open would return
version mismatches. Opening takes some 10 ms, and up to seconds on an idle GPU without persistence mode.

A recorded tree may contain NVML's answers as `nvml.json`; `python -m edged.device.nvml` prints them on the box itself.
"""

from __future__ import annotations

import _ctypes
import ctypes
import sys
from typing import Any

import msgspec

from edged.decoding import ready
from edged.device.root import Root

REBOOT_PENDING = "reboot pending"
RECORDED = "nvml.json"
_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE; a version has at most 80

# nvmlReturn_t
_SUCCESS = 0
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13
_VERSION_MISMATCH = 18  # the new driver's library over the old kernel module, until a reboot


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """Constants of one GPU that engines depend on; 0 or empty if the driver does not provide them."""

    name: str = ""
    compute_capability: str = ""
    memory_mb: int = 0
    memory_bus_bits: int = 0
    cores: int = 0

    def facts(self) -> dict[str, str]:
        return {name: str(value) for name in self.__struct_fields__ if (value := getattr(self, name))}


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """The driver's version and state, and each GPU by PCI address (`0000:01:00.0`)."""

    driver: str = ""
    cuda: str = ""  # the newest CUDA version that this driver supports
    state: str = ""  # why NVML could not be queried; empty if it could
    gpus: dict[str, Gpu] = {}


class _PciInfo(ctypes.Structure):  # nvmlPciInfo_t since NVML 9
    _fields_ = (
        ("legacy_address", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),  # domain, bus, device, device id, subsystem id
        ("address", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):  # nvmlMemory_t, bytes
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def read(name: str = _LIBRARY) -> Reading:
    """Query NVML. The reading is empty if the driver's library is not installed."""
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return Reading()
    try:
        return ask(library)
    finally:
        _ctypes.dlclose(library._handle)


def recorded(root: Root) -> Reading:
    """Read NVML's answers from a recorded tree; empty if they are missing or damaged."""
    try:
        return msgspec.json.decode(root.read(RECORDED) or "", type=ready(Reading))
    except (msgspec.MsgspecError, RecursionError):
        return Reading()


def ask(library: Any) -> Reading:
    """Query NVML through its open library."""
    error = _code(library, "nvmlInit_v2")
    if error == _LIBRARY_NOT_FOUND:
        return Reading()
    if error != _SUCCESS:
        return Reading(state=REBOOT_PENDING if error == _VERSION_MISMATCH else f"NVML error {error}")
    try:
        cuda = _number(library, "nvmlSystemGetCudaDriverVersion_v2")
        return Reading(
            driver=_text(library, "nvmlSystemGetDriverVersion"),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",  # 12040 is 12.4
            gpus=_gpus(library),
        )
    finally:
        _code(library, "nvmlShutdown")


def _gpus(library: Any) -> dict[str, Gpu]:
    """Return a mapping from PCI address to GPU. GPUs without an address are left out: they are part of a SoC, which the
    device tree describes."""
    gpus = {}
    for index in range(_number(library, "nvmlDeviceGetCount_v2")):
        device, pci = ctypes.c_void_p(), _PciInfo()
        if (
            _code(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device)) == _SUCCESS
            and _code(library, "nvmlDeviceGetPciInfo_v3", device, ctypes.byref(pci)) == _SUCCESS
        ):
            gpus[_address(pci.address.decode("ascii", "replace"))] = _gpu(library, device)
    return gpus


def _gpu(library: Any, device: Any) -> Gpu:
    memory, major, minor = _Memory(), ctypes.c_int(), ctypes.c_int()
    capability = (device, ctypes.byref(major), ctypes.byref(minor))
    has_memory = _code(library, "nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory)) == _SUCCESS
    has_capability = _code(library, "nvmlDeviceGetCudaComputeCapability", *capability) == _SUCCESS
    return Gpu(
        name=_text(library, "nvmlDeviceGetName", device),
        compute_capability=f"{major.value}.{minor.value}" if has_capability else "",
        memory_mb=memory.total >> 20 if has_memory else 0,
        memory_bus_bits=_number(library, "nvmlDeviceGetMemoryBusWidth", device),
        cores=_number(library, "nvmlDeviceGetNumGpuCores", device),
    )


def _number(library: Any, function: str, *arguments: Any) -> int:
    answer = ctypes.c_uint()
    return answer.value if _code(library, function, *arguments, ctypes.byref(answer)) == _SUCCESS else 0


def _text(library: Any, function: str, *arguments: Any) -> str:
    answer = ctypes.create_string_buffer(_TEXT_BYTES)
    code = _code(library, function, *arguments, answer, ctypes.c_uint(_TEXT_BYTES))
    return answer.value.decode("utf-8", "replace") if code == _SUCCESS else ""


def _code(library: Any, function: str, *arguments: Any) -> int:
    """Call a function and return its code: `_FUNCTION_NOT_FOUND` if an older driver's library lacks the function."""
    try:
        return int(getattr(library, function)(*arguments))
    except AttributeError:
        return _FUNCTION_NOT_FOUND


def _address(bus_id: str) -> str:
    """Convert NVML's `00000000:01:00.0` to the form in /proc, `0000:01:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(read()), indent=2).decode() + "\n")

"""Opens GPUs through pycuda if it can be imported, or else through cuda-bindings."""

from __future__ import annotations

import ctypes
import importlib

from edged.backends.contract import one_line
from edged.backends.cuda.contract import Device
from edged.device import nvidia
from edged.device.root import Root
from edged.errors import EngineUnusable, Unsupported

# The package as its users install it -> the module here that needs it.
_MODULES = {
    "pycuda": "edged.backends.cuda.pycuda_driver",
    "cuda-bindings": "edged.backends.cuda.bindings_driver",
}
LIBRARIES = tuple(_MODULES)


def open_device(number: int = 0, library: str | None = None) -> Device:
    """Open a GPU, counted from 0 by PCI address among all, as the device's facts count.

    `library` is one of LIBRARIES, None for the first that can be imported. Unsupported if none can, EngineUnusable if
    there is no driver or no such device, or if another device has its number in this process.
    """
    nvidia.use_pci_order()
    problems = []
    for name in LIBRARIES if library is None else (library,):
        try:
            module = importlib.import_module(_MODULES[name])
        except ImportError as error:
            problems.append(f"{name}: {one_line(error, 120)}")
            continue
        device: Device = module.open_device(number)
        try:
            require_number(number, device.properties.pci_address)
        except BaseException:
            device.close()
            raise
        return device
    raise Unsupported(f"CUDA cannot be reached ({'; '.join(problems)}); install cuda-bindings or pycuda")


def require_number(number: int, address: str) -> None:
    """Require that CUDA's device N is the GPU that the facts call `cuda:N`: an engine's key names what it was built on.

    `edged.device.nvidia` sets that order, unless something else in the process initialised CUDA before, or a container
    has only some of the GPUs that /proc lists. GPUs of a SoC have no PCI address there.
    """
    known = nvidia.addresses(Root())
    if address in known and known.index(address) != number:
        raise EngineUnusable(
            f"CUDA's device {number} is the GPU at {address}, which is cuda:{known.index(address)};"
            " unset CUDA_VISIBLE_DEVICES, and give a container all GPUs of the box"
        )


def pci_address(number: int) -> str:
    """The PCI address of a device by CUDA's number, from the driver; empty if unknown."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    is_known = (
        driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(device), number) == 0
        and driver.cuDeviceGetPCIBusId(text, len(text), device) == 0
    )
    return text.value.decode("ascii", "replace").lower() if is_known else ""

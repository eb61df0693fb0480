"""Which Python package reaches CUDA: pycuda where it can be imported, else cuda-bindings."""

from __future__ import annotations

import importlib

from edged.backends.contract import one_line
from edged.backends.cuda import numbering
from edged.backends.cuda.contract import Device
from edged.device import nvidia
from edged.errors import Unsupported

# The package as its users install it -> the module here that needs it.
_MODULES = {
    "pycuda": "edged.backends.cuda.pycuda_driver",
    "cuda-bindings": "edged.backends.cuda.bindings_driver",
}
LIBRARIES = tuple(_MODULES)


def open_device(number: int = 0, library: str | None = None) -> Device:
    """Opens a GPU, counted from 0 by PCI address among all, as the facts of the device count.

    `library` is one of LIBRARIES, None for the first that can be imported. Unsupported when none can, EngineUnusable
    when there is no driver, no such device, or another one has its number in this process.
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
            numbering.require(number, device.properties.pci_address)
        except BaseException:
            device.close()
            raise
        return device
    raise Unsupported(f"CUDA cannot be reached ({'; '.join(problems)}); install cuda-bindings or pycuda")

"""Which Python package reaches CUDA: pycuda where it can be imported, else cuda-bindings."""

from __future__ import annotations

import importlib
import os

from edged.backend.contract import one_line
from edged.backend.cuda.contract import Device
from edged.errors import Unsupported

# The package as its users install it -> the module here that needs it.
_MODULES = {
    "pycuda": "edged.backend.cuda.pycuda_driver",
    "cuda-bindings": "edged.backend.cuda.bindings_driver",
}
LIBRARIES = tuple(_MODULES)


def open_device(number: int = 0, library: str | None = None) -> Device:
    """Opens a GPU, counted from 0 by PCI address among those that CUDA_VISIBLE_DEVICES leaves.

    `library` is one of LIBRARIES, None for the first that can be imported. Unsupported when none can, EngineUnusable
    when there is no driver or no such device.
    """
    # Read once, when CUDA is initialised: its own order begins with the fastest device.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    problems = []
    for name in LIBRARIES if library is None else (library,):
        try:
            module = importlib.import_module(_MODULES[name])
        except ImportError as error:
            problems.append(f"{name}: {one_line(error, 120)}")
            continue
        device: Device = module.open_device(number)
        return device
    raise Unsupported(f"CUDA cannot be reached ({'; '.join(problems)}); install cuda-bindings or pycuda")

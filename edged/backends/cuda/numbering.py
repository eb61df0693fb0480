"""Whether CUDA's device N is the GPU that the facts call `cuda:N`; an engine's key names what it was built on.

`edged.device.nvidia` sees to it, unless something else in the process has initialised CUDA before, or a container has
only some of the GPUs that /proc lists.
"""

from __future__ import annotations

import ctypes

from edged.device import nvidia
from edged.device.root import Root
from edged.errors import EngineUnusable


def require(number: int, address: str) -> None:
    """EngineUnusable where the facts number the GPU at this PCI address otherwise. Those of a SoC have none there."""
    known = nvidia.addresses(Root())
    if address in known and known.index(address) != number:
        raise EngineUnusable(
            f"CUDA's device {number} is the GPU at {address}, which is cuda:{known.index(address)};"
            " unset CUDA_VISIBLE_DEVICES, and give a container all GPUs of the box"
        )


def address(number: int) -> str:
    """Where CUDA's device of this number is, by the driver itself; empty where it does not tell."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    is_told = (
        driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(device), number) == 0
        and driver.cuDeviceGetPCIBusId(text, len(text), device) == 0
    )
    return text.value.decode("ascii", "replace").lower() if is_told else ""

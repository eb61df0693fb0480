"""Opens CUDA devices. Importing this module imports no CUDA package; only `driver.py` needs cuda-bindings."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from edged.backends.contract import one_line
from edged.device import nvidia
from edged.device.root import Root
from edged.errors import EngineUnusable, Unsupported

if TYPE_CHECKING:
    from edged.backends.cuda.driver import Device


def open_device(number: int = 0) -> Device:
    """Open a GPU by its number: GPUs are counted from 0 in the order of their PCI addresses, as in the device's facts.

    Raises Unsupported if cuda-bindings cannot be imported. Raises EngineUnusable if there is no driver or no device
    with this number, or if CUDA numbers the devices differently in this process (see `require_number`).
    """
    nvidia.use_pci_order()
    try:
        from edged.backends.cuda.driver import Device
    except ImportError as error:
        raise Unsupported(f"cannot import cuda-bindings ({one_line(error, 120)}); install this package") from error
    device = Device(number)
    try:
        require_number(number, device.properties.pci_address)
    except BaseException:
        device.close()
        raise
    return device


def require_number(number: int, address: str) -> None:
    """Raise EngineUnusable if edged's number of the GPU at PCI address `address` is not `number`, CUDA's number of the
    GPU. Engine keys refer to the GPU by edged's number.

    `use_pci_order` of `edged.device.nvidia` makes CUDA count devices as edged does. The numbers still differ if CUDA
    was initialised before that call, or if a container has only some of the GPUs that /proc lists. The GPU of a SoC is
    not checked, because it has no PCI address in /proc.
    """
    known = nvidia.addresses(Root())
    if address in known and known.index(address) != number:
        raise EngineUnusable(
            f"the GPU at {address} is device {number} for CUDA, but cuda:{known.index(address)} for edged;"
            " unset CUDA_VISIBLE_DEVICES, or give the container all GPUs"
        )


def pci_address(number: int) -> str:
    """Return the PCI address of CUDA's device `number`, from the driver; empty if unknown."""
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

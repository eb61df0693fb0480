"""Facts `nvidia.*`, `gpu.N.*` and `cuda.driver`: the driver's files, and NVML's answers.

Sources: `/proc/driver/nvidia` (the driver's README, "The /proc Interface"), the names of the driver's libraries, and
`edged.device.nvml`.

GPUs are numbered in the order of their PCI address, which is NVML's order and CUDA's after `visible.use_pci_order`. On
the running system those that CUDA_VISIBLE_DEVICES hides are left out, and their numbers stay free. The address tells
two equal cards apart, so the UUID, which identifies a person's card, is no fact.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from edged.device import libraries, nvml
from edged.device.root import Root

REBOOT_PENDING = nvml.REBOOT_PENDING
_MODULE_VERSION = "proc/driver/nvidia/version"
# "... Kernel Module  550.54.14  ...", or of the open one "... Open Kernel Module for x86_64  560.35.03  ..."
_MODULE = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+([0-9]+(?:\.[0-9]+)+)")
_DRIVER = re.compile(r"[0-9]{3,}\.[0-9.]+")
# Jetson Linux calls its CUDA library libcuda.so.1.1 in every release; the compiler beside it has the driver's version.
_JETSON = "usr/lib/aarch64-linux-gnu/nvidia/libnvidia-ptxjitcompiler.so"


def probe(root: Root) -> dict[str, str]:
    """`nvidia.kernel_module` (loaded), `nvidia.driver` (on disk), `nvidia.state` (when not normal), GPUs."""
    match = _MODULE.search(root.read(_MODULE_VERSION) or "")
    module = match[1] if match else ""
    driver = _driver_on_disk(root)
    reading = _reading(root, has_driver=bool(module or driver))
    # The disk's version before NVML's: what the next process would load is what engines are built with.
    facts = {"nvidia.driver": driver or reading.driver, "nvidia.kernel_module": module, "cuda.driver": reading.cuda}
    is_pending = module and driver and driver != module
    facts["nvidia.state"] = REBOOT_PENDING if is_pending else reading.state
    gpus = {address: {"name": name} for address, name in listed(root).items()}
    for address, gpu in reading.gpus.items():
        gpus[address] = gpus.get(address, {}) | gpu.facts()
    # After NVML: the kernel module may learn a UUID only when somebody asks for the GPU.
    left = visible_gpus(dict.fromkeys(gpus, "") | _fields(root, "GPU UUID")) if root.is_live else gpus
    for index, address in enumerate(sorted(gpus)):
        if address in left:
            facts |= {f"gpu.{index}.{name}": value for name, value in gpus[address].items()}
            facts[f"gpu.{index}.pci"] = address
    return {name: value for name, value in facts.items() if value}


def addresses(root: Root) -> list[str]:
    """PCI addresses of all GPUs, hidden ones too, in the order of their numbers."""
    return sorted(listed(root).keys() | _reading(root, has_driver=True).gpus.keys())


def listed(root: Root) -> dict[str, str]:
    """PCI address -> name, from `gpus/*/information` ("Model: ..."); CUDA does not see excluded GPUs."""
    return _fields(root, "Model")


def _fields(root: Root, wanted: str) -> dict[str, str]:
    """PCI address -> what is said of the GPU under this heading."""
    gpus = {}
    for path in root.glob("proc/driver/nvidia/gpus/*/information"):
        pairs = (line.partition(":") for line in (root.read(path) or "").split("\n"))
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        if fields.get("Model") and fields.get("GPU Excluded") != "Yes":
            address = fields.get("Bus Location") or path.split("/")[-2]
            gpus[address.lower()] = fields.get(wanted, "")
    return gpus


def _reading(root: Root, has_driver: bool) -> nvml.Reading:
    if not root.is_live:
        return nvml.recorded(root)
    return nvml.read() if has_driver else nvml.Reading()


def _driver_on_disk(root: Root) -> str:
    """What `libcuda.so.1` leads to: the user-space driver that the next process would load."""
    found = (
        libraries.system_version(root, "libcuda.so.1"),
        libraries.newest(root, (f"{_JETSON}.1", f"{_JETSON}.*")),
    )
    return next((version for version in found if version and _DRIVER.fullmatch(version)), "")


_VARIABLE = "CUDA_VISIBLE_DEVICES"
_KEPT = "EDGED_CUDA_VISIBLE_DEVICES"  # what it said, for facts that are read later, here and in children
_MEANS_GPU = re.compile(r"[0-9]+|(?i:GPU-[0-9a-f-]+)")


def use_pci_order() -> None:
    """Before CUDA is initialised: it shall count all GPUs by PCI address, or see none where none is left to edged."""
    # CUDA's own order begins with the fastest device.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    said = os.environ.pop(_VARIABLE, None)
    if said is None:
        return
    os.environ[_KEPT] = said
    if not _entries(said):
        os.environ[_VARIABLE] = "-1"


def visible_gpus(uuids: Mapping[str, str]) -> frozenset[str]:
    """Of PCI addresses with their UUIDs, empty where unknown, those of the GPUs that edged may use."""
    said = os.environ.get(_VARIABLE, os.environ.get(_KEPT))
    if said is None:
        return frozenset(uuids)
    addresses, found = sorted(uuids), set[str]()
    for entry in _entries(said):
        if entry.isdecimal():
            meant = addresses[int(entry) : int(entry) + 1]
        else:
            meant = [address for address, uuid in uuids.items() if uuid.lower().startswith(entry.lower())]
        if len(meant) != 1:
            break
        found.add(meant[0])
    return frozenset(found)


def _entries(said: str) -> list[str]:
    """Those before the first that cannot mean a GPU."""
    found = []
    for entry in map(str.strip, said.split(",")):
        if not _MEANS_GPU.fullmatch(entry):
            break
        found.append(entry)
    return found

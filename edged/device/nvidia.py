"""Facts `nvidia.*`, `gpu.N.*` and `cuda.driver`: the driver's files, and NVML's answers.

Sources: `/proc/driver/nvidia` (the driver's README, "The /proc Interface"), the names of the driver's libraries, and
`edged.device.nvml`.

GPUs are numbered by PCI address, as in NVML, and in CUDA after `use_pci_order`. The address distinguishes equal cards.
The UUID is not a fact, because it would identify the owner's card.

/proc and NVML list all GPUs, also those that CUDA_VISIBLE_DEVICES hides. So on the running system, `probe` leaves out
the facts of hidden GPUs. The visible GPUs keep their numbers among all GPUs. By default CUDA numbers only the visible
GPUs, from 0. So a process that uses CUDA must call `use_pci_order` before CUDA reads the variable. CUDA then has the
same numbers as the facts.

Numbers in the variable count GPUs by PCI address, as in `nvidia-smi`; UUIDs may be abbreviated. As in CUDA, the first
entry that does not name a GPU (such as -1) ends the variable's list. The name of a MIG device counts as such an entry,
because the device's facts are not available.
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
# Jetson Linux names its CUDA library libcuda.so.1.1 in every release; the compiler in the same folder has the version.
_JETSON = "usr/lib/aarch64-linux-gnu/nvidia/libnvidia-ptxjitcompiler.so"


def probe(root: Root) -> dict[str, str]:
    """Read the facts of the driver and of the GPUs.

    `nvidia.kernel_module` is the version of the loaded kernel module. `nvidia.driver` is the version of the driver on
    disk. `nvidia.state` is a problem of the driver, if any. `cuda.driver` is the newest CUDA version that the driver
    supports. `gpu.N.*` are the facts of each GPU.
    """
    match = _MODULE.search(root.read(_MODULE_VERSION) or "")
    module = match[1] if match else ""
    driver = _driver_on_disk(root)
    reading = _reading(root, has_driver=bool(module or driver))
    # The version on disk is preferred to NVML's, because engines are built with the driver that the next process loads.
    facts = {"nvidia.driver": driver or reading.driver, "nvidia.kernel_module": module, "cuda.driver": reading.cuda}
    is_pending = module and driver and driver != module
    facts["nvidia.state"] = REBOOT_PENDING if is_pending else reading.state
    gpus = {address: {"name": name} for address, name in listed(root).items()}
    for address, gpu in reading.gpus.items():
        gpus[address] = gpus.get(address, {}) | gpu.facts()
    # Read the UUIDs after the query of NVML: the kernel module may know a UUID only after the first use of the GPU.
    visible = visible_gpus(dict.fromkeys(gpus, "") | _fields(root, "GPU UUID")) if root.is_live else gpus
    for index, address in enumerate(sorted(gpus)):
        if address in visible:
            facts |= {f"gpu.{index}.{name}": value for name, value in gpus[address].items()}
            facts[f"gpu.{index}.pci"] = address
    return {name: value for name, value in facts.items() if value}


def addresses(root: Root) -> list[str]:
    """Return the PCI addresses of all GPUs, including hidden GPUs, in the order of their numbers."""
    return sorted(listed(root).keys() | _reading(root, has_driver=True).gpus.keys())


def listed(root: Root) -> dict[str, str]:
    """Return a mapping from PCI address to name, from `gpus/*/information` ("Model: ..."). Excluded GPUs, which CUDA
    does not see, are left out."""
    return _fields(root, "Model")


def _fields(root: Root, wanted: str) -> dict[str, str]:
    """Return a mapping from each GPU's PCI address to the value of its field `wanted`."""
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
    """Return the version of the user-space driver that the next process will load (the target of `libcuda.so.1`)."""
    found = (
        libraries.system_version(root, "libcuda.so.1"),
        libraries.newest(root, (f"{_JETSON}.1", f"{_JETSON}.*")),
    )
    return next((version for version in found if version and _DRIVER.fullmatch(version)), "")


_VARIABLE = "CUDA_VISIBLE_DEVICES"
_SAVED = "EDGED_CUDA_VISIBLE_DEVICES"  # keeps the original value for facts that this process or its children read later
_NAMES_GPU = re.compile(r"[0-9]+|(?i:GPU-[0-9a-f-]+)")


def use_pci_order() -> None:
    """Make CUDA number all GPUs by PCI address, including GPUs that CUDA_VISIBLE_DEVICES hides. But if the variable is
    set and names no GPU, hide all GPUs from CUDA. Call this function before CUDA is initialised."""
    # By default CUDA's numbers begin with the fastest device.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    value = os.environ.pop(_VARIABLE, None)
    if value is None:
        return
    os.environ[_SAVED] = value
    if not _entries(value):
        os.environ[_VARIABLE] = "-1"


def visible_gpus(uuids: Mapping[str, str]) -> frozenset[str]:
    """Return the PCI addresses that CUDA_VISIBLE_DEVICES allows; `uuids` maps all addresses to UUIDs ("": unknown)."""
    value = os.environ.get(_VARIABLE, os.environ.get(_SAVED))
    if value is None:
        return frozenset(uuids)
    addresses, found = sorted(uuids), set[str]()
    for entry in _entries(value):
        if entry.isdecimal():
            matches = addresses[int(entry) : int(entry) + 1]
        else:
            matches = [address for address, uuid in uuids.items() if uuid.lower().startswith(entry.lower())]
        if len(matches) != 1:
            break
        found.add(matches[0])
    return frozenset(found)


def _entries(value: str) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES before the first that names no GPU; CUDA ignores the rest."""
    found = []
    for entry in map(str.strip, value.split(",")):
        if not _NAMES_GPU.fullmatch(entry):
            break
        found.append(entry)
    return found

"""Facts `nvidia.*`, `gpu.N.*` and `cuda.driver`: the driver's files in /proc, and NVML on the live box.

GPUs are numbered in the order of their PCI address, which is NVML's order and CUDA's with
`CUDA_DEVICE_ORDER=PCI_BUS_ID` (not CUDA's default, fastest first: a host must set it). The address tells two
equal cards apart, so the UUID, which identifies a person's card, is no fact.
"""

from __future__ import annotations

import re

from edged.device import libraries, nvml
from edged.device.root import Root

REBOOT_PENDING = nvml.REBOOT_PENDING
_VERSION = "proc/driver/nvidia/version"
# "... Kernel Module  550.54.14  ...", or of the open one "... Open Kernel Module for x86_64  560.35.03  ..."
_MODULE = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+([0-9]+(?:\.[0-9]+)+)")
# libcuda.so.1.1 is what Jetson calls its library; it is not the driver's version.
_DRIVER = re.compile(r"[0-9]{3,}\.[0-9.]+")


def probe(root: Root) -> dict[str, str]:
    """`nvidia.kernel_module` (loaded), `nvidia.driver` (on disk), `nvidia.state` (when not normal), GPUs."""
    module = _MODULE.search(root.read(_VERSION) or "")
    driver = _driver_on_disk(root)
    facts: dict[str, str] = {}
    gpus = _gpus(root)
    if root.is_live and (module or driver):
        reading = nvml.read()
        facts |= reading.facts
        for address, found in reading.gpus.items():
            gpus[address] = gpus.get(address, {}) | found
    if module:
        facts["nvidia.kernel_module"] = module[1]
    if driver:
        # Not what NVML says: a process that loaded it before an upgrade keeps hearing the old version.
        facts["nvidia.driver"] = driver
    if module and driver and driver != module[1]:
        facts["nvidia.state"] = REBOOT_PENDING
    for index, address in enumerate(sorted(gpus)):
        facts |= {f"gpu.{index}.{name}": value for name, value in gpus[address].items()}
        facts[f"gpu.{index}.pci"] = address
    return facts


def _driver_on_disk(root: Root) -> str | None:
    """What `libcuda.so.1` leads to: the user-space driver that the next process would load."""
    version = libraries.system_version(root, "libcuda.so.1") or ""
    return version if _DRIVER.fullmatch(version) else None


def _gpus(root: Root) -> dict[str, dict[str, str]]:
    """PCI address -> facts, from `gpus/*/information` ("Model: ..."); CUDA does not see excluded GPUs."""
    gpus = {}
    for path in root.glob("proc/driver/nvidia/gpus/*/information"):
        pairs = (line.partition(":") for line in (root.read(path) or "").split("\n"))
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        if fields.get("Model") and fields.get("GPU Excluded") != "Yes":
            address = fields.get("Bus Location") or path.split("/")[-2]
            gpus[address.lower()] = {"name": fields["Model"]}
    return gpus

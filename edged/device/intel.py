"""Facts `intel.gpu.N.*`, `intel.npu.N.*` and the versions of Intel's user-space drivers.

Sources: sysfs's PCI attributes of DRM and accel devices (`vendor`, `device`, `uevent`), `/sys/module/*/version` of
drivers built outside the kernel, and dpkg. Devices are numbered by PCI address, the integrated GPU (00:02.0) first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from edged.device import libraries
from edged.device.root import Root

_VENDOR = "0x8086"
_NODES = {"intel-gpu": "sys/class/drm/card[0-9]*", "intel-npu": "sys/class/accel/accel[0-9]*"}
# Fact -> packages that provide it: the current name first, then the name on Ubuntu 22.04.
_GPU_PACKAGES = {
    "intel.opencl": ("intel-opencl-icd",),
    "intel.level_zero_gpu": ("libze-intel-gpu1", "intel-level-zero-gpu"),
    "intel.graphics_compiler": ("libigc2", "intel-igc-core-2", "libigc1", "intel-igc-core"),
}
_NPU_PACKAGES = {
    "intel.npu_compiler": ("intel-driver-compiler-npu",),
    "intel.level_zero_npu": ("intel-level-zero-npu",),
    "intel.npu_firmware": ("intel-fw-npu",),
}


def probe(root: Root) -> dict[str, str]:
    """Read the PCI device id (`0x46a6`) and the kernel driver of each GPU and NPU, whether the device is integrated,
    and the versions of drivers."""
    gpus = _devices(root, _NODES["intel-gpu"], "intel.gpu")
    npus = _devices(root, _NODES["intel-npu"], "intel.npu")
    facts = gpus | npus
    if gpus:
        # Distributions such as Fedora have no dpkg, but the file name of the library has the version.
        library = libraries.system_version(root, "libze_intel_gpu.so.1") or ""
        facts |= {"intel.level_zero_gpu": library} | _packages(root, _GPU_PACKAGES)
    if npus:
        facts |= _packages(root, _NPU_PACKAGES)
    return facts


def addresses(root: Root, kind: str) -> list[str]:
    """Return the PCI addresses of all devices of a kind, "intel-gpu" or "intel-npu", in the order of their numbers;
    empty for another kind."""
    return sorted(_found(root, _NODES[kind])) if kind in _NODES else []


def _devices(root: Root, pattern: str, prefix: str) -> dict[str, str]:
    found = _found(root, pattern)
    return {
        f"{prefix}.{index}.{name}": value
        for index, slot in enumerate(sorted(found))
        for name, value in found[slot].items()
    }


def _found(root: Root, pattern: str) -> dict[str, dict[str, str]]:
    """Return the facts of each device, by PCI address, or by the name of the node if sysfs has no address."""
    found: dict[str, dict[str, str]] = {}
    for path in root.glob(f"{pattern}/device/vendor"):
        node, device = path.split("/")[3], path.removesuffix("/vendor")
        # "card0-HDMI-A-1" is a connector of card0.
        if "-" in node or (root.read(path) or "").strip() != _VENDOR:
            continue
        event = dict(re.findall(r"^([A-Z_]+)=(.*)$", root.read(f"{device}/uevent") or "", re.MULTILINE))
        driver = event.get("DRIVER", "")
        slot = event.get("PCI_SLOT_NAME", node)
        found[slot] = {
            # A device in the processor is on bus 0, not behind a bridge.
            "integrated": "yes" if re.fullmatch(r"[0-9a-f]{4,}:00:[0-9a-f.]+", slot) else "",
            "device": (root.read(f"{device}/device") or "").strip(),
            "driver": driver,
            "driver_version": root.read(f"sys/module/{driver}/version") or "" if driver else "",
        }
    return found


def _packages(root: Root, wanted: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    versions = libraries.package_versions(root, [name for names in wanted.values() for name in names])
    present = {fact: next((versions[n] for n in names if n in versions), "") for fact, names in wanted.items()}
    return {fact: version for fact, version in present.items() if version}

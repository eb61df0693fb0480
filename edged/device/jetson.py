"""Facts `jetson.*` and the integrated GPU `gpu.0.*` of NVIDIA Jetson modules.

Sources: Jetson Linux's `/etc/nv_tegra_release` and its package nvidia-l4t-core; the device tree's `compatible` and
`model`; the SoC's attributes in sysfs (the kernel's `ABI/testing/sysfs-devices-soc` and `drivers/soc/tegra/fuse`);
nvpmodel's files and answer (Jetson Linux Developer Guide, "Power Model Tool").
"""

from __future__ import annotations

import os
import re
import subprocess

from edged.device import libraries, nvidia
from edged.device.root import Root
from edged.device.system import total_memory_mb

# CUDA compute capability of each Tegra SoC; add a line for a new SoC.
_CAPABILITY = {"tegra194": "7.2", "tegra234": "8.7", "tegra264": "11.0"}
# Containers hide the device tree (Docker masks /sys/firmware), but not the chip id, which sysfs has in decimal.
_SOC = "sys/devices/soc0"
_CHIPS = {"25": "tegra194", "35": "tegra234", "38": "tegra264"}
# Names that the driver gives to the GPU of a SoC; any other GPU is a card.
_INTEGRATED = re.compile(r"\b(Xavier|Orin|Thor|Tegra)\b")
_NVPMODEL = "usr/sbin/nvpmodel"
_NVPMODEL_SECONDS = 2.0


def probe(root: Root) -> dict[str, str]:
    """Read the facts `jetson.l4t`, `.model`, `.module`, `.soc` and `.power_mode`, and the facts of the GPU in the SoC;
    empty on other boxes."""
    l4t = _l4t(root)
    compatible = root.strings("proc/device-tree/compatible")
    soc = _soc(root, compatible)
    if not (l4t or soc):
        return {}
    return {
        "jetson.l4t": l4t,
        "jetson.model": " ".join(root.strings("proc/device-tree/model")) or _sysfs(root, "machine"),
        "jetson.module": _module(compatible),
        "jetson.soc": soc,
        "jetson.power_mode": _power_mode(root),
        **(_gpu(root, soc) if soc and not _has_card(root) else {}),
    }


def _soc(root: Root, compatible: tuple[str, ...]) -> str:
    names = (entry.removeprefix("nvidia,") for entry in compatible)
    found = next((name for name in names if name.startswith("tegra")), "")
    return found or (_CHIPS.get(_sysfs(root, "soc_id"), "") if _sysfs(root, "family") == "Tegra" else "")


def _sysfs(root: Root, attribute: str) -> str:
    return (root.read(f"{_SOC}/{attribute}") or "").strip()


def _has_card(root: Root) -> bool:
    """Whether the box has a GPU card. Boxes with a card (IGX) disable the GPU of the SoC."""
    return any(not _INTEGRATED.search(name) for name in nvidia.listed(root).values())


def _l4t(root: Root) -> str:
    """Return the release, such as `36.4.3`, from "# R36 (release), REVISION: 4.3, ..." or from the version of a Debian
    package, "36.4.3-20250107174145"."""
    match = re.search(r"R([0-9]+)\b.*REVISION: ([0-9.]+)", root.read("etc/nv_tegra_release") or "")
    if match:
        return f"{match[1]}.{match[2]}"
    # Newer images do not have this file.
    return libraries.upstream(libraries.package_versions(root, ["nvidia-l4t-core"]).get("nvidia-l4t-core", ""))


def _module(compatible: tuple[str, ...]) -> str:
    """Return the name of the module (the board with SoC and memory): `p3767-0005` of "nvidia,p3768-0000+p3767-0005"
    (carrier + module)."""
    for pattern in (r"\+(p[0-9]{4}-[0-9]{4})", r",(p[0-9]{4}-[0-9]{4})"):
        for entry in compatible:
            match = re.search(pattern, entry)
            if match:
                return match[1]
    return ""


def _gpu(root: Root, soc: str) -> dict[str, str]:
    total = total_memory_mb(root)
    return {
        "gpu.0.name": f"{soc} integrated GPU",
        "gpu.0.integrated": "yes",
        "gpu.0.compute_capability": _CAPABILITY.get(soc, ""),
        "gpu.0.memory_mb": str(_fitted_mb(total)) if total else "",
    }


def _fitted_mb(total: int) -> int:
    """Return the installed memory in MiB: the lowest power of two that is not below `total`, the memory that the kernel
    manages. Each release of L4T reserves a different part of the installed memory for other uses."""
    return 1 << (total - 1).bit_length()


def _power_mode(root: Root) -> str:
    """Return the name of the power mode, such as `MAXN_SUPER`. On the box itself, ask nvpmodel first. On a recorded
    box, or if nvpmodel does not answer, read its files."""
    return (_asked_mode(root) if root.is_live else "") or _stored_mode(root)


def _asked_mode(root: Root) -> str:
    """Return the mode from `nvpmodel -q`, which prints "NV Power Mode: 15W" and the number on the next line."""
    if not root.exists(_NVPMODEL):
        return ""
    try:
        done = subprocess.run(
            [f"/{_NVPMODEL}", "-q"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_NVPMODEL_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(rb"NV Power Mode: (\w+)", done.stdout)
    return match[1].decode("ascii") if match else ""


def _stored_mode(root: Root) -> str:
    """Return the mode from "pmode:0002" in the status and "< POWER_MODEL ID=2 NAME=MAXN_SUPER >" in the
    configuration."""
    match = re.search(r"pmode:([0-9]{1,9})", root.read("var/lib/nvpmodel/status") or "")
    if not match:
        return ""
    number = int(match[1])
    models = re.findall(
        r"^\s*<\s*POWER_MODEL\s+ID=([0-9]{1,9})\s+NAME=(\S+)\s*>",
        root.read("etc/nvpmodel.conf") or "",
        re.MULTILINE,
    )
    return next((name for identity, name in models if int(identity) == number), f"mode {number}")

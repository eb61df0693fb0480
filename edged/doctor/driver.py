"""Whether the driver's parts fit each other, and what is built on them.

Pure but for the list of PCI devices (the kernel's `ABI/testing/sysfs-bus-pci`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edged.backends import registry
from edged.device.libraries import as_numbers
from edged.device.nvidia import REBOOT_PENDING
from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong

_NVIDIA_PCI, _DISPLAY = "0x10de", "0x03"
_DRIVER = "install the NVIDIA driver of the box's distribution and restart"


def cards(root: Root) -> dict[str, str]:
    """NVIDIA's graphics cards by PCI address, with the kernel driver that has them; empty where none has."""
    found = {}
    for path in root.glob("sys/bus/pci/devices/*/vendor"):
        folder = path.removesuffix("/vendor")
        is_display = (root.read(f"{folder}/class") or "").startswith(_DISPLAY)
        if (root.read(path) or "").strip() == _NVIDIA_PCI and is_display:
            found[folder.rpartition("/")[2]] = root.real_name(f"{folder}/driver") or ""
    return found


def judge(facts: Mapping[str, str], found: Mapping[str, str]) -> Iterator[Check]:
    """Judges the NVIDIA driver, CUDA and TensorRT, by the box's facts and its cards."""
    module, driver, state = (facts.get(f"nvidia.{name}", "") for name in ("kernel_module", "driver", "state"))
    is_jetson = bool(facts.get("jetson.l4t") or facts.get("jetson.soc"))
    for address, kernel_driver in found.items():
        if kernel_driver != "nvidia":
            has = f"the kernel driver {kernel_driver}" if kernel_driver else "no kernel driver"
            yield wrong(Name.DRIVER, f"the NVIDIA card has {has}, so nothing can compute on it", _DRIVER, address)
    if state == REBOOT_PENDING:
        said = f"libraries are {driver or 'new'} and the loaded kernel module is {module or 'old'}"
        yield wrong(Name.DRIVER, f"{said}; nothing is built until they agree", "restart the box", "nvidia")
    elif state:
        yield wrong(Name.DRIVER, f"the driver does not answer: {state}", "see: nvidia-smi and journalctl -k", "nvidia")
    elif driver and not module and not is_jetson:
        yield wrong(
            Name.DRIVER,
            f"libraries of driver {driver} are installed and its kernel module is not loaded",
            "modprobe nvidia; where that fails, see: journalctl -k and dkms status",
            "nvidia",
        )
    elif module or driver:
        yield ok(Name.DRIVER, f"driver and kernel module are {driver or module}", "nvidia")
    elif is_jetson:
        yield ok(Name.DRIVER, f"Jetson Linux {facts.get('jetson.l4t', 'of an unknown release')} brings it", "nvidia")
    elif not found:
        yield unknown(Name.DRIVER, "not applicable: no NVIDIA device here", "nvidia")
    yield from _cuda(facts)
    yield from _tensorrt(facts)


def _cuda(facts: Mapping[str, str]) -> Iterator[Check]:
    able = facts.get("cuda.driver", "")
    runtime = facts.get("runtime.cuda") or facts.get("cuda.runtime") or ""
    if not able or not runtime:
        return
    if as_numbers(runtime)[:1] > as_numbers(able)[:1]:
        said = f"CUDA {runtime} is installed and the driver runs CUDA {able} at most"
        yield wrong(Name.DRIVER, said, f"update the driver, or install CUDA {as_numbers(able)[0]}", "cuda")
    else:
        yield ok(Name.DRIVER, f"the driver runs CUDA up to {able}, {runtime} is installed", "cuda")


def _tensorrt(facts: Mapping[str, str]) -> Iterator[Check]:
    library, package = facts.get("tensorrt.version", ""), facts.get("runtime.tensorrt", "")
    if not library and not package:
        return
    if not package:
        remedy = "apt install python3-libnvinfer, or make edged's environment with --system-site-packages"
        yield warning(Name.DRIVER, f"libnvinfer {library} is there without its Python module", remedy, "tensorrt")
    elif not library:
        remedy = "install the libraries of that version, or remove the package"
        yield warning(Name.DRIVER, f"the Python package {package} is there without libnvinfer", remedy, "tensorrt")
    elif not registry.agree(library, _plain(package)):
        said = f"libnvinfer is {library} and its Python module {package}"
        yield wrong(Name.DRIVER, said, "install both of one version", "tensorrt")
    else:
        yield ok(Name.DRIVER, f"libnvinfer and its Python module are {library}", "tensorrt")


def _plain(version: str) -> str:
    """Without what a repackaging adds: 10.3.0.post1 -> 10.3.0."""
    return ".".join(part for part in version.split(".") if part.isdecimal())

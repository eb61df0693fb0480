"""Which of OpenVINO's devices a recipe means, and how a model is compiled for it. Imports no runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from edged.backends.contract import Recipe
from edged.device import intel
from edged.device.root import Root
from edged.errors import Unsuitable

# What a recipe's kind of device is called by OpenVINO, and what is to be installed where OpenVINO does not see it.
_KINDS = {
    "cpu": ("CPU", "reinstall the package openvino"),
    "intel-gpu": ("GPU", "install intel-opencl-icd, and let edged's user into the group render"),
    "intel-npu": (
        "NPU",
        "install intel-level-zero-npu and intel-driver-compiler-npu, and let edged's user into the group render",
    ),
}
_UNTOLD = "0000:00:00.0"  # what a driver says that does not know
_PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
# In which precision the parts of a quantised graph compute that are not quantised: on a CPU as before, on the others
# in what they are made for.
_BESIDE_INT8 = {"CPU": "f32", "GPU": "f16", "NPU": "f16"}


class Core(Protocol):
    """What is used here of openvino.Core."""

    @property
    def available_devices(self) -> Sequence[str]: ...

    def get_property(self, device: str, name: str) -> Any: ...


def find(core: Core, device: str, root: Root | None = None) -> str:
    """OpenVINO's name of a recipe's device: "GPU" or "GPU.1" for "intel-gpu:1". Unsuitable when it sees no such.

    The facts number what sysfs shows, of which OpenVINO may see less and in another order; so a device is known by its
    PCI address, and by its being the only one of its kind where OpenVINO does not tell that.
    """
    kind, _, index = device.partition(":")
    if kind not in _KINDS:
        raise Unsuitable(f"OpenVINO serves cpu, intel-gpu and intel-npu devices, not {device}; use another backend")
    name, remedy = _KINDS[kind]
    seen = list(core.available_devices)
    alike = [one for one in seen if one.partition(".")[0] == name]
    number = int(index) if index.isdecimal() else 0
    places = intel.places(root or Root(), kind)
    found = {_place(core, one): one for one in reversed(alike)}  # of two at one place the first
    if number < len(places) and places[number] in found:
        return found[places[number]]
    if number == 0 and len(alike) == 1 and len(places) < 2:
        return alike[0]
    if number < len(places) and "" in found:
        raise Unsuitable(f"OpenVINO does not tell which of its devices {device} is; update openvino and Intel's driver")
    raise Unsuitable(f"OpenVINO does not see {device}, only {', '.join(seen) or 'nothing'}; {remedy}")


def properties(recipe: Recipe, device: str) -> dict[str, str]:
    """What a model is compiled and its blob is imported with. Unsuitable for a precision that the device has not."""
    kind = device.partition(".")[0]
    precision = _BESIDE_INT8[kind] if recipe.precision == "int8" else _PRECISIONS.get(recipe.precision)
    if precision is None:
        raise Unsuitable(f"OpenVINO has no precision {recipe.precision}; there are {', '.join(_PRECISIONS)} and int8")
    if kind == "NPU" and precision != "f16":
        raise Unsuitable(f"the NPU computes in nothing wider than fp16: {recipe.precision} is for other devices")
    wanted = {
        "PERFORMANCE_HINT": "LATENCY",
        # Without it a CPU with bfloat16 answers in bfloat16, and a GPU in float16.
        "INFERENCE_PRECISION_HINT": precision,
        "CACHE_DIR": "",
    }
    if recipe.threads and kind == "CPU":
        wanted["INFERENCE_NUM_THREADS"] = str(recipe.threads)
    return wanted


def _place(core: Core, name: str) -> str:
    """The PCI address of a device as sysfs writes it; empty where it is not told.

    Format of the property: ov::device::PCIInfo in openvino/runtime/properties.hpp.
    """
    try:
        info = core.get_property(name, "DEVICE_PCI_INFO")
        address = f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{info.function:x}"
        return "" if address == _UNTOLD else address
    except Exception:  # the runtime's errors have no common base, and older versions do not know the property
        return ""

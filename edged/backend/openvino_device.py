"""Which of OpenVINO's devices a recipe means, and how a model is compiled for it. Imports no runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from edged.backend.contract import Recipe
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
_PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
# In which precision the parts of a quantised graph compute that are not quantised: on a CPU as before, on the others
# in what they are made for.
_BESIDE_INT8 = {"CPU": "f32", "GPU": "f16", "NPU": "f16"}


class Core(Protocol):
    """What is used here of openvino.Core."""

    @property
    def available_devices(self) -> Sequence[str]: ...

    def get_property(self, device: str, name: str) -> Any: ...


def find(core: Core, device: str) -> str:
    """OpenVINO's name of a recipe's device: "GPU" or "GPU.1" for "intel-gpu:1". Unsuitable when it sees no such."""
    kind, _, index = device.partition(":")
    if kind not in _KINDS:
        raise Unsuitable(f"OpenVINO serves cpu, intel-gpu and intel-npu devices, not {device}; use another backend")
    name, remedy = _KINDS[kind]
    seen = list(core.available_devices)
    alike = sorted((one for one in seen if one.partition(".")[0] == name), key=lambda one: _place(core, one))
    number = int(index) if index.isdecimal() else 0
    if number >= len(alike):
        raise Unsuitable(f"OpenVINO does not see {device}, only {', '.join(seen) or 'nothing'}; {remedy}")
    return alike[number]


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


def _place(core: Core, name: str) -> tuple[Any, ...]:
    """Recipes count by PCI address; OpenVINO puts an integrated GPU first and the rest as the driver does.

    Format of the property: ov::device::PCIInfo in openvino/runtime/properties.hpp. Where it is not told, OpenVINO's
    own number decides.
    """
    number = name.partition(".")[2]
    own = int(number) if number.isdecimal() else 0
    try:
        info = core.get_property(name, "DEVICE_PCI_INFO")
        return (0, info.domain, info.bus, info.device, info.function, own)
    except Exception:  # the runtime's errors have no common base, and older versions do not know the property
        return (1, own)

"""The facts that engines of each backend depend on: if one changes, an engine may no longer be valid.

Some facts are left out, because an engine returns the same answers if they change. These are the kernel and
distribution (`os.*`, `libc.version`), Python, the box's memory and cgroup limits, the number of CPUs, and
`cpu.features` (`cpu.isa` in readable form). The PCI address and the version of the CUDA toolkit (`cuda.version`) are
left out too, but `cuda.runtime` is not. `nvidia.state` only decides whether to build now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from edged.errors import Unsupported

_CPU = (
    "cpu.arch",  # libraries and packed weights are of one architecture
    "cpu.isa",  # layouts and blob headers follow it (NCHWc block of 8 or 16; OpenVINO: "isa=Intel AVX2")
    "cpu.vendor",  # runtimes pick kernels by vendor, too, and a virtual machine may hide the model
    "cpu.model",  # speed and verdict were measured on it, and are not valid if the disk is moved to another box
    "cpu.signature",  # the generation behind a model name such as "AMD EPYC"
)

_ONNXRUNTIME = (
    "runtime.onnxruntime",  # an optimised model records no version and may have operators that only this version knows
    "runtime.onnxruntime_gpu",  # the same module from another package
    "runtime.onnxruntime_openvino",  # the same module from a third package
)

_OPENVINO = ("runtime.openvino",)  # a blob of another version is refused

_CUDA_DEVICE = (
    "gpu.{}.name",  # stands for properties that only CUDA knows and TensorRT warns about: L2, shared memory, textures
    "gpu.{}.compute_capability",  # machine code is of one capability
    "gpu.{}.integrated",  # TensorRT warns if it differs
    "gpu.{}.memory_mb",  # the builder chooses tactics that fit into this memory
    "gpu.{}.memory_bus_bits",  # TensorRT warns if it differs
    "gpu.{}.cores",  # follows from the number of multiprocessors; TensorRT warns if their number differs
)

_NVIDIA = (
    "nvidia.driver",  # some engines stopped running when only the driver changed (TensorRT issue 3829)
    "nvidia.kernel_module",  # the driver's kernel half; the versions differ between an upgrade and the reboot
    "cuda.runtime",  # libcudart of the system: kernels are compiled and launched through it
    "runtime.cuda",  # the same from a wheel
    "jetson.l4t",  # driver, firmware and CUDA of a Jetson come as one
    "jetson.module",  # distinguishes modules of one SoC and GPU name, which differ in multiprocessors and memory
    "jetson.soc",  # the GPU's generation if no driver reports it
    "jetson.power_mode",  # may switch multiprocessors off; timings are of one mode
)

_CUDNN = (
    "cudnn.version",  # ONNX Runtime's CUDA provider uses its convolutions
    "runtime.cudnn",  # the same from a wheel
)

_TENSORRT = (
    "tensorrt.version",  # an engine loads only in exactly the version (four numbers) that built it
    "runtime.tensorrt",  # the Python package that loads the library
    "cpu.arch",  # an engine is for hosts of one CPU architecture, too
)

_TENSORRT_RTX = (
    "runtime.tensorrt_rtx",  # a separate library, independent of the system's TensorRT
    "cpu.arch",  # as for TensorRT
)

_INTEL_GPU = (
    "cpu.arch",  # the part of the blob for the host
    "intel.gpu.{}.device",  # kernels are compiled for one GPU
    "intel.gpu.{}.driver",  # i915 or xe: other limits and other paths in the driver
    "intel.gpu.{}.driver_version",  # of a driver that was built outside the kernel
    "intel.opencl",  # the driver whose compiler made the kernels
    "intel.level_zero_gpu",  # the same driver through its other interface
    "intel.graphics_compiler",  # the driver's compiler, a separate package
)

_INTEL_NPU = (
    "cpu.arch",  # the part of the blob for the host
    "intel.npu.{}.device",  # a blob is of one NPU generation
    "intel.npu.{}.driver",  # the kernel's half of the driver
    "intel.npu.{}.driver_version",  # of a driver that was built outside the kernel
    "intel.npu_compiler",  # the compiler in the driver makes the blob
    "intel.level_zero_npu",  # loads the blob
    "intel.npu_firmware",  # runs the blob
)

_RELEVANT: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("onnxruntime", "cpu"): _ONNXRUNTIME + _CPU,
    # The CPU's facts, because the CPU may run some nodes of the graph.
    ("onnxruntime", "cuda"): _ONNXRUNTIME + _CPU + _CUDA_DEVICE + _NVIDIA + _CUDNN,
    ("openvino", "cpu"): _OPENVINO + _CPU,
    ("openvino", "intel-gpu"): _OPENVINO + _INTEL_GPU,
    ("openvino", "intel-npu"): _OPENVINO + _INTEL_NPU,
    ("tensorrt", "cuda"): _TENSORRT + _CUDA_DEVICE + _NVIDIA,
    ("tensorrt_rtx", "cuda"): _TENSORRT_RTX + _CUDA_DEVICE + _NVIDIA,
}


# Facts that are not compiled into an engine. If only such facts change, the engine may still work, so edged verifies it
# again instead of a build. The instruction set is not such a fact.
_DRIVER = re.compile(
    r"""(?x)
    nvidia\.(driver | kernel_module) | jetson\.(l4t | power_mode)
    | intel\.gpu\.\d+\.(driver | driver_version) | intel\.(opencl | level_zero_gpu | graphics_compiler)
    | intel\.npu\.\d+\.(driver | driver_version) | intel\.(level_zero_npu | npu_compiler | npu_firmware)
    | cpu\.(vendor | model | signature)
    """
)


def is_driver(fact: str) -> bool:
    """Whether a fact is about a driver or the processor's model. If only such facts changed, engines are not rebuilt at
    once: they are tested first."""
    return _DRIVER.fullmatch(fact) is not None


def relevant(backend: str, device_kind: str, index: int = 0) -> tuple[str, ...]:
    """Return the names of the facts that a backend's engines depend on, for device `index` of a kind.

    In an engine's key, a fact that the box lacks has the value "absent". Only engines of the null backend depend on no
    facts. Raises Unsupported if the backend builds no engines for devices of this kind.
    """
    if backend == "null":
        return ()
    try:
        names = _RELEVANT[backend, device_kind]
    except KeyError:
        raise Unsupported(f"backend {backend} builds no engines for devices of kind {device_kind}") from None
    return tuple(name.format(index) for name in names)

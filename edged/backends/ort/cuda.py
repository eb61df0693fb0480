"""ONNX Runtime's CUDA provider: its options, its libraries, and the meaning of its errors.

Names and values of the options: onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import re
from pathlib import Path

import onnxruntime as ort

from edged import packages
from edged.backends import cuda
from edged.errors import EngineUnusable, Unsuitable

PROVIDER = "CUDAExecutionProvider"
_LIBRARY = "libonnxruntime_providers_cuda.so"
_CUDNN = "libcudnn.so.9"  # of every ONNX Runtime since 1.19
_ABSENT = re.compile(r"(lib[\w.+-]+\.so[.\d]*): cannot open shared object file")
_FAILURE = re.compile(r"CUDA failure (\d+): ([^;]+?)\s*;")
_NO_SUCH = re.compile(r"(?i)invalid device id")
_LONGEST = 400  # characters of the runtime's message
# Remedies, by the number of the cudaError (driver_types.h).
_REMEDIES = {
    2: "free some of its memory",
    35: "install the NVIDIA driver, or update it if it is older than the CUDA of this ONNX Runtime",
    100: "see `nvidia-smi`, and check whether CUDA_VISIBLE_DEVICES hides the GPU",
    101: "see `nvidia-smi`, and check whether CUDA_VISIBLE_DEVICES hides the GPU",
    209: "this ONNX Runtime has no code for this GPU; `edged doctor` names the package that has such code",
    803: "restart the box: the versions of the driver and its kernel module differ",
}
_INSTALL = (
    f"install CUDA and cuDNN: {packages.install('onnxruntime-gpu[cuda,cudnn]')}, on a Jetson apt install nvidia-jetpack"
)


def options(index: int, precision: str) -> dict[str, str]:
    """Return the provider's options for device `index`, counted in the order of PCI addresses."""
    return {
        "device_id": str(index),
        # The default doubles the arena each time it grows, in memory that cameras and other engines share.
        "arena_extend_strategy": "kSameAsRequested",
        # By default TensorFloat-32 silently rounds float32 factors to 10 bits of mantissa. Only the precision tf32
        # allows it.
        "use_tf32": "1" if precision == "tf32" else "0",
        # With the default, EXHAUSTIVE, every session times algorithms. So it opens slowly, uses the largest workspaces,
        # and may use other algorithms than the verified session. HEURISTIC picks the same algorithms each time.
        "cudnn_conv_algo_search": "HEURISTIC",
    }


@functools.cache
def _preload() -> None:
    """Load CUDA's and cuDNN's libraries from NVIDIA's wheels, if these are installed."""
    # `preload_dlls` prints the names of missing libraries. But standard output may be a channel for messages.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        ort.preload_dlls(directory="")


def prepare(device: str) -> None:
    """Prepare the process for sessions of the provider. Raises Unsuitable if a package or library is missing.

    Raises EngineUnusable if another GPU has the device's number in this process.
    """
    if PROVIDER not in ort.get_available_providers():
        raise Unsuitable(f"this onnxruntime cannot use {device}; install onnxruntime-gpu instead of onnxruntime")
    _preload()
    # Without cuDNN, newer providers (such as that of 1.31) silently replace cuDNN's kernels by their own, if possible.
    library = _not_loadable(_CUDNN)
    if library is not None:
        raise _missing(device, library)
    number = int(device.partition(":")[2])
    cuda.require_number(number, cuda.pci_address(number))


def missing_library() -> str | None:
    """Return the first library that the provider needs but the loader does not find; None if the loader finds all. ONNX
    Runtime reports a missing library only in its log."""
    return _not_loadable(str(Path(ort.__file__).parent / "capi" / _LIBRARY))


def refusal(device: str, text: str) -> EngineUnusable:
    """Return the error for a session that the runtime refused with the message `text`: Unsuitable if a library is
    missing, otherwise EngineUnusable."""
    library = missing_library()
    if library is not None:
        return _missing(device, library)
    return failure(device, text) or EngineUnusable(f"ONNX Runtime refuses the model on {device}: {text[:_LONGEST]}")


def failure(device: str, text: str) -> EngineUnusable | None:
    """Return the error if a message of the runtime is about libraries or the device; None if it is about the model."""
    library = _absent(text)
    if library is not None:
        return _missing(device, library)
    if _NO_SUCH.search(text):
        return EngineUnusable(f"CUDA does not see {device}; {_REMEDIES[101]}")
    found = _FAILURE.search(text)
    if found is None:
        return None
    remedy = _REMEDIES.get(int(found[1]), "see the kernel's log: journalctl -k")
    return EngineUnusable(f"{device} cannot be used: {found[2]} (CUDA error {found[1]}); {remedy}")


def _missing(device: str, library: str) -> Unsuitable:
    remedy = "install the NVIDIA driver" if library.startswith("libcuda.so") else _INSTALL
    return Unsuitable(f"ONNX Runtime cannot use {device}: {library} is missing; {remedy}")


def _not_loadable(library: str) -> str | None:
    """Return the missing library, which is `library` or one of its dependencies; None if the loader finds all."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return _absent(str(error))
    return None


def _absent(text: str) -> str | None:
    found = _ABSENT.search(text)
    return None if found is None or found[1] == _LIBRARY else found[1]

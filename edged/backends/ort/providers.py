"""Which execution providers this ONNX Runtime has, and whether one of them really works here.

`get_available_providers` lists what the package was built with, also where the libraries cannot be loaded; asked for
such a provider, ONNX Runtime answers with a session on the CPU. Only a session tells.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edged.backends import one_node
from edged.backends.contract import UNOPTIMISED, one_line
from edged.backends.ort import cuda, runtime
from edged.errors import EngineUnusable

_OPSET, _IR = 13, 7  # old enough for every version that is supported
_AZURE = "AzureExecutionProvider"  # asks a service on the network, which edged never does
_LIBRARY = {
    cuda.PROVIDER: "cuda",
    "TensorrtExecutionProvider": "tensorrt",
    "NvTensorRTRTXExecutionProvider": "nv_tensorrt_rtx",
    "OpenVINOExecutionProvider": "openvino",
    "MIGraphXExecutionProvider": "migraphx",
    "ROCMExecutionProvider": "rocm",
    "QNNExecutionProvider": "qnn",
    "DnnlExecutionProvider": "dnnl",
}


def available() -> tuple[str, ...]:
    """The providers that the package was built with and that compute on this box."""
    return tuple(name for name in ort.get_available_providers() if name != _AZURE)


def attempt(name: str) -> None:
    """Opens a session of one node with the provider alone and runs it; EngineUnusable with the reason, which names the
    library that is missing where it is that."""
    if name not in ort.get_available_providers():
        raise EngineUnusable(f"this ONNX Runtime was built without {name}")
    options = runtime.session_options(UNOPTIMISED, 1)
    model = one_node.relu(_OPSET, _IR)
    try:
        session = ort.InferenceSession(model, options, providers=[name], enable_fallback=0)
    except Exception as error:  # the runtime's errors have no common base of their own
        raise EngineUnusable(_missing(name) or one_line(error)) from error
    if name not in session.get_providers():
        reason = _missing(name) or "ONNX Runtime does not say why; see its log with ORT_LOG_LEVEL=1"
        raise EngineUnusable(reason)
    given = np.array([[-1.0, 0.0, 1.0, 2.0]], dtype=np.float32)
    try:
        (answer,) = session.run([one_node.NAMES[1]], {one_node.NAMES[0]: given})
    except Exception as error:
        raise EngineUnusable(one_line(error)) from error
    if not np.array_equal(answer, np.maximum(given, 0)):
        raise EngineUnusable(f"it answers {answer.tolist()} for the largest of {given.tolist()} and 0")


def _missing(name: str) -> str:
    """What the loader says of the provider's library; empty where it loads, or the provider has none of its own."""
    if name not in _LIBRARY:
        return ""
    library = f"libonnxruntime_providers_{_LIBRARY[name]}.so"
    folder = Path(ort.__file__).parent / "capi"
    try:
        ctypes.CDLL(str(folder / library))
    except OSError as error:
        return f"{library} cannot be loaded: {one_line(error).replace(f'{folder}/', '')}"
    return ""

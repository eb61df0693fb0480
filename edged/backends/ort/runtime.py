"""Sessions of ONNX Runtime that run on the requested provider, or fail.

If the libraries of a provider cannot be loaded, ONNX Runtime logs the error and returns a session on the CPU. The
functions of this module raise an error with the reason instead.
"""

from __future__ import annotations

import ctypes
import functools
import resource
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime as ort

from edged.backends import one_node
from edged.backends.contract import UNOPTIMISED, Recipe, one_line
from edged.backends.ort import cuda
from edged.errors import EngineUnusable, Unsuitable

ort.set_default_logger_severity(4)

_LAYOUT = getattr(ort.GraphOptimizationLevel, "ORT_ENABLE_LAYOUT", None)
LEVELS = {
    UNOPTIMISED: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    # Since 1.22 there is a level with layout optimisations only, between `extended` and `all`.
    **({"layout": _LAYOUT} if _LAYOUT is not None else {}),
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
CPU_PROVIDER = "CPUExecutionProvider"
_SPIN_US = "20"  # microseconds that a thread spins for its next operator before it sleeps
_ARENA_SHARE = 0.75  # of the process's memory limit; weights, pictures and threads need the rest
# ONNX Runtime's error if a node would run on the CPU although the options forbid the CPU.
_FORBIDDEN = "fallback to CPU EP has been explicitly disabled"
_OPSET, _IR = 13, 7  # every supported version of ONNX Runtime accepts these
_AZURE = "AzureExecutionProvider"  # calls a network service, which edged never does
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


class Provider(msgspec.Struct, frozen=True):
    """An execution provider, its options, and the name of its device in recipes."""

    name: str
    options: dict[str, str] = {}
    device: str = "cpu"

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU_PROVIDER


CPU = Provider(CPU_PROVIDER)


class CpuForbidden(EngineUnusable):
    """Some node would run on the CPU although the options forbid it."""


def version() -> str:
    """Return the version of the loaded runtime, in the form of its package's version."""
    return str(ort.__version__)


def provider(recipe: Recipe) -> Provider:
    """Return the provider for the recipe. Raises Unsuitable if edged uses no provider for the recipe's device."""
    kind, _, index = recipe.device.partition(":")
    if kind == "cpu":
        return CPU
    if kind == "cuda" and index.isdecimal():
        return Provider(cuda.PROVIDER, cuda.options(int(index), recipe.precision), recipe.device)
    raise Unsuitable(f"ONNX Runtime serves only cpu and cuda devices, not {recipe.device}; use another backend")


def session_options(optimization: str, threads: int) -> ort.SessionOptions:
    """Return the common options of sessions: `threads` as in a recipe, `optimization` one of `LEVELS`."""
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[optimization]
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # Threads that spin between two frames take cores from the cameras. But if threads sleep between two operators,
    # inference with two threads is a fifth slower and takes more processor time. So threads spin briefly.
    if _can_limit_spinning():
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    else:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _can_limit_spinning() -> bool:
    """Whether the spinning time can be set. Before 1.27, threads spin for a fixed number of loops (3 to 500 ms)."""
    return tuple(int(part) for part in version().split(".")[:2]) >= (1, 27)


def read_weights(options: ort.SessionOptions, folder: str) -> None:
    """Set the folder of the external weights of a model that is passed as bytes."""
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)


def forbid_cpu(options: ort.SessionOptions) -> None:
    """Make `create` raise CpuForbidden if a node of the main graph would run on the CPU."""
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")


def create(source: str | bytes, options: ort.SessionOptions, where: Provider = CPU) -> ort.InferenceSession:
    """Create a session of a model (a path, or the content of the file) that really uses the provider `where`.

    Raises Unsuitable if the provider or its libraries are not installed. Raises CpuForbidden if `forbid_cpu` was called
    and a node would run on the CPU, or another EngineUnusable if the runtime refuses the model or the device.
    """
    is_cuda = where.name == cuda.PROVIDER
    if is_cuda:
        cuda.prepare(where.device)
    try:
        if where.is_cpu and _is_arena_shared():
            options.add_session_config_entry("session.use_env_allocators", "1")
            # Weights outside the arena are freed with their session; memory in the arena stays for later sessions.
            options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        wanted = [(where.name, where.options)]
        session = ort.InferenceSession(source, options, providers=wanted, enable_fallback=0)
    except Exception as error:  # the runtime's errors have no common base of their own
        text = one_line(error, limit=4000)  # the reason may come after a long path in the runtime's sources
        # If a library of the provider is missing, all nodes would run on the CPU. Then the library is the real reason.
        if _FORBIDDEN in text and not (is_cuda and cuda.missing_library()):
            raise CpuForbidden(f"some of the model's nodes would run on the CPU instead of {where.device}") from error
        if is_cuda:
            raise cuda.refusal(where.device, text) from error
        raise EngineUnusable(f"ONNX Runtime refuses the model: {one_line(error)}") from error
    if where.name not in session.get_providers():
        raise cuda.refusal(where.device, f"{where.name} was not loaded")
    return session


@functools.cache
def _is_arena_shared() -> bool:
    """Whether the sessions of this process share an arena: only if the process's memory is limited. The first call
    creates the shared arena.

    A default arena doubles its allocation each time it grows. If that fails, it allocates all memory that is left. So
    one allocation that is too large would leave no memory for anything else. The shared arena has a maximum.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit == resource.RLIM_INFINITY:
        return False
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    most = int(limit * _ARENA_SHARE)
    arena = {
        "max_mem": most,
        "arena_extend_strategy": 0,
        "initial_chunk_size_bytes": -1,
        "max_dead_bytes_per_chunk": -1,
    }
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(arena))
    return True


def available_providers() -> tuple[str, ...]:
    """Return the providers that the package was built with, except the one that calls a network service.

    The result includes providers whose libraries cannot be loaded, because only a session shows this (`try_provider`).
    """
    return tuple(name for name in ort.get_available_providers() if name != _AZURE)


def try_provider(name: str) -> None:
    """Run a one-node model with only this provider. Raises EngineUnusable, which names a missing library."""
    if name not in ort.get_available_providers():
        raise EngineUnusable(f"this ONNX Runtime was built without {name}")
    options = session_options(UNOPTIMISED, 1)
    model = one_node.relu(_OPSET, _IR)
    try:
        session = ort.InferenceSession(model, options, providers=[name], enable_fallback=0)
    except Exception as error:  # the runtime's errors have no common base of their own
        raise EngineUnusable(_missing(name) or one_line(error)) from error
    if name not in session.get_providers():
        reason = _missing(name) or "ONNX Runtime does not load it, and gives no reason"
        raise EngineUnusable(reason)
    given = np.array([[-1.0, 0.0, 1.0, 2.0]], dtype=np.float32)
    try:
        (answer,) = session.run([one_node.NAMES[1]], {one_node.NAMES[0]: given})
    except Exception as error:
        raise EngineUnusable(one_line(error)) from error
    if not np.array_equal(answer, np.maximum(given, 0)):
        raise EngineUnusable(
            f"in a test the provider returned {answer.tolist()} for Relu of {given.tolist()}, which is wrong"
        )


def _missing(name: str) -> str:
    """Return the loader's error for the provider's library; empty if the library loads or the provider has none."""
    if name not in _LIBRARY:
        return ""
    library = f"libonnxruntime_providers_{_LIBRARY[name]}.so"
    folder = Path(ort.__file__).parent / "capi"
    try:
        ctypes.CDLL(str(folder / library))
    except OSError as error:
        return f"{library} cannot be loaded: {one_line(error).replace(f'{folder}/', '')}"
    return ""

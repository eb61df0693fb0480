"""What of TensorRT's Python modules is used, as types; which module that is, and which version was really loaded.

TensorRT's generations and TensorRT-RTX have one interface with pieces missing here and there. What all of them have is
in the protocols; whatever one of them lacks is asked for by name with `find`, and never concluded from a version.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, cast

from edged.device import libraries
from edged.device.root import Root

# The runtime's names of what has a form outside an engine, and the protocol's. Models have other datatypes, too; the
# runtime narrows some of them in silence.
DATATYPES = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "UINT8": "UINT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "BOOL": "BOOL",
}


class Named(Protocol):
    """A member of one of the runtime's enumerations."""

    @property
    def name(self) -> str: ...


class Tensor(Protocol):
    name: str
    dtype: Named
    is_shape_tensor: bool

    @property
    def shape(self) -> Sequence[int]: ...


class Layer(Protocol):
    name: str
    type: Named
    num_inputs: int
    num_outputs: int

    def get_input(self, index: int) -> Tensor | None: ...
    def get_output(self, index: int) -> Tensor | None: ...


class Network(Protocol):
    num_inputs: int
    num_outputs: int
    num_layers: int

    def get_input(self, index: int) -> Tensor: ...
    def get_output(self, index: int) -> Tensor: ...
    def get_layer(self, index: int) -> Layer: ...


class ParserError(Protocol):
    """Newer ones have `node_name()` and `node_operator()`, too."""

    def code(self) -> Named: ...
    def desc(self) -> str: ...
    def node(self) -> int: ...


class Parser(Protocol):
    num_errors: int

    def parse_from_file(self, model: str) -> bool: ...
    def get_error(self, index: int) -> ParserError: ...


class TimingCache(Protocol):
    def serialize(self) -> memoryview: ...


class OptimizationProfile(Protocol):
    def set_shape(self, name: str, minimum: Sequence[int], optimum: Sequence[int], maximum: Sequence[int]) -> None: ...


class Config(Protocol):
    """Newer ones have `progress_monitor`, too."""

    builder_optimization_level: int
    profiling_verbosity: object
    hardware_compatibility_level: object
    default_device_type: object
    DLA_core: int

    def set_flag(self, flag: object) -> None: ...
    def clear_flag(self, flag: object) -> None: ...
    def set_memory_pool_limit(self, pool: object, size: int) -> None: ...
    def add_optimization_profile(self, profile: OptimizationProfile) -> int: ...
    def create_timing_cache(self, data: bytes) -> TimingCache | None: ...
    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool: ...
    def can_run_on_DLA(self, layer: Layer) -> bool: ...


class TargetConfig(Config, Protocol):
    """TensorRT-RTX's, which builds for other devices than the one that is here."""

    num_compute_capabilities: int

    def set_compute_capability(self, capability: object, index: int) -> bool: ...


class MonitoredConfig(Config, Protocol):
    """Of those that report progress."""

    progress_monitor: object


class Builder(Protocol):
    num_DLA_cores: int

    def create_network(self, flags: int) -> Network: ...
    def create_builder_config(self) -> Config: ...
    def create_optimization_profile(self) -> OptimizationProfile: ...
    def build_serialized_network(self, network: Network, config: Config) -> memoryview | None: ...


class Inspector(Protocol):
    def get_engine_information(self, form: object) -> str: ...


class Context(Protocol):
    """What runs an engine. Newer ones have `nvtx_verbosity`, too."""

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool: ...
    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool: ...
    def get_tensor_shape(self, name: str) -> Iterable[int]: ...
    def set_tensor_address(self, name: str, memory: int) -> bool: ...
    def execute_async_v3(self, stream_handle: int) -> bool: ...


class Engine(Protocol):
    """The inspector is for builds, the rest for sessions."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_io_tensors(self) -> int: ...
    @property
    def num_optimization_profiles(self) -> int: ...

    def get_tensor_name(self, index: int) -> str: ...
    def get_tensor_mode(self, name: str) -> Named: ...
    def get_tensor_dtype(self, name: str) -> Named: ...
    def get_tensor_shape(self, name: str) -> Iterable[int]: ...
    def get_tensor_profile_shape(self, name: str, profile_index: int) -> Sequence[Iterable[int]]: ...
    def create_execution_context(self) -> Context | None: ...
    def create_engine_inspector(self) -> Inspector: ...


class Runtime(Protocol):
    engine_host_code_allowed: bool
    DLA_core: int

    def deserialize_cuda_engine(self, plan: bytes | memoryview) -> Engine | None: ...


class Trt(Protocol):
    """The module."""

    __version__: str
    ILogger: type
    Builder: Callable[[object], Builder]
    OnnxParser: Callable[[Network, object], Parser]
    Runtime: Callable[[object], Runtime]


def load(names: Sequence[str]) -> Trt:
    """Import the first module that exists; ImportError with the reason if none exists or it cannot be loaded."""
    for name in names:
        try:
            return cast(Trt, importlib.import_module(name))
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        except OSError as error:  # a library that it is made of
            raise ImportError(f"{name}: {error}") from error
    raise ImportError(f"there is no Python module {' or '.join(names)}")


def find(owner: object, path: str) -> object | None:
    """What a dotted path leads to, such as `BuilderFlag.FP16`; None if this runtime has no such thing."""
    found: object | None = owner
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def version(trt: Trt, library: str) -> str:
    """The four-part version of the shared library that this process loaded, not of the Python package that loaded it.

    `library` is the beginning of its file name. A package may have three parts, or be installed with another library.
    """
    path = _loaded(library)
    if path is None:
        return _plain(trt.__version__)
    try:
        native = ctypes.CDLL(path)  # loaded already, so this only finds it
        numbers = [getattr(native, f"getInferLib{part}Version")() for part in ("Major", "Minor", "Patch", "Build")]
        return ".".join(map(str, numbers))
    except (OSError, AttributeError):  # TensorRT 8 has no such functions
        return libraries.marked_version(Root(), path.lstrip("/")) or _plain(trt.__version__)


def _loaded(library: str) -> str | None:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[5] for line in lines if library in line)
    return next((path for path in paths if path.rpartition("/")[2].startswith(library)), None)


def _plain(version: str) -> str:
    """`10.13.3.9.post1` is a package of 10.13.3.9."""
    match = re.match(r"\d+(\.\d+){0,3}", version)
    return match[0] if match else version

"""Imports a TensorRT module and finds its version. Declares types for the parts of the module that edged uses.

TensorRT's generations and TensorRT-RTX have nearly the same interface, but each lacks some parts. The protocols declare
the common parts. All other parts are looked up by name with `find`; the version does not decide.
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

# Datatypes of inputs and outputs: the runtime's name -> the name in the Open Inference Protocol. Models may have other
# datatypes, some of which the runtime silently narrows.
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
    """An error of the ONNX parser. Newer versions also have `node_name()` and `node_operator()`."""

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
    """The configuration of a build. Newer versions also have `progress_monitor`."""

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
    """The configuration of TensorRT-RTX, which can also build for devices that this box does not have."""

    num_compute_capabilities: int

    def set_compute_capability(self, capability: object, index: int) -> bool: ...


class MonitoredConfig(Config, Protocol):
    """The configuration of a build in versions of TensorRT that report progress."""

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
    """An execution context, which runs an engine. Newer versions also have `nvtx_verbosity`."""

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool: ...
    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool: ...
    def get_tensor_shape(self, name: str) -> Iterable[int]: ...
    def set_tensor_address(self, name: str, memory: int) -> bool: ...
    def execute_async_v3(self, stream_handle: int) -> bool: ...


class Engine(Protocol):
    """An engine in memory. Builds use `create_engine_inspector` and `num_layers`; sessions use the other members."""

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
    """TensorRT's Python module."""

    __version__: str
    ILogger: type
    Builder: Callable[[object], Builder]
    OnnxParser: Callable[[Network, object], Parser]
    Runtime: Callable[[object], Runtime]


def load(names: Sequence[str]) -> Trt:
    """Import the first module that exists. Raises ImportError with the reason if none exists or loading fails."""
    for name in names:
        try:
            return cast(Trt, importlib.import_module(name))
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        except OSError as error:  # one of the module's shared libraries cannot be loaded
            raise ImportError(f"{name}: {error}") from error
    raise ImportError(f"no Python module {' or '.join(names)} is installed")


def find(owner: object, path: str) -> object | None:
    """Return the attribute at a dotted path, such as `BuilderFlag.FP16`; None if this runtime does not have it."""
    found: object | None = owner
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def version(trt: Trt, library: str) -> str:
    """Return the four-part version of the shared library that this process has loaded.

    `library` is the start of the library's file name. The Python package's version is only a fallback: it may have
    three parts, and the package may be installed with another library.
    """
    path = _loaded(library)
    if path is None:
        return _plain(trt.__version__)
    try:
        native = ctypes.CDLL(path)  # it is loaded already, so this only returns a handle
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
    """Return the numeric part of a package's version: `10.13.3.9` of `10.13.3.9.post1`."""
    match = re.match(r"\d+(\.\d+){0,3}", version)
    return match[0] if match else version

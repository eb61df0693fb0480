"""The CUDA contract by pycuda. It has no graphs: those come from cuda-bindings where that is installed too.

pycuda keeps a stack of contexts for each thread and frees an object only under the context that it was made in, so
everything happens inside `current`, the freeing too. It ends the process when a thread ends with a context on its
stack, which `current` never leaves.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from pycuda import driver

from edged.backends.contract import one_line
from edged.backends.cuda.contract import (
    Device,
    DeviceMemory,
    DeviceProperties,
    Event,
    Graph,
    HostMemory,
    MemoryInfo,
    Stream,
    Versions,
    require_within,
    version_text,
)
from edged.errors import EngineUnusable

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, for which pycuda has no name
_BLOCKING = driver.event_flags.BLOCKING_SYNC  # sleep instead of spinning: cameras need the processor
_UNTIMED = driver.event_flags.DISABLE_TIMING
_MAPPED = driver.host_alloc_flags.DEVICEMAP
_WHY_NO_GRAPHS = "pycuda has no graphs; install cuda-bindings beside it"


def _call(function: Callable[..., Any], *arguments: object) -> Any:  # the package has no types
    """pycuda's errors as edged's; their text begins with the call that failed, and has the driver's own words."""
    try:
        return function(*arguments)
    except driver.Error as error:
        raise EngineUnusable(one_line(error)) from error


class _DeviceMemory:
    def __init__(self, size: int) -> None:
        self.size = size
        self._raw = _call(driver.mem_alloc, size)
        self.address = int(self._raw)

    def free(self) -> None:
        raw, self._raw, self.address = self._raw, None, 0
        if raw is not None:
            _call(raw.free)


class _HostMemory:
    def __init__(self, size: int, mapped: bool) -> None:
        self.size = size
        self.array: npt.NDArray[np.uint8] = _call(
            driver.pagelocked_empty, size, np.uint8, "C", _MAPPED if mapped else 0
        )
        self._raw: Any = self.array.base
        self.device_address = 0
        if mapped:
            try:
                self.device_address = int(_call(self._raw.get_device_pointer))
            except BaseException:
                self.free()
                raise

    def free(self) -> None:
        raw, self._raw, self.device_address = self._raw, None, 0
        if raw is not None:
            del self.array
            _call(raw.free)


class _Event:
    def __init__(self, timed: bool) -> None:
        self.raw = _call(driver.Event, _BLOCKING if timed else _BLOCKING | _UNTIMED)

    def synchronize(self) -> None:
        _call(self.raw.synchronize)

    def is_done(self) -> bool:
        return bool(_call(self.raw.query))

    def elapsed_ms(self, start: Event) -> float:
        assert isinstance(start, _Event)
        return float(_call(self.raw.time_since, start.raw))

    def close(self) -> None:
        self.raw = None  # its last reference


class _Stream:
    def __init__(self, graphs: ModuleType | None) -> None:
        self._graphs = graphs
        self._raw = _call(driver.Stream, _NON_BLOCKING)
        self.handle = int(self._raw.handle)

    def copy_in(self, memory: DeviceMemory, host: HostMemory, size: int) -> None:
        require_within(size, memory, host)
        _call(driver.memcpy_htod_async, memory.address, host.array[:size], self._raw)

    def copy_out(self, host: HostMemory, memory: DeviceMemory, size: int) -> None:
        require_within(size, memory, host)
        _call(driver.memcpy_dtoh_async, host.array[:size], memory.address, self._raw)

    def record(self, event: Event) -> None:
        assert isinstance(event, _Event)
        _call(event.raw.record, self._raw)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _Event)
        _call(self._raw.wait_for_event, event.raw)

    def capture(self, work: Callable[[], None]) -> Graph:
        if self._graphs is None:
            raise EngineUnusable(_WHY_NO_GRAPHS)
        graph: Graph = self._graphs.capture(self.handle, work)
        return graph

    def launch(self, graph: Graph) -> None:
        assert self._graphs is not None
        assert isinstance(graph, self._graphs.DriverGraph)
        graph.launch(self.handle)

    def synchronize(self) -> None:
        _call(self._raw.synchronize)

    def close(self) -> None:
        self._raw = None  # its last reference


class _Current:
    """Holds nothing, so that any thread may be in it."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def __enter__(self) -> None:
        _call(self.context.push)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _call(driver.Context.pop)


class _Device:
    library = "pycuda"

    def __init__(self, number: int) -> None:
        _call(driver.init)
        device = _call(driver.Device, number)
        self._graphs = _find_graphs()
        self.why_no_graphs = _WHY_NO_GRAPHS if self._graphs is None else ""
        self.properties = _properties(device)
        major, minor, _ = _call(driver.get_version)
        self.versions = Versions(version_text(int(_call(driver.get_driver_version))), f"{major}.{minor}")
        self._current: _Current | None = _Current(_call(device.retain_primary_context))

    def current(self) -> _Current:
        assert self._current is not None
        return self._current

    def memory(self) -> MemoryInfo:
        free, total = _call(driver.mem_get_info)
        return MemoryInfo(int(free), int(total))

    def allocate(self, size: int) -> DeviceMemory:
        return _DeviceMemory(size)

    def allocate_host(self, size: int, *, mapped: bool = False) -> HostMemory:
        return _HostMemory(size, mapped)

    def stream(self) -> Stream:
        return _Stream(self._graphs)

    def event(self, *, timed: bool = False) -> Event:
        return _Event(timed)

    def close(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            # A context is only released by the thread that opened it, or by one in which it is current.
            _call(current.context.push)
            _call(current.context.detach)


def _find_graphs() -> ModuleType | None:
    try:
        return importlib.import_module("edged.backends.cuda.graphs")
    except ImportError:
        return None


def _properties(device: Any) -> DeviceProperties:
    def ask(name: str) -> int:
        return int(_call(device.get_attribute, getattr(driver.device_attribute, name)))

    return DeviceProperties(
        name=str(_call(device.name)).strip(),
        pci_address=str(_call(device.pci_bus_id)).lower(),
        compute_capability=f"{ask('COMPUTE_CAPABILITY_MAJOR')}.{ask('COMPUTE_CAPABILITY_MINOR')}",
        multiprocessors=ask("MULTIPROCESSOR_COUNT"),
        total_memory=int(_call(device.total_memory)),
        memory_bus_bits=ask("GLOBAL_MEMORY_BUS_WIDTH"),
        l2_bytes=ask("L2_CACHE_SIZE"),
        shared_bytes_per_block=ask("MAX_SHARED_MEMORY_PER_BLOCK"),
        shared_bytes_per_multiprocessor=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        texture_alignment=ask("TEXTURE_ALIGNMENT"),
        is_integrated=bool(ask("INTEGRATED")),
        can_map_host_memory=bool(ask("CAN_MAP_HOST_MEMORY")),
    )


def open_device(number: int) -> Device:
    """See `edged.backends.cuda.devices.open_device`."""
    return _Device(number)

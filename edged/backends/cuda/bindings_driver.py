"""The CUDA contract by cuda-bindings, NVIDIA's own package: for boxes where pycuda cannot be built."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import TracebackType

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

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
from edged.backends.cuda.graphs import DriverGraph, call, capture

_ATTRIBUTE = driver.CUdevice_attribute
_BLOCKING = int(driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC)  # sleep instead of spinning: cameras need the processor
_UNTIMED = int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
_NON_BLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
_MAPPED = int(driver.CU_MEMHOSTALLOC_DEVICEMAP)


class _DeviceMemory:
    def __init__(self, size: int) -> None:
        self.size = size
        self.address = int(call(driver.cuMemAlloc, size))

    def free(self) -> None:
        address, self.address = self.address, 0
        if address:
            call(driver.cuMemFree, address)


class _HostMemory:
    def __init__(self, size: int, mapped: bool) -> None:
        self.size = size
        self.address = int(call(driver.cuMemHostAlloc, size, _MAPPED if mapped else 0))
        self.array: npt.NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))
        self.device_address = 0
        if mapped:
            try:
                self.device_address = int(call(driver.cuMemHostGetDevicePointer, self.address, 0))
            except BaseException:
                self.free()
                raise

    def free(self) -> None:
        address, self.address, self.device_address = self.address, 0, 0
        if address:
            del self.array
            call(driver.cuMemFreeHost, address)


class _Event:
    def __init__(self, timed: bool) -> None:
        self.raw = call(driver.cuEventCreate, _BLOCKING if timed else _BLOCKING | _UNTIMED)

    def synchronize(self) -> None:
        call(driver.cuEventSynchronize, self.raw)

    def is_done(self) -> bool:
        (error,) = driver.cuEventQuery(self.raw)
        if error == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        call(driver.cuEventQuery, self.raw)
        return True

    def elapsed_ms(self, start: Event) -> float:
        assert isinstance(start, _Event)
        return float(call(driver.cuEventElapsedTime, start.raw, self.raw))

    def close(self) -> None:
        raw, self.raw = self.raw, None
        if raw is not None:
            call(driver.cuEventDestroy, raw)


class _Stream:
    def __init__(self) -> None:
        self._raw = call(driver.cuStreamCreate, _NON_BLOCKING)
        self.handle = int(self._raw)

    def copy_in(self, memory: DeviceMemory, host: HostMemory, size: int) -> None:
        assert isinstance(host, _HostMemory)
        require_within(size, memory, host)
        call(driver.cuMemcpyHtoDAsync, memory.address, host.address, size, self._raw)

    def copy_out(self, host: HostMemory, memory: DeviceMemory, size: int) -> None:
        assert isinstance(host, _HostMemory)
        require_within(size, memory, host)
        call(driver.cuMemcpyDtoHAsync, host.address, memory.address, size, self._raw)

    def record(self, event: Event) -> None:
        assert isinstance(event, _Event)
        call(driver.cuEventRecord, event.raw, self._raw)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _Event)
        call(driver.cuStreamWaitEvent, self._raw, event.raw, 0)

    def capture(self, work: Callable[[], None]) -> Graph:
        return capture(self.handle, work)

    def launch(self, graph: Graph) -> None:
        assert isinstance(graph, DriverGraph)
        graph.launch(self.handle)

    def synchronize(self) -> None:
        call(driver.cuStreamSynchronize, self._raw)

    def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            call(driver.cuStreamDestroy, raw)


class _Current:
    """Pushes the context on the thread's stack and pops it. Holds nothing, so that any thread may be in it."""

    def __init__(self, context: object) -> None:
        self._context = context

    def __enter__(self) -> None:
        call(driver.cuCtxPushCurrent, self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call(driver.cuCtxPopCurrent)


class _Device:
    library = "cuda-bindings"
    why_no_graphs = ""

    def __init__(self, number: int) -> None:
        call(driver.cuInit, 0)
        self._device = call(driver.cuDeviceGet, number)
        self.properties = _properties(self._device)
        self.versions = Versions(version_text(int(call(driver.cuDriverGetVersion))), version_text(driver.CUDA_VERSION))
        self._current = _Current(call(driver.cuDevicePrimaryCtxRetain, self._device))

    def current(self) -> _Current:
        return self._current

    def memory(self) -> MemoryInfo:
        free, total = call(driver.cuMemGetInfo)
        return MemoryInfo(int(free), int(total))

    def allocate(self, size: int) -> DeviceMemory:
        return _DeviceMemory(size)

    def allocate_host(self, size: int, *, mapped: bool = False) -> HostMemory:
        return _HostMemory(size, mapped)

    def stream(self) -> Stream:
        return _Stream()

    def event(self, *, timed: bool = False) -> Event:
        return _Event(timed)

    def close(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            call(driver.cuDevicePrimaryCtxRelease, device)


def _properties(device: object) -> DeviceProperties:
    def ask(name: str) -> int:
        return int(call(driver.cuDeviceGetAttribute, getattr(_ATTRIBUTE, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    def text(function: Callable[..., object], size: int) -> str:
        return bytes(call(function, size, device)).split(b"\0")[0].decode(errors="replace").strip()

    return DeviceProperties(
        name=text(driver.cuDeviceGetName, 256),
        pci_address=text(driver.cuDeviceGetPCIBusId, 32).lower(),
        compute_capability=f"{ask('COMPUTE_CAPABILITY_MAJOR')}.{ask('COMPUTE_CAPABILITY_MINOR')}",
        multiprocessors=ask("MULTIPROCESSOR_COUNT"),
        total_memory=int(call(driver.cuDeviceTotalMem, device)),
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

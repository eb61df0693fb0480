"""One GPU through cuda-bindings, NVIDIA's own package: memory, streams, events, graphs.

    with device.current():                        # needed in every thread, around all calls below
        host, memory = device.allocate_host(size), device.allocate(size)
        stream.copy_in(memory, host, size)        # asynchronous, in the stream's order
        stream.record(event)
        event.synchronize()                       # sleeps, with the interpreter's lock released

A call that the driver refuses raises EngineUnusable, which names the call and CUDA's error. If submitted work fails, a
later call, often `synchronize`, raises the error. After some errors, such as an illegal address, every later call in
the process fails. Sizes are in bytes; addresses are like those from `cudaMalloc`.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from edged.backends.contract import one_line
from edged.errors import EdgedError, EngineUnusable

_ATTRIBUTE = driver.CUdevice_attribute
# Waiting threads sleep instead of spinning, because cameras need the processor.
_EVENT = int(driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC) | int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
_NON_BLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
_MAPPED = int(driver.CU_MEMHOSTALLOC_DEVICEMAP)
# Other threads may allocate and copy while one thread captures.
_MODE = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class DeviceProperties(msgspec.Struct, frozen=True):
    """Constants of one GPU."""

    name: str
    pci_address: str  # "0000:01:00.0", as NVML and sysfs write it
    compute_capability: str  # "8.7"
    is_integrated: bool  # the GPU is part of the SoC and uses the system's memory, as on a Jetson
    can_map_host_memory: bool

    @property
    def shares_memory(self) -> bool:
        """Whether device and host use the same memory, so that copies are unnecessary."""
        return self.is_integrated and self.can_map_host_memory


class DeviceMemory:
    """Memory of the device, at `address`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.address = int(_call(driver.cuMemAlloc, size))

    def free(self) -> None:
        """Free the memory; further calls do nothing."""
        address, self.address = self.address, 0
        if address:
            _call(driver.cuMemFree, address)


class HostMemory:
    """Page-locked memory of the host.

    `array` is a view of all bytes, uint8 [size]. After `free`, an access to this view or a derived view crashes the
    process. `device_address` is the memory's address on the device; 0 if the memory is not `mapped`.
    """

    def __init__(self, size: int, mapped: bool) -> None:
        self.size = size
        self.address = int(_call(driver.cuMemHostAlloc, size, _MAPPED if mapped else 0))
        self.array: npt.NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))
        self.device_address = 0
        if mapped:
            try:
                self.device_address = int(_call(driver.cuMemHostGetDevicePointer, self.address, 0))
            except BaseException:
                self.free()
                raise

    def free(self) -> None:
        address, self.address, self.device_address = self.address, 0, 0
        if address:
            del self.array
            _call(driver.cuMemFreeHost, address)


class Event:
    """A point in a stream. Before a `record` of the event, `synchronize` and `Stream.wait` do not wait."""

    def __init__(self) -> None:
        self.raw = _call(driver.cuEventCreate, _EVENT)

    def synchronize(self) -> None:
        """Sleep until the stream has done the work that precedes the event."""
        _call(driver.cuEventSynchronize, self.raw)

    def close(self) -> None:
        raw, self.raw = self.raw, None
        if raw is not None:
            _call(driver.cuEventDestroy, raw)


class Graph:
    """Captured work that `Stream.launch` launches as a whole."""

    def __init__(self, raw: object) -> None:
        self.raw = raw

    def close(self) -> None:
        raw, self.raw = self.raw, None
        if raw is not None:
            _call(driver.cuGraphExecDestroy, raw)


class Stream:
    """A queue of work for the device. The work is done in order, in parallel with other streams. Only `synchronize` and
    `close` block.

    `handle` is the `cudaStream_t`, for runtimes.
    """

    def __init__(self) -> None:
        self._raw = _call(driver.cuStreamCreate, _NON_BLOCKING)
        self.handle = int(self._raw)

    def copy_in(self, memory: DeviceMemory, host: HostMemory, size: int) -> None:
        """Copy the first `size` bytes to the device."""
        _require_within(size, memory, host)
        _call(driver.cuMemcpyHtoDAsync, memory.address, host.address, size, self._raw)

    def copy_out(self, host: HostMemory, memory: DeviceMemory, size: int) -> None:
        """Copy the first `size` bytes to the host."""
        _require_within(size, memory, host)
        _call(driver.cuMemcpyDtoHAsync, host.address, memory.address, size, self._raw)

    def record(self, event: Event) -> None:
        """Put the event after all work that was submitted so far. This call replaces an earlier `record`."""
        _call(driver.cuEventRecord, event.raw, self._raw)

    def wait(self, event: Event) -> None:
        """Delay all work that is submitted later until the work before the event is done. Only a `record` before this
        call counts."""
        _call(driver.cuStreamWaitEvent, self._raw, event.raw, 0)

    def capture(self, work: Callable[[], None]) -> Graph:
        """Return a graph of what `work` submits to this stream. The submitted work is not run.

        Other threads may use other streams meanwhile. Raises EngineUnusable if `work` submits something that cannot be
        captured. Errors of `work` are raised unchanged. The stream stays usable in both cases.
        """
        _call(driver.cuStreamBeginCapture, self._raw, _MODE)
        try:
            work()
        except BaseException:
            self._abandon_capture()
            raise
        graph = _call(driver.cuStreamEndCapture, self._raw)
        try:
            return Graph(_call(driver.cuGraphInstantiate, graph, 0))
        finally:
            _call(driver.cuGraphDestroy, graph)

    def _abandon_capture(self) -> None:
        """End a capture whose work failed. Errors of the driver are ignored: the first failure is the useful one."""
        with contextlib.suppress(EdgedError):
            _call(driver.cuGraphDestroy, _call(driver.cuStreamEndCapture, self._raw))

    def launch(self, graph: Graph) -> None:
        _call(driver.cuGraphLaunch, graph.raw, self._raw)

    def synchronize(self) -> None:
        _call(driver.cuStreamSynchronize, self._raw)

    def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            _call(driver.cuStreamDestroy, raw)


class _Current:
    """A context manager that makes CUDA's context current in the thread and removes it at the end. It stores nothing
    about the thread, so several threads may use one object at once."""

    def __init__(self, context: object) -> None:
        self._context = context

    def __enter__(self) -> None:
        _call(driver.cuCtxPushCurrent, self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _call(driver.cuCtxPopCurrent)


class Device:
    """One GPU, opened in this process through its primary context, which runtimes also use."""

    def __init__(self, number: int) -> None:
        _call(driver.cuInit, 0)
        self._device = _call(driver.cuDeviceGet, number)
        self.properties = _properties(self._device)
        self._current = _Current(_call(driver.cuDevicePrimaryCtxRetain, self._device))

    def current(self) -> _Current:
        """Return a cheap context manager that makes the device current in the calling thread. It can be nested."""
        return self._current

    def allocate(self, size: int) -> DeviceMemory:
        return DeviceMemory(size)

    def allocate_host(self, size: int, *, mapped: bool = False) -> HostMemory:
        """Allocate page-locked memory. With `mapped`, the device can access the memory in place."""
        return HostMemory(size, mapped)

    def stream(self) -> Stream:
        """Create a stream that never waits for CUDA's default stream."""
        return Stream()

    def event(self) -> Event:
        return Event()

    def close(self) -> None:
        """Release the context. First close everything that was created with the device."""
        device, self._device = self._device, None
        if device is not None:
            _call(driver.cuDevicePrimaryCtxRelease, device)


def _properties(device: object) -> DeviceProperties:
    def ask(name: str) -> int:
        return int(_call(driver.cuDeviceGetAttribute, getattr(_ATTRIBUTE, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    def text(function: Callable[..., object], size: int) -> str:
        return bytes(_call(function, size, device)).split(b"\0")[0].decode(errors="replace").strip()

    return DeviceProperties(
        name=text(driver.cuDeviceGetName, 256),
        pci_address=text(driver.cuDeviceGetPCIBusId, 32).lower(),
        compute_capability=f"{ask('COMPUTE_CAPABILITY_MAJOR')}.{ask('COMPUTE_CAPABILITY_MINOR')}",
        is_integrated=bool(ask("INTEGRATED")),
        can_map_host_memory=bool(ask("CAN_MAP_HOST_MEMORY")),
    )


def _require_within(size: int, memory: DeviceMemory, host: HostMemory) -> None:
    """Raise EngineUnusable if a copy exceeds an allocation: the driver does not check the size of host memory."""
    if size > memory.size or size > host.size:
        raise EngineUnusable(
            f"cannot copy {size} bytes: the device's buffer has {memory.size} bytes, the host's buffer {host.size}"
        )


def _call(function: Callable[..., Any], *arguments: object) -> Any:  # the package has no types
    """Call a function of the driver. Return its results without the error code: (), one value, or a tuple of several.

    Raises EngineUnusable if the function reports an error, or if the driver is missing or lacks the function.
    """
    try:
        error, *values = function(*arguments)
    except RuntimeError as missing:
        raise EngineUnusable(f"{function.__name__} is not available: {one_line(missing, 200)}") from missing
    if error != driver.CUresult.CUDA_SUCCESS:
        raise EngineUnusable(f"{function.__name__} failed: {getattr(error, 'name', error)}")
    return values[0] if len(values) == 1 else tuple(values)

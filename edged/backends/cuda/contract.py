"""What edged needs of CUDA, as types: a device, its memory, streams, events, graphs. No CUDA is imported here.

    with device.current():                        # in every thread, around everything below
        host, memory = device.allocate_host(size), device.allocate(size)
        stream.copy_in(memory, host, size)        # asynchronous, in the stream's order
        stream.record(event)
        event.synchronize()                       # sleeps, with the interpreter's lock released

Whatever the driver refuses raises EngineUnusable, which names the call and CUDA's error. An error of work that was
already submitted is reported by a later call, often by `synchronize`, and after some of them (an illegal address) the
process gets no other answer any more. Sizes are in bytes, addresses are what `cudaMalloc` would give.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import EngineUnusable


class DeviceProperties(msgspec.Struct, frozen=True):
    """Constants of one GPU, among them all that TensorRT compares an engine with."""

    name: str
    pci_address: str  # "0000:01:00.0", as NVML and sysfs write it
    compute_capability: str  # "8.7"
    multiprocessors: int
    total_memory: int
    memory_bus_bits: int
    l2_bytes: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    texture_alignment: int
    is_integrated: bool  # part of the processor, with the system's memory, as on a Jetson
    can_map_host_memory: bool

    @property
    def shares_memory(self) -> bool:
        """Whether the device works on the host's memory as fast as on its own, so that nothing need be copied."""
        return self.is_integrated and self.can_map_host_memory


class Versions(msgspec.Struct, frozen=True):
    """CUDA's, as "13.0": the newest one that the driver runs, and the one that the Python library was made for."""

    driver: str
    library: str


class MemoryInfo(msgspec.Struct, frozen=True):
    """Bytes of device memory; of an integrated device the system's."""

    free: int
    total: int


class DeviceMemory(Protocol):
    """Memory of the device."""

    @property
    def address(self) -> int:
        """For the device."""

    @property
    def size(self) -> int: ...

    def free(self) -> None:
        """Gives it back, once; does nothing when it was given back before."""


class HostMemory(Protocol):
    """Page-locked memory of the host. An array over it must not be touched once it is free: the process would die."""

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """All its bytes, [size]."""

    @property
    def device_address(self) -> int:
        """Where the device sees it; 0 unless it was allocated `mapped`."""

    @property
    def size(self) -> int: ...

    def free(self) -> None:
        """As of device memory."""


class Event(Protocol):
    """A point in a stream. One that was never recorded counts as passed."""

    def synchronize(self) -> None:
        """Sleeps until the work recorded before it is done."""

    def is_done(self) -> bool: ...

    def elapsed_ms(self, start: Event) -> float:
        """Milliseconds since another event; both are timed, recorded and done."""

    def close(self) -> None: ...


class Graph(Protocol):
    """Work that was captured once and is launched as one, by `Stream.launch`."""

    def close(self) -> None: ...


class Stream(Protocol):
    """Work that is done in order, beside other streams. None of these waits, but `synchronize` and `close`."""

    @property
    def handle(self) -> int:
        """The `cudaStream_t`, for runtimes."""

    def copy_in(self, memory: DeviceMemory, host: HostMemory, size: int) -> None:
        """Copies the first `size` bytes to the device."""

    def copy_out(self, host: HostMemory, memory: DeviceMemory, size: int) -> None:
        """Copies the first `size` bytes to the host."""

    def record(self, event: Event) -> None:
        """The event passes when everything submitted so far is done; it forgets an earlier record."""

    def wait(self, event: Event) -> None:
        """What is submitted later starts after the event has passed as it is recorded now."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """What `work` submits to this stream becomes a graph and is not done now.

        Other threads go on working with other streams. EngineUnusable when `work` did what cannot be captured; the
        stream is as usable as before. What `work` raises is raised.
        """

    def launch(self, graph: Graph) -> None: ...

    def synchronize(self) -> None:
        """Waits until everything submitted is done."""

    def close(self) -> None: ...


class Device(Protocol):
    """One GPU, opened in this process: its primary context, the one that runtimes use too."""

    @property
    def library(self) -> str:
        """The Python package behind it: "pycuda" or "cuda-bindings"."""

    @property
    def properties(self) -> DeviceProperties: ...

    @property
    def versions(self) -> Versions: ...

    @property
    def why_no_graphs(self) -> str:
        """Why `Stream.capture` always raises; empty where it does not."""

    def current(self) -> AbstractContextManager[None]:
        """Makes the device the calling thread's own while it lasts; may be nested. Cheap."""

    def memory(self) -> MemoryInfo: ...

    def allocate(self, size: int) -> DeviceMemory: ...

    def allocate_host(self, size: int, *, mapped: bool = False) -> HostMemory:
        """Page-locked memory; with `mapped` the device works on it where it is."""

    def stream(self) -> Stream:
        """A stream that never waits for CUDA's default stream."""

    def event(self, *, timed: bool = False) -> Event: ...

    def close(self) -> None:
        """Releases the context; everything made with the device was closed before."""


def require_within(size: int, memory: DeviceMemory, host: HostMemory) -> None:
    """EngineUnusable for a copy beyond what was allocated: of the host's memory no driver knows the end."""
    if size > memory.size or size > host.size:
        raise EngineUnusable(f"a copy of {size} bytes between {memory.size} of the device and {host.size} of the host")


def version_text(number: int) -> str:
    """13000 is "13.0"."""
    return f"{number // 1000}.{number % 1000 // 10}"

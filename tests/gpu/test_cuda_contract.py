"""The CUDA contract on a real device: what the stand-in cannot show, and whether the stand-in behaves like a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from edged.backends.cuda import open_device
from edged.backends.cuda.driver import Device, DeviceMemory, HostMemory, Stream
from edged.device import nvml
from edged.errors import EdgedError
from tests.cuda_conformance import *  # noqa: F403

_LARGE = 128 << 20


@pytest.fixture
def device() -> Iterator[Device]:
    try:
        opened = open_device()
    except EdgedError as error:
        pytest.skip(str(error))
    yield opened
    opened.close()


def test_device_name_and_capability_match_nvml(device: Device) -> None:
    gpu = nvml.read().gpus.get(device.properties.pci_address)
    if gpu is None:
        pytest.skip("NVML knows no GPU at this address, as on a Jetson")
    assert gpu.name == device.properties.name
    assert gpu.compute_capability == device.properties.compute_capability


class Lanes:
    """Two streams with large copies, one in each direction."""

    def __init__(self, device: Device) -> None:
        with ExitStack() as undo:
            self.streams = [device.stream(), device.stream()]
            undo.callback(lambda: [stream.close() for stream in self.streams])
            self.memory: list[DeviceMemory] = []
            self.host: list[HostMemory] = []
            for _ in range(2):
                self.memory.append(device.allocate(_LARGE))
                undo.callback(self.memory[-1].free)
                self.host.append(device.allocate_host(_LARGE))
                undo.callback(self.host[-1].free)
            self.close = undo.pop_all().close

    def inward(self) -> None:
        self.streams[0].copy_in(self.memory[0], self.host[0], _LARGE)

    def outward(self) -> None:
        self.streams[1].copy_out(self.host[1], self.memory[1], _LARGE)

    def seconds(self, *steps: Callable[[], None], each: bool) -> float:
        """Return the shortest time of five runs, waiting after each step or only at the end."""
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            for step in steps:
                step()
                if each:
                    self.wait()
            self.wait()
            best = min(best, time.perf_counter() - started)
        return best

    def wait(self) -> None:
        for stream in self.streams:
            stream.synchronize()


@pytest.fixture
def lanes(device: Device) -> Iterator[Lanes]:
    with device.current():
        made = Lanes(device)
        yield made
        made.close()


def test_two_streams_overlap(device: Device, lanes: Lanes) -> None:
    """Copies in both directions at once take clearly less time than one after the other."""
    if device.properties.is_integrated:
        pytest.skip("an integrated GPU copies within one memory, which both directions share")
    lanes.seconds(lanes.inward, lanes.outward, each=False)
    apart = lanes.seconds(lanes.inward, lanes.outward, each=True)
    together = lanes.seconds(lanes.inward, lanes.outward, each=False)
    print(f"both ways at once take {together / apart:.2f} of one after the other")
    assert together < 0.85 * apart


def test_submitting_does_not_wait_for_the_work(device: Device, lanes: Lanes) -> None:
    lanes.seconds(lanes.inward, each=True)
    whole = lanes.seconds(lanes.inward, each=True)
    started = time.perf_counter()
    lanes.inward()
    submitted = time.perf_counter() - started
    lanes.wait()
    assert submitted < 0.5 * whole


def test_graph_launch_takes_less_time_than_its_parts(device: Device, stream: Stream) -> None:
    memory, host = device.allocate(256), device.allocate_host(256)

    def work() -> None:
        for _ in range(100):
            stream.copy_in(memory, host, 256)

    graph = stream.capture(work)

    def seconds(step: Callable[[], None]) -> float:
        best = float("inf")
        for _ in range(20):
            started = time.perf_counter()
            step()
            best = min(best, time.perf_counter() - started)
            stream.synchronize()
        return best

    parts, whole = seconds(work), seconds(lambda: stream.launch(graph))
    print(f"a graph of 100 copies is launched in {whole / parts:.2f} of the time of its parts")
    assert whole < parts
    for made in (memory, host):
        made.free()
    graph.close()


def test_device_writes_mapped_memory_in_place(device: Device, stream: Stream) -> None:
    """A device copy to the mapped block's own device address changes the host's array: no other memory is involved."""
    if not device.properties.can_map_host_memory:
        pytest.skip("the device cannot map host memory")
    mapped, source = device.allocate_host(4096, mapped=True), device.allocate_host(4096)
    source.array[:] = np.arange(4096) % 251
    mapped.array[:] = 0
    stream.copy_in(_Seen(mapped), source, 4096)
    stream.synchronize()
    np.testing.assert_array_equal(mapped.array, source.array)
    for made in (mapped, source):
        made.free()


class _Seen:
    """Mapped host memory, presented as device memory."""

    def __init__(self, host: HostMemory) -> None:
        self.address, self.size = host.device_address, host.size

    def free(self) -> None:
        pass

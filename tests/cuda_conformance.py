"""Tests for every implementation of the CUDA contract, on the stand-in driver and on a real GPU.

A module that imports these tests defines the fixture `device`, an opened device of the implementation.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from edged.backends.cuda.driver import Device, DeviceMemory, HostMemory, Stream
from edged.errors import EngineUnusable

SIZE = 1 << 16


@pytest.fixture
def current(device: Device) -> Iterator[Device]:
    with device.current():
        yield device


@pytest.fixture
def stream(current: Device) -> Iterator[Stream]:
    made = current.stream()
    yield made
    made.close()


@pytest.fixture
def memory(current: Device) -> Iterator[DeviceMemory]:
    made = current.allocate(SIZE)
    yield made
    made.free()


@pytest.fixture
def host(current: Device) -> Iterator[Callable[..., HostMemory]]:
    made: list[HostMemory] = []

    def allocate(size: int = SIZE, *, mapped: bool = False) -> HostMemory:
        made.append(current.allocate_host(size, mapped=mapped))
        return made[-1]

    yield allocate
    for block in made:
        block.free()


def pattern(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def test_device_reports_what_an_engine_depends_on(device: Device) -> None:
    properties = device.properties
    assert properties.name == properties.name.strip() != ""
    assert re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]", properties.pci_address)
    assert re.fullmatch(r"[0-9]{1,2}\.[0-9]", properties.compute_capability)
    assert properties.shares_memory == (properties.is_integrated and properties.can_map_host_memory)


def test_devices_are_numbered_by_pci_address(device: Device) -> None:
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_copies_to_and_from_the_device_are_equal(
    stream: Stream, memory: DeviceMemory, host: Callable[..., HostMemory]
) -> None:
    source, target = host(), host()
    source.array[:], target.array[:] = pattern(1), 0
    stream.copy_in(memory, source, SIZE)
    stream.copy_out(target, memory, SIZE)
    stream.synchronize()
    np.testing.assert_array_equal(target.array, pattern(1))


def test_only_the_bytes_that_are_asked_for_are_copied(
    stream: Stream, memory: DeviceMemory, host: Callable[..., HostMemory]
) -> None:
    source, target = host(), host()
    source.array[:], target.array[:] = pattern(2), 7
    stream.copy_in(memory, source, SIZE)
    stream.copy_out(target, memory, 1000)
    stream.synchronize()
    np.testing.assert_array_equal(target.array[:1000], pattern(2)[:1000])
    assert (target.array[1000:] == 7).all()


def test_stream_copy_of_zero_bytes_succeeds(
    stream: Stream, memory: DeviceMemory, host: Callable[..., HostMemory]
) -> None:
    stream.copy_in(memory, host(), 0)
    stream.copy_out(host(), memory, 0)
    stream.synchronize()


@pytest.mark.parametrize("size", [SIZE + 1, 2 * SIZE])
def test_stream_copy_beyond_the_allocation_is_refused(
    stream: Stream, memory: DeviceMemory, host: Callable[..., HostMemory], size: int
) -> None:
    for block in (host(), host(4 * SIZE), host(100)):
        with pytest.raises(EngineUnusable):
            stream.copy_in(memory, block, size)
        with pytest.raises(EngineUnusable):
            stream.copy_out(block, memory, size)


def test_device_sees_mapped_host_memory_only(host: Callable[..., HostMemory]) -> None:
    assert host(mapped=True).device_address
    assert host().device_address == 0


def test_allocation_beyond_the_memory_is_refused_in_one_line(current: Device) -> None:
    with pytest.raises(EngineUnusable, match=r"(?i)cuMemAlloc.*out.of.memory") as raised:
        current.allocate(1 << 50)
    assert "\n" not in str(raised.value)
    current.allocate(SIZE).free()


def test_giving_back_twice_does_nothing(current: Device) -> None:
    for made in (current.allocate(SIZE), current.allocate_host(SIZE), current.allocate_host(SIZE, mapped=True)):
        made.free()
        made.free()
    for closed in (current.stream(), current.event()):
        closed.close()
        closed.close()


def test_cuda_event_completes_after_the_work_before_it(
    current: Device, stream: Stream, memory: DeviceMemory, host: Callable[..., HostMemory]
) -> None:
    source, target, event = host(), host(), current.event()
    event.synchronize()
    source.array[:] = pattern(3)
    stream.copy_in(memory, source, SIZE)
    stream.copy_out(target, memory, SIZE)
    stream.record(event)
    event.synchronize()
    np.testing.assert_array_equal(target.array, pattern(3))
    event.close()


def test_stream_waits_for_an_event_of_another_stream(
    current: Device, stream: Stream, memory: DeviceMemory, host: Callable[..., HostMemory]
) -> None:
    other, event, target = current.stream(), current.event(), host()
    for seed in range(5):
        source = host()
        source.array[:] = pattern(seed)
        stream.copy_in(memory, source, SIZE)
        stream.record(event)
        other.wait(event)
        other.copy_out(target, memory, SIZE)
        other.synchronize()
        np.testing.assert_array_equal(target.array, pattern(seed))
    other.close()
    event.close()


def test_two_threads_use_one_device(device: Device) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        try:
            for turn in range(20):
                with device.current():
                    lane, block = device.stream(), device.allocate(SIZE)
                    source, target = device.allocate_host(SIZE), device.allocate_host(SIZE)
                    source.array[:] = pattern(seed + turn)
                    lane.copy_in(block, source, SIZE)
                    lane.copy_out(target, block, SIZE)
                    lane.synchronize()
                    if not np.array_equal(target.array, pattern(seed + turn)):
                        wrong.append((seed, turn))
                    for made in (block, source, target):
                        made.free()
                    lane.close()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_of_one_thread_is_used_and_freed_by_another(device: Device) -> None:
    with device.current():
        lane, event, block, source = device.stream(), device.event(), device.allocate(9), device.allocate_host(9)
    wrong: list[Exception] = []

    def finish() -> None:
        try:
            with device.current():
                lane.copy_in(block, source, 9)
                lane.record(event)
                event.synchronize()
                block.free()
                source.free()
                lane.close()
                event.close()
        except Exception as error:
            wrong.append(error)

    thread = threading.Thread(target=finish)
    thread.start()
    thread.join()
    assert wrong == []


def test_device_current_nests(device: Device) -> None:
    with device.current():
        with device.current():
            device.allocate(SIZE).free()
        device.allocate(SIZE).free()
    with pytest.raises(KeyError), device.current():
        raise KeyError
    with device.current():
        device.allocate(SIZE).free()


def test_cuda_graph_repeats_what_was_captured(
    current: Device, stream: Stream, memory: DeviceMemory, host: Callable[..., HostMemory]
) -> None:
    source, target = host(), host()
    source.array[:], target.array[:] = pattern(4), 0

    def work() -> None:
        stream.copy_in(memory, source, SIZE)
        stream.copy_out(target, memory, SIZE)

    graph = stream.capture(work)
    stream.synchronize()
    assert not target.array.any(), "captured work does not run"
    for seed in (5, 6):
        source.array[:] = pattern(seed)
        stream.launch(graph)
        stream.synchronize()
        np.testing.assert_array_equal(target.array, pattern(seed))
    graph.close()
    graph.close()


def test_stream_works_after_a_failed_capture(
    current: Device, stream: Stream, memory: DeviceMemory, host: Callable[..., HostMemory]
) -> None:

    def interrupted() -> None:
        stream.copy_in(memory, block, SIZE)
        raise KeyError("stopped")

    block, target = host(), host()
    block.array[:] = pattern(7)
    with pytest.raises(KeyError, match="stopped"):
        stream.capture(interrupted)
    with pytest.raises(EngineUnusable, match=r"cuStream(Synchronize|EndCapture) failed"):
        stream.capture(stream.synchronize)
    stream.copy_in(memory, block, SIZE)
    stream.copy_out(target, memory, SIZE)
    stream.synchronize()
    np.testing.assert_array_equal(target.array, pattern(7))


def test_other_threads_work_while_one_captures(device: Device, stream: Stream, memory: DeviceMemory) -> None:
    wrong: list[Exception] = []

    def elsewhere() -> None:
        try:
            with device.current():
                other, block, source = device.stream(), device.allocate(SIZE), device.allocate_host(SIZE)
                other.copy_in(block, source, SIZE)
                other.synchronize()
                block.free()
                source.free()
                other.close()
        except Exception as error:
            wrong.append(error)

    def work() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    stream.capture(work).close()
    assert wrong == []

"""Tests of the CUDA contract that need injected driver errors, in addition to those for every device."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edged.backends.cuda import open_device
from edged.backends.cuda.driver import Device, DeviceMemory, Event, Stream
from edged.errors import EngineUnusable
from tests.cuda_conformance import *  # noqa: F403
from tests.cuda_conformance import SIZE, pattern
from tests.fake_cuda.control import ILLEGAL_ADDRESS, INVALID_VALUE, OUT_OF_MEMORY, Control


def test_device_properties_match_the_stand_in(device: Device) -> None:
    properties = device.properties
    assert (properties.name, properties.pci_address) == ("Stand-in 0", "0000:01:00.0")
    assert properties.compute_capability == "8.7"
    assert not properties.is_integrated


def test_open_device_numbers_devices_by_bus_and_not_by_speed(control: Control) -> None:
    control.configure(devices=2)
    for number in (0, 1):
        device = open_device(number)
        assert device.properties.pci_address == f"0000:0{number + 1}:00.0"
        device.close()


def test_open_device_missing_device_is_unusable(control: Control) -> None:
    with pytest.raises(EngineUnusable, match=r"cuDeviceGet failed: .*INVALID_DEVICE"):
        open_device(3)


def test_failed_call_names_call_and_error(device: Device, control: Control) -> None:
    with device.current():
        control.fail("cuStreamCreate", INVALID_VALUE)
        with pytest.raises(EngineUnusable, match=r"^cuStreamCreate failed: CUDA_ERROR_INVALID_VALUE$"):
            device.stream()
        control.fail("cuMemHostAlloc", OUT_OF_MEMORY)
        with pytest.raises(EngineUnusable, match=r"^cuMemHostAlloc failed: (out of memory|CUDA_ERROR_OUT_OF_MEMORY)$"):
            device.allocate_host(SIZE)


def test_call_without_a_current_device_is_refused(device: Device, control: Control) -> None:
    with pytest.raises(EngineUnusable, match=r"(?i)invalid.*context"):
        device.stream()
    control.forget()  # the refused attempt is recorded as misuse


def test_mapped_memory_that_the_device_cannot_see_is_given_back(device: Device, control: Control) -> None:
    with device.current():
        control.fail("cuMemHostGetDevicePointer", INVALID_VALUE)
        with pytest.raises(EngineUnusable, match="cuMemHostGetDevicePointer"):
            device.allocate_host(SIZE, mapped=True)


def test_waiting_does_not_hold_the_interpreter(
    current: Device, stream: Stream, memory: DeviceMemory, control: Control
) -> None:
    """While one thread waits for a copy of 100 ms, another thread counts."""
    control.configure(copy_us=100_000)
    block, event, turns = current.allocate_host(SIZE), current.event(), 0
    stream.copy_in(memory, block, SIZE)
    stream.record(event)
    waiter = threading.Thread(target=_wait, args=(current, event))
    waiter.start()
    while waiter.is_alive():
        turns += 1
        waiter.join(0.001)
    assert turns > 1
    block.free()
    event.close()


def _wait(device: Device, event: Event) -> None:
    with device.current():
        event.synchronize()


def test_stream_copy_returns_before_it_is_done(
    current: Device, stream: Stream, memory: DeviceMemory, control: Control
) -> None:
    control.configure(copy_us=100_000)
    block, target, event = current.allocate_host(SIZE), current.allocate_host(SIZE), current.event()
    block.array[:], target.array[:] = pattern(1), 0
    stream.copy_in(memory, block, SIZE)
    stream.copy_out(target, memory, SIZE)
    stream.record(event)
    assert not target.array.any()
    event.synchronize()
    np.testing.assert_array_equal(target.array, pattern(1))
    for made in (block, target):
        made.free()
    event.close()


def test_two_streams_work_at_the_same_time(current: Device, control: Control) -> None:
    control.configure(copy_us=100_000)
    lanes, blocks = [current.stream(), current.stream()], [current.allocate(SIZE), current.allocate(SIZE)]
    source = current.allocate_host(SIZE)
    for lane, block in zip(lanes, blocks, strict=True):
        lane.copy_in(block, source, SIZE)
    for lane in lanes:
        lane.synchronize()
    first, second = control.traces("copy")
    assert first.stream != second.stream
    assert first.overlaps(second)
    for made in (*blocks, source):
        made.free()
    for lane in lanes:
        lane.close()


def test_failed_capture_frees_its_graph(current: Device, stream: Stream, control: Control) -> None:
    control.fail("cuGraphInstantiate", OUT_OF_MEMORY)
    with pytest.raises(EngineUnusable, match="cuGraphInstantiate"):
        stream.capture(lambda: None)
    control.fail("cuStreamBeginCapture", INVALID_VALUE)
    with pytest.raises(EngineUnusable, match="cuStreamBeginCapture"):
        stream.capture(lambda: None)


# Last: once the context is broken, CUDA does not work in this process any more.
def test_event_error_of_submitted_work_is_raised_by_synchronize(control: Control) -> None:
    device = open_device()
    with device.current():
        stream, event = device.stream(), device.event()
        control.break_context(stream.handle, ILLEGAL_ADDRESS)
        stream.record(event)
        with pytest.raises(EngineUnusable, match=r"cuEventSynchronize failed: .*ILLEGAL_ADDRESS"):
            event.synchronize()
        with pytest.raises(EngineUnusable, match="ILLEGAL_ADDRESS"):
            device.allocate(1)
    control.recover()
    with device.current():
        stream.close()
        event.close()
    device.close()

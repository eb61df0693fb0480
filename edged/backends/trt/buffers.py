"""The memory that an engine's inputs and outputs are in: one set for each inference that is under way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

import numpy as np

from edged.backends.cuda.contract import Device, DeviceMemory, Event, HostMemory, Stream
from edged.errors import EdgedError
from edged.tensors import Array


class _Closable(Protocol):
    def close(self) -> None: ...


def view(host: HostMemory, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """The beginning of page-locked memory as an array, [*shape]."""
    array: Array = host.array[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    return array


class Place:
    """One tensor's memory. Where the device shares the host's, that is all there is, and nothing is copied."""

    def __init__(self, device: Device, size: int, dtype: np.dtype[np.generic]) -> None:
        self.dtype = dtype
        size = max(size, 1)  # an empty tensor has an address too
        self.host = device.allocate_host(size, mapped=device.properties.shares_memory)
        self.memory: DeviceMemory | None = None
        try:
            if not device.properties.shares_memory:
                self.memory = device.allocate(size)
        except BaseException:
            self.free()
            raise
        self.address = self.host.device_address if self.memory is None else self.memory.address

    def put(self, array: Array) -> None:
        """Copies an array into the host's memory."""
        np.copyto(view(self.host, array.shape, self.dtype), array)

    def send(self, stream: Stream, source: HostMemory, size: int) -> int:
        """Brings `size` bytes from this place's host memory, or from another's, to where the engine reads them."""
        if self.memory is None:
            return source.device_address
        if size:
            stream.copy_in(self.memory, source, size)
        return self.address

    def fetch(self, stream: Stream, size: int) -> None:
        """Brings `size` bytes of what the engine wrote to the host; there when the stream has come so far."""
        if self.memory is not None and size:
            stream.copy_out(self.host, self.memory, size)

    def take(self, shape: tuple[int, ...]) -> Array:
        """What was fetched, [*shape]; the memory is this place's."""
        return view(self.host, shape, self.dtype)

    def free(self) -> None:
        quietly(self.host.free)
        if self.memory is not None:
            quietly(self.memory.free)


class BufferSet:
    """A place for every tensor, and the events that say how far its inference is: inputs copied, outputs there."""

    def __init__(
        self,
        device: Device,
        inputs: Mapping[str, tuple[int, np.dtype[np.generic]]],
        outputs: Mapping[str, tuple[int, np.dtype[np.generic]]],
    ) -> None:
        """Sizes are the largest there can be, in bytes."""
        self.inputs: dict[str, Place] = {}
        self.outputs: dict[str, Place] = {}
        self._events: list[Event] = []
        try:
            for places, wanted in ((self.inputs, inputs), (self.outputs, outputs)):
                for name, (size, dtype) in wanted.items():
                    places[name] = Place(device, size, dtype)
            self.copied = self._event(device)
            self.done = self._event(device)
        except BaseException:
            self.free()
            raise

    def free(self) -> None:
        for place in (*self.inputs.values(), *self.outputs.values()):
            place.free()
        close_all(self._events)

    def _event(self, device: Device) -> Event:
        self._events.append(device.event())
        return self._events[-1]


def quietly(release: Callable[[], None]) -> None:
    """Calls it; a device that is broken refuses that too, and the rest must still be given back."""
    with suppress(EdgedError):
        release()


def close_all(things: Iterable[_Closable]) -> None:
    for thing in things:
        quietly(thing.close)

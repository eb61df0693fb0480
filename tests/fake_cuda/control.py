"""Control functions of the stand-in driver: configuration, injected errors, recorded work. For this process only."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

ILLEGAL_ADDRESS = 700
OUT_OF_MEMORY = 2
INVALID_VALUE = 1


class _Trace(ctypes.Structure):
    _fields_ = (
        ("what", ctypes.c_char * 16),
        ("stream", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
    )


class Trace(NamedTuple):
    """One operation that a stream did: kind, stream handle, bytes or elements, begin and end in nanoseconds."""

    what: str
    stream: int
    size: int
    begin: int
    end: int

    def overlaps(self, other: Trace) -> bool:
        return self.begin < other.end and other.begin < self.end


class Control:
    """The loaded stand-in; AttributeError if `libcuda.so.1` is a different library."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.fakeMisuse.restype = ctypes.c_char_p
        self._library.fakeCalls.restype = ctypes.c_long
        self.left = self.alive

    def configure(self, **settings: int) -> None:
        """Set any of `devices`, `integrated`, `can_map`, `copy_us`, `memory`, `driver_version`."""
        for name, value in settings.items():
            assert self._library.fakeConfigure(name.encode(), ctypes.c_long(value)) == 0, name

    def fail(self, call: str, error: int, skip: int = 0) -> None:
        """Refuse one call, after the next `skip` ones. Calls are named without `_v2`."""
        self._library.fakeFail(call.encode(), ctypes.c_long(skip), error)

    def calls(self, name: str) -> int:
        return int(self._library.fakeCalls(name.encode()))

    def traces(self, *kinds: str) -> list[Trace]:
        """Return the operations done so far, of the given kinds: copy, compute, record, wait, launch, break."""
        first = ctypes.POINTER(_Trace)()
        count = self._library.fakeTraces(ctypes.byref(first))
        found = [Trace(t.what.decode(), t.stream, t.size, t.begin, t.end) for t in first[:count]]
        return [trace for trace in found if not kinds or trace.what in kinds]

    @property
    def alive(self) -> int:
        """Allocations, streams, events and graphs that are not freed yet."""
        return int(self._library.fakeAlive())

    @property
    def misuse(self) -> str:
        """The latest misuse of the driver; empty if there was no misuse."""
        return str(self._library.fakeMisuse().decode())

    def forget(self) -> None:
        """Clear counts, traces, misuse and injected errors that are still pending."""
        self._library.fakeForget()

    def affine(self, stream: int, target: int, source: int, count: int, microseconds: int) -> int:
        """Submit target = 2 * source + 1 over `count` floats of device memory; return CUDA's error."""
        return int(
            self._library.fakeAffine(
                *(ctypes.c_void_p(stream), ctypes.c_uint64(target), ctypes.c_uint64(source)),
                *(ctypes.c_size_t(count), ctypes.c_long(microseconds)),
            )
        )

    def break_context(self, stream: int, error: int = ILLEGAL_ADDRESS) -> None:
        """Submit work that fails after 50 ms and breaks CUDA in this process, as a faulty kernel does."""
        self._library.fakeBreak(ctypes.c_void_p(stream), error, ctypes.c_long(50_000))

    def recover(self) -> None:
        """Make a broken context work again, so that a test can free what it made. A real context cannot recover."""
        self._library.fakeRecover()

    def leave(self) -> None:
        """Accept all live objects as left behind on purpose."""
        self.left = self.alive

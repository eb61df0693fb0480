"""Graphs. Streams are known by their handles, so that they may be another package's: the driver is one."""

from __future__ import annotations

from collections.abc import Callable

from cuda.bindings import driver

from edged.backends.cuda.bindings_calls import call
from edged.errors import EdgedError

# Other threads may allocate and copy while this one captures.
_MODE = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class DriverGraph:
    """A graph that is ready to be launched."""

    def __init__(self, handle: object) -> None:
        self._handle = handle

    def launch(self, stream: int) -> None:
        call(driver.cuGraphLaunch, self._handle, stream)

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            call(driver.cuGraphExecDestroy, handle)


def capture(stream: int, work: Callable[[], None]) -> DriverGraph:
    """See `Stream.capture`."""
    call(driver.cuStreamBeginCapture, stream, _MODE)
    try:
        work()
    except BaseException:
        _abandon(stream)
        raise
    graph = call(driver.cuStreamEndCapture, stream)
    try:
        return DriverGraph(call(driver.cuGraphInstantiate, graph, 0))
    finally:
        call(driver.cuGraphDestroy, graph)


def _abandon(stream: int) -> None:
    """Ends a capture whose work failed; the driver has nothing to add to that."""
    try:
        graph = call(driver.cuStreamEndCapture, stream)
        call(driver.cuGraphDestroy, graph)
    except EdgedError:
        pass

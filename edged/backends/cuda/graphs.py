"""CUDA graphs by cuda-bindings, and how its functions are called.

Streams are known by their handles, so that they may be another package's: the driver is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

from edged.backends.contract import one_line
from edged.errors import EdgedError, EngineUnusable

# Other threads may allocate and copy while this one captures.
_MODE = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


def call(function: Callable[..., Any], *arguments: object) -> Any:  # the package has no types
    """Call a function of the driver; return what it returns besides the error: (), one value, or a tuple.

    EngineUnusable if it reports an error, or if the driver is missing or lacks the function.
    """
    try:
        error, *values = function(*arguments)
    except RuntimeError as missing:
        raise EngineUnusable(f"{function.__name__} is not available: {one_line(missing, 200)}") from missing
    if error != driver.CUresult.CUDA_SUCCESS:
        raise EngineUnusable(f"{function.__name__} failed: {getattr(error, 'name', error)}")
    return values[0] if len(values) == 1 else tuple(values)


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

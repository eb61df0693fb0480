"""Collects the runtime's messages and explains the last errors. Errors and warnings are kept; nothing is printed.

Messages arrive on threads of the builder, from C++ code. No Python exception may reach that code.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from operator import attrgetter

from edged.backends.trt.api import Trt

_KEPT = 200  # messages of each kind; a builder that retries may repeat a message thousands of times
_LONGEST = 400
# The start of messages that only repeat an earlier error.
_ECHO = re.compile(r"^\[checkMacros\.cpp::catchCudaError")
# "IBuilder::buildSerializedNetwork: Error Code 4: ", "ModelImporter.cpp:140: ", "[graph.cpp::symbolicExecute::539] "
_PREFIX = re.compile(
    r"""(?x) ^ (?: \d+:\s )? (?: \w+::\w+:\s )? (?: \[[\w.:]+\]\s )? (?: [\w./]+\.[ch](?:pp|u)?:\d+:\s )?
    (?: Error\ Code\ \d+:\s )?"""
)
# " In validate at /_src/optimizer/api/network.cpp:4023", "[tactic.cpp:264: run] "
_PLACE = re.compile(r"\s*\b[Ii]n \S+ at \S+:\d+|\[\w+\.[ch]pp:\d+: \w+\] ?")
_NODE = re.compile(r"While parsing node number (\d+) \[(\S+)")
_ON_GPU = re.compile(r"^\[GpuLayer\] (.+)$")
# cudaError 35: the driver is missing or too old; 100: there is no device; 999 and 3: CUDA cannot be initialised.
_NO_DEVICE = re.compile(
    r"(?i)cudaError (35|100|999|3)\b|CUDA initialization failure|no CUDA-capable device|driver version is insufficient"
)
_NO_MEMORY = re.compile(r"(?i)out of memory|insufficient memory|OutOfMemory|Requested amount of GPU memory")
_SCARCE_WORKSPACE = re.compile(r"(?i)workspace (limit|size)|not enough workspace|Could not find any implementation")
_MISSING_LIBRARY = re.compile(r"(?i)Unable to load library: (\S+?):? ")


class Log:
    """The runtime's messages since this log was created. Severities have the runtime's names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.operators: dict[int, str] = {}  # operators of the nodes that the parser rejected, by node index
        self.on_gpu: list[str] = []  # layers that a build for DLA left to the GPU

    def hear(self, severity: str, message: str) -> None:
        text = " ".join(message.split())[:_LONGEST]
        with self._lock:
            if severity in ("ERROR", "INTERNAL_ERROR"):
                if (node := _NODE.search(text)) is not None:
                    self.operators.setdefault(int(node[1]), node[2])
                _keep(self.errors, text)
            elif severity == "WARNING":
                _keep(self.warnings, _readable(text))
            elif (layer := _ON_GPU.match(text)) is not None:
                _keep(self.on_gpu, layer[1])

    def reason(self) -> str:
        """Return the last two errors on one line, without locations in the runtime's sources; empty without errors."""
        with self._lock:
            lines = [_readable(text) for text in self.errors if not _ECHO.match(text)]
        return "; ".join(dict.fromkeys(lines[-2:]))[:_LONGEST]


def listen(trt: Trt, log: Log) -> object:
    """Return a logger of the runtime's type that writes to `log`. The logger must live as long as all objects that were
    created with it."""
    base = trt.ILogger
    start_native: Callable[[object], None] = attrgetter("__init__")(base)

    def start(self: object) -> None:
        start_native(self)

    def hear(self: object, severity: object, message: str) -> None:
        with contextlib.suppress(BaseException):  # the caller is C++
            log.hear(str(getattr(severity, "name", severity)), message)

    return type("Logger", (base,), {"__init__": start, "log": hear})()


def _keep(messages: list[str], text: str) -> None:
    if len(messages) >= _KEPT:
        del messages[0]  # the oldest, because the last messages are about the failure
    messages.append(text)


def _readable(text: str) -> str:
    return _PLACE.sub("", _PREFIX.sub("", text)).replace("( (", "((").replace(" ()", "").strip() or text


def is_without_device(reason: str) -> bool:
    """Whether a reason says that no CUDA device can be used."""
    return _NO_DEVICE.search(reason) is not None


def without_device(reason: str, can_target: bool) -> str:
    """Return the error message for a build without a device. `can_target`: the runtime can build for other devices."""
    elsewhere = ", or name a device to build for: `edged engines build MODEL --for sm_86`" if can_target else ""
    return f"no CUDA device can be used here ({reason}); build on a box with a CUDA device{elsewhere}"


def explain(reason: str) -> str:
    """Return the reason, with a remedy if one is known."""
    if not reason:
        return "the runtime gives no reason; see the last lines of the daemon's log"
    if is_without_device(reason):
        return f"no CUDA device can be used here ({reason}); check that its driver is loaded and new enough"
    if _NO_MEMORY.search(reason):
        return f"it ran out of memory ({reason})"
    if library := _MISSING_LIBRARY.search(reason):
        return f"{library[1]} is not installed; install this library, or remove the setting that needs it"
    if _SCARCE_WORKSPACE.search(reason):
        return f"{reason}; raising tensorrt.workspace_mb may help"
    return reason

"""The runtime's messages, and what the last of them mean. Errors and warnings are kept, and nothing is printed.

Messages arrive on the builder's own threads, from code that no exception may pass through.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from operator import attrgetter

from edged.backends.trt.api import Trt

_KEPT = 200  # messages of each kind; a builder that retries says the same thousands of times
_LONGEST = 400
# Repeats an error that was reported before.
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
# cudaError 35: the driver is missing or too old; 100: there is no device; 999 and 3: it cannot be initialised.
_NO_DEVICE = re.compile(
    r"(?i)cudaError (35|100|999|3)\b|CUDA initialization failure|no CUDA-capable device|driver version is insufficient"
)
_NO_MEMORY = re.compile(r"(?i)out of memory|insufficient memory|OutOfMemory|Requested amount of GPU memory")
_SCARCE_WORKSPACE = re.compile(r"(?i)workspace (limit|size)|not enough workspace|Could not find any implementation")
_MISSING_LIBRARY = re.compile(r"(?i)Unable to load library: (\S+?):? ")


class Log:
    """The messages since it was made. Severities have the runtime's names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.operators: dict[int, str] = {}  # of nodes that the parser stumbled at, by index
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
        """The last errors on one line, without the runtime's places in its own sources; empty if there were none."""
        with self._lock:
            lines = [_readable(text) for text in self.errors if not _ECHO.match(text)]
        return "; ".join(dict.fromkeys(lines[-2:]))[:_LONGEST]


def listen(trt: Trt, log: Log) -> object:
    """The runtime's kind of logger, telling `log`. It has to live as long as everything that was made with it."""
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
        del messages[0]  # the last ones are about its end
    messages.append(text)


def _readable(text: str) -> str:
    return _PLACE.sub("", _PREFIX.sub("", text)).replace("( (", "((").replace(" ()", "").strip() or text


def is_without_device(reason: str) -> bool:
    """Whether it says that there is no CUDA device to use."""
    return _NO_DEVICE.search(reason) is not None


def without_device(reason: str, can_target: bool) -> str:
    """Return the remedy if no device to build on exists. `can_target`: whether the runtime builds for other devices."""
    elsewhere = ", or name another with `edged engines build MODEL --for sm_86`" if can_target else ""
    return f"no CUDA device can be used here ({reason}); build on a box that has one{elsewhere}"


def explain(reason: str) -> str:
    """The reason, with what to do about it if that is known."""
    if not reason:
        return "it does not say why; the last lines of the daemon's log may"
    if is_without_device(reason):
        return f"no CUDA device can be used here ({reason}); see that its driver is loaded and new enough"
    if _NO_MEMORY.search(reason):
        return f"it ran out of memory ({reason})"
    if library := _MISSING_LIBRARY.search(reason):
        return f"{library[1]} is not installed; install it, or remove the setting that needs it"
    if _SCARCE_WORKSPACE.search(reason):
        return f"{reason}; raising tensorrt.workspace_mb may help"
    return reason

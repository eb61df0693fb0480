"""What a runtime's last words mean for whoever reads them: what happened, and what to do next. Pure."""

from __future__ import annotations

import re

# cudaError 35: the driver is missing or too old; 100: there is no device; 999 and 3: it cannot be initialised.
_NO_DEVICE = re.compile(
    r"(?i)cudaError (35|100|999|3)\b|CUDA initialization failure|no CUDA-capable device|driver version is insufficient"
)
_NO_MEMORY = re.compile(r"(?i)out of memory|insufficient memory|OutOfMemory|Requested amount of GPU memory")
_SCARCE_WORKSPACE = re.compile(r"(?i)workspace (limit|size)|not enough workspace|Could not find any implementation")
_MISSING_LIBRARY = re.compile(r"(?i)Unable to load library: (\S+?):? ")


def is_without_device(reason: str) -> bool:
    """Whether it says that there is no CUDA device to use."""
    return _NO_DEVICE.search(reason) is not None


def without_device(reason: str, can_target: bool) -> str:
    """What to do where there is no device to build on. `can_target` is whether the runtime builds for others."""
    elsewhere = ", or name another with `edged engines build MODEL --for sm_86`" if can_target else ""
    return f"no CUDA device can be used here ({reason}); build on a box that has one{elsewhere}"


def explain(reason: str) -> str:
    """The reason, with what to do about it where that is known."""
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

"""What both packages have in common: bounds that neither checks, and how CUDA numbers its versions."""

from __future__ import annotations

from edged.backends.cuda.contract import DeviceMemory, HostMemory
from edged.errors import EngineUnusable


def require_within(size: int, memory: DeviceMemory, host: HostMemory) -> None:
    """EngineUnusable for a copy beyond what was allocated: of the host's memory no driver knows the end."""
    if size > memory.size or size > host.size:
        raise EngineUnusable(f"a copy of {size} bytes between {memory.size} of the device and {host.size} of the host")


def version_text(number: int) -> str:
    """13000 is "13.0"."""
    return f"{number // 1000}.{number % 1000 // 10}"

"""The client library: send pictures or camera streams to a daemon, and receive detections.

    from edged.client import Client, open_source

    with Client() as client:
        print(client.infer("shapes", "street.jpg").json())
        for result in client.stream("shapes", open_source("rtsp://camera/stream")):
            print(result.sequence, result.age_ms, len(result.detections))

Names are imported on first use, since importing gRPC takes longer than all other imports of a command line tool.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.client.aio import AsyncClient
    from edged.client.client import Client
    from edged.client.frames import Captured, Samples
    from edged.client.result import ClassArea, Classification, Detection, Nested, Result, SecondStep, Skips, Timings
    from edged.client.sources import open_source

__all__ = [
    "AsyncClient",
    "Captured",
    "ClassArea",
    "Classification",
    "Client",
    "Detection",
    "Nested",
    "Result",
    "Samples",
    "SecondStep",
    "Skips",
    "Timings",
    "open_source",
]

_NAMES = {
    "aio": ("AsyncClient",),
    "client": ("Client",),
    "frames": ("Captured", "Samples"),
    "result": ("ClassArea", "Classification", "Detection", "Nested", "Result", "SecondStep", "Skips", "Timings"),
    "sources": ("open_source",),
}


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

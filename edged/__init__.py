"""edged: serves ONNX models with verified engines that fit the box's current hardware and software.

    import edged

    edged.load("model.onnx").infer("street.jpg")            # in this process
    edged.Client().infer("shapes", "street.jpg")            # in the daemon

Names are imported on first use, so that a program that only calls a daemon loads no runtime and no builder.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from edged.version import __version__

if TYPE_CHECKING:
    from edged.client import AsyncClient, Captured, Client, Detection, Result, Samples, open_source
    from edged.library import LoadedModel, load

__all__ = [
    "AsyncClient",
    "Captured",
    "Client",
    "Detection",
    "LoadedModel",
    "Result",
    "Samples",
    "__version__",
    "load",
    "open_source",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "edged.library" if name in ("LoadedModel", "load") else "edged.client"
    return getattr(importlib.import_module(home), name)

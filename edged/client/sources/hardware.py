"""Video decoders in hardware, as far as PyAV reaches them.

PyAV's own wheels know NVIDIA's (CUDA) and Intel's (QSV); one that was built against the system's FFmpeg may know
VA-API. On a Jetson none of them does, and GStreamer decodes instead (`edged.client.sources.gstreamer`).
"""

from __future__ import annotations

import functools
import glob
import importlib
from typing import Any

# A kind of decoder and the device file without which asking for it is in vain.
_KINDS = (("cuda", "/dev/nvidiactl"), ("vaapi", "/dev/dri/renderD*"), ("qsv", "/dev/dri/renderD*"))


def accelerator() -> Any:
    """For `av.open(hwaccel=...)`; None where there is no such decoder. What the hardware cannot is decoded in
    software."""
    kind = _usable()
    return None if kind is None else _settings(kind)


@functools.cache
def _usable() -> str | None:
    """The first kind whose device lets itself be opened, found out once."""
    try:
        module = importlib.import_module("av.codec.hwaccel")
        compiled = module.hwdevices_available()
        codec = importlib.import_module("av").Codec("h264", "r")
    except (ImportError, AttributeError, ValueError):  # PyAV before 14 has no such module
        return None
    for kind, device in _KINDS:
        if kind not in compiled or not glob.glob(device):
            continue
        try:
            _settings(kind).create(codec)
        except Exception:  # noqa: S112 - whatever a driver does, the next kind or software may do
            continue
        return kind
    return None


def _settings(kind: str) -> Any:
    return importlib.import_module("av.codec.hwaccel").HWAccel(kind, allow_software_fallback=True)

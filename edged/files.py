"""Reading files that somebody else may have put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular(path: Path) -> bytes:
    """All bytes of a regular file. OSError otherwise: a FIFO or device would hang or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is not a regular file")
        return file.read()

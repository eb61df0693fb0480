"""Tells a disk that fails from a model that is bad: runtimes have words of their own for what they could not read or
write, most of which blame the model. Runs in the child.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from edged.errors import EdgedError, OutOfSpace
from edged.files import disk_fault, disk_fault_behind, read_through

_PROBE = 64 << 10  # bytes


def fault(job: msgspec.Struct, error: BaseException) -> OutOfSpace | None:
    """What is wrong with the disk, where that is behind an error, whatever was made of it."""
    if (behind := disk_fault_behind(_place(job), error)) is not None:
        return behind
    try:
        if isinstance(error, EdgedError):
            require(job)
    except OutOfSpace as found:
        return found
    return None


def require(job: msgspec.Struct) -> None:
    """OutOfSpace where what a job writes cannot be written now, or the model that it reads cannot be read."""
    try:
        if getattr(job, "out", ""):
            with tempfile.TemporaryFile(dir=_place(job)) as file:
                file.write(bytes(_PROBE))
                file.flush()
                os.fsync(file.fileno())
        read_through(Path(getattr(job, "path", "") or getattr(getattr(job, "order", None), "model", "")))
    except OSError as error:
        if (found := disk_fault(_place(job), error)) is not None:
            raise found from error


def _place(job: msgspec.Struct) -> Path:
    """The folder that a job writes to, or else the one that its model is in."""
    out = Path(getattr(job, "out", ""))
    if str(out) != ".":
        return out if out.is_dir() else out.parent
    return Path(getattr(job, "path", "") or getattr(getattr(job, "order", None), "model", "")).parent

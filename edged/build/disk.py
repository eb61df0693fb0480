"""Tells a disk that fails from a model that is bad: runtimes have words of their own for what they could not read or
write, most of which blame the model. Runs in the child.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from edged.errors import EdgedError, OutOfSpace
from edged.files import disk_fault

_PROBE = 64 << 10  # bytes
_CHUNK = 1 << 20
_MOST_CHUNKS = 64  # of a model: one that is too large is refused without being read


def fault(job: msgspec.Struct, error: BaseException) -> OutOfSpace | None:
    """What is wrong with the disk, where that is behind an error, whatever was made of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and (found := disk_fault(_place(job), cause)) is not None:
            return found
        cause = cause.__cause__ or cause.__context__
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
        _read(Path(getattr(job, "path", "") or getattr(getattr(job, "order", None), "model", "")))
    except OSError as error:
        if (found := disk_fault(_place(job), error)) is not None:
            raise found from error


def _read(path: Path) -> None:
    if path.is_file():
        with path.open("rb", buffering=0) as file:
            for _ in range(_MOST_CHUNKS):
                if not file.read(_CHUNK):
                    return


def _place(job: msgspec.Struct) -> Path:
    """The folder that a job writes to, or else the one that its model is in."""
    out = Path(getattr(job, "out", ""))
    if str(out) != ".":
        return out if out.is_dir() else out.parent
    return Path(getattr(job, "path", "") or getattr(getattr(job, "order", None), "model", "")).parent

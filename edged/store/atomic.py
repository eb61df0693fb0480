"""Files and directories that appear whole or not at all, through a crash or power cut: stage, fsync, rename, fsync."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_file(path: Path, data: bytes, mode: int = 0o640) -> None:
    """Replaces `path` by `data`. Whatever happens, readers see the old content or the new, never a part."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes renames and new names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(root: Path) -> None:
    """Makes every file below `root`, and the directories that name them, durable."""
    for folder, _, names in os.walk(root):
        for name in names:
            handle = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_directory(Path(folder))


def publish(staged: Path, final: Path) -> None:
    """Moves a complete directory into place. FileExistsError when `final` is there, even as an empty directory."""
    if os.path.lexists(final):
        raise FileExistsError(17, "it exists already", str(final))
    sync_tree(staged)
    os.rename(staged, final)
    sync_directory(final.parent)

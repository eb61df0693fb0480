"""Writes files and directories that are complete or absent after a crash or power cut: stage, fsync, rename, fsync."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# Errors if the file system or the kernel does not support the flag, or a path is in the lower layer of a container.
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP)
_PART = ".part"
_STRAY_SECONDS = 60.0  # more than a slow box takes from creating a file to locking it


def write_file(path: Path, data: bytes, mode: int = 0o640) -> None:
    """Replace a file. Readers see either the complete old content or the complete new content."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_PART, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            os.replace(temporary, path)  # while the file is locked, so that `sweep` does not remove it
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


def sweep(folder: Path) -> None:
    """Remove temporary files that killed calls of `write_file` left in a folder. New and locked files stay."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f".*{_PART}"):
            # A clock that was set back, or starts in 1970, leaves files with future times.
            if abs(time.time() - path.lstat().st_mtime) > _STRAY_SECONDS and not _is_locked(path):
                path.unlink()


def _is_locked(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def prune(folder: Path, most: int) -> None:
    """Remove the oldest files of a folder until `most` files are left. Also remove temporary files as `sweep` does."""
    sweep(folder)
    with contextlib.suppress(OSError):
        files = sorted(folder.glob("[!.]*"), key=lambda path: path.stat().st_mtime)
        for path in files[: max(0, len(files) - most)]:
            path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(root: Path) -> None:
    """Make every file and directory below `root` durable."""
    for folder, _, names in os.walk(root):
        for name in names:
            handle = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_directory(Path(folder))


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step (renameat2(2) with RENAME_EXCHANGE). Return False if the file system does not support
    this."""
    with contextlib.suppress(AttributeError):  # a C library without the call
        swap = ctypes.CDLL(None, use_errno=True).renameat2
        if swap(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
            return True
        code = ctypes.get_errno()
        if code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code), str(other))
    return False


def publish(staged: Path, final: Path) -> None:
    """Move a complete directory into place. Raises FileExistsError if `final` exists, even as an empty directory."""
    if os.path.lexists(final):
        raise FileExistsError(17, "already exists", str(final))
    sync_tree(staged)
    os.rename(staged, final)
    sync_directory(final.parent)


_LOCK = ".owner"


class Staging:
    """A folder in which entries are created and removed. The folder is on the file system of the entries, so that a
    rename moves them.

    Several processes may share the folder: each locks its own stages. A stage that no live process has locked is a
    leftover, which the next start removes.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """Create an empty directory to build in. After the block, the directory and its content are removed."""
        with self._sweeping(fcntl.LOCK_SH):  # before it is locked, a new stage looks like a leftover
            home = Path(tempfile.mkdtemp(dir=self.root))
            try:
                lock = os.open(home / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            except BaseException:  # such as a full disk
                shutil.rmtree(home, ignore_errors=True)
                raise
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            out = home / "engine"
            out.mkdir()
            yield out
        finally:
            shutil.rmtree(home, ignore_errors=True)
            os.close(lock)

    def bury(self, entry: Path, heart: str) -> None:
        """Move an entry away in one step, then remove it, so that a crash leaves no partial entry.

        An entry that cannot be moved is removed in place, beginning with its file `heart`: a directory without that
        file is not an entry.
        """
        if not os.path.lexists(entry):
            return
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink()
            return
        try:
            grave = Path(tempfile.mkdtemp(dir=self.root))
        except OSError:  # a full disk
            _remove_in_place(entry, heart)
            return
        try:
            os.rename(entry, grave / "engine")
        except OSError:  # in the lower layer of a container's file system, or another process was faster
            _remove_in_place(entry, heart)
        finally:
            shutil.rmtree(grave, ignore_errors=True)

    def sweep(self) -> int:
        """Remove stages that no live process owns; return their number. Raises OSError if the folder cannot be read."""
        strays = 0
        with self._sweeping(fcntl.LOCK_EX):
            for stray in self.root.iterdir():
                if stray.is_dir() and not _is_owned(stray):
                    strays += 1
                    shutil.rmtree(stray, ignore_errors=True)
        return strays

    @contextmanager
    def _sweeping(self, mode: int) -> Iterator[None]:
        """Lock the folder: shared while a stage is created, exclusive while leftovers are removed."""
        lock = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)  # locks the folder itself
        try:
            fcntl.flock(lock, mode)
            yield
        finally:
            os.close(lock)


def _remove_in_place(entry: Path, heart: str) -> None:
    with contextlib.suppress(NotADirectoryError):
        (entry / heart).unlink(missing_ok=True)
    shutil.rmtree(entry, ignore_errors=True)


def _is_owned(stage: Path) -> bool:
    """Whether a live process holds the stage's lock."""
    try:
        lock = os.open(stage / _LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(lock)

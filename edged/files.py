"""Reads files that another user may have written, and explains errors of disks and permissions."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

import msgspec

from edged.errors import DiskFailing, EdgedError, InvalidInput, OutOfSpace, Overloaded

_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # in this process, or on the box
DISK_ERRORS = (*_FULL, errno.EIO, errno.EROFS)  # of a disk that is full, failing or read-only
_CHUNK, _MOST_CHUNKS = 1 << 20, 32  # to test a disk: bytes of one read, and about the most reads of one file
_LEAST_INODES = 32  # with fewer free inodes a file system counts as full: an engine needs a few files and folders
# Errors of msgspec for bytes that are not the expected JSON: JSON of another form, not UTF-8, nested too deeply.
NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def not_stored(what: str, error: OSError) -> EdgedError:
    """Return the error for data that cannot be stored: OutOfSpace, DiskFailing or Overloaded if the box or its disk is
    the cause, otherwise InvalidInput."""
    return _refusal(f"{what} could not be stored", error)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Convert an OSError of the `with` block into the error for a client, which says that `what` cannot be read. The
    error is InvalidInput only for a name that is too long; all other errors blame the box."""
    try:
        yield
    except OSError as error:
        found = _refusal(f"{what} cannot be read", error)
        is_of_box = isinstance(found, InvalidInput) and error.errno != errno.ENAMETOOLONG
        raise (DiskFailing(f"{found}; see edged doctor") if is_of_box else found) from error


def _refusal(what: str, error: OSError) -> EdgedError:
    kind: type[EdgedError] = InvalidInput
    if error.errno in DISK_ERRORS:
        kind = DiskFailing if error.errno == errno.EIO else OutOfSpace
    elif error.errno in (*NO_DESCRIPTORS, errno.ENOMEM):
        kind = Overloaded
    return kind(f"{what}: {error.strerror or error}" + ("; try again later" * (kind is Overloaded)))


def unwritable(folder: Path) -> str:
    """Return why a folder cannot be written; an empty string if it can. Nothing is written."""
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            return f"{folder} is not a directory"
        disk = os.statvfs(folder)
    except FileNotFoundError:
        above = next((each for each in folder.parents if each.exists()), folder)
        why = unwritable(above) if above != folder else ""
        return f"{folder} does not exist and cannot be created" + (f": {why}" if why else "")
    except OSError as error:
        return f"{folder} cannot be used: {error.strerror}"
    if disk.f_flag & os.ST_RDONLY:
        return f"{folder} is on a read-only file system"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} is not writable by this user"
    if disk.f_files and disk.f_favail < _LEAST_INODES:
        return f"{folder} is on a file system with {disk.f_favail} free inodes; remove some files"
    return ""


def disk_fault(where: Path, error: OSError) -> OutOfSpace | None:
    """Return the problem with the disk of `where` that an error reports; None if the error is not about the disk."""
    if error.errno in _FULL:
        return OutOfSpace(f"the disk of {where} is full ({error.strerror}); free some space or inodes")
    if error.errno in DISK_ERRORS:
        kind = DiskFailing if error.errno == errno.EIO else OutOfSpace
        return kind(f"the disk of {where} fails: {error.strerror}; see: dmesg")
    return None


def disk_fault_behind(where: Path, error: BaseException) -> OutOfSpace | None:
    """Search an error and its causes for the first one that reports a disk problem. Return the problem as `disk_fault`
    does; None if there is no such problem."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and (found := disk_fault(where, cause)) is not None:
            return found
        cause = cause.__cause__ or cause.__context__
    return None


def hand_over(path: Path) -> None:
    """Change the owner of a file that root created to the owner of the file's folder. The service runs as that user and
    reads the file."""
    if os.geteuid() == 0:
        above = path.parent.stat()
        os.chown(path, above.st_uid, above.st_gid)


def read_through(path: Path) -> None:
    """Read a file, or parts of a large file, to test its disk. Raises OSError if a read fails."""
    if path.is_file():
        size = path.stat().st_size
        with path.open("rb", buffering=0) as file:
            for position in range(0, size, max(_CHUNK, size // _MOST_CHUNKS)):
                file.seek(position)
                file.read(_CHUNK)


def read_regular(path: Path) -> bytes:
    """Return all bytes of a regular file. Raises OSError for other files: a read of a FIFO or device could hang or
    never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is not a regular file")
        return file.read()


def leads_outside(name: str | PurePath) -> bool:
    """Whether a path in a (perhaps hostile) package is unsafe: absolute, empty, or with `..` or a zero byte. Such a
    path may lead outside the package's folder."""
    pure = PurePath(name)
    return "\0" in str(pure) or pure.is_absolute() or ".." in pure.parts or not pure.parts


def read_inside(folder: Path, name: str | PurePath) -> bytes:
    """Return all bytes of a regular file that a package names by its path inside the package's `folder`.

    Raises OSError if the path leaves the folder or contains a symbolic link: otherwise a hostile package could name any
    file that the daemon can read.
    """
    with os.fdopen(_open_inside(folder, name), "rb") as file:
        return file.read()


def status_inside(folder: Path, name: str | PurePath) -> os.stat_result:
    """Return the status of a file inside a package's folder. Raises OSError as `read_inside` does."""
    handle = _open_inside(folder, name)
    try:
        return os.fstat(handle)
    finally:
        os.close(handle)


def _open_inside(folder: Path, name: str | PurePath) -> int:
    """Open a file inside a folder. Each folder of the path is opened relative to the previous one, so that none can be
    replaced by a link meanwhile."""
    if leads_outside(name):
        raise OSError(errno.EPERM, "the file lies outside the model's folder")
    pure = PurePath(name)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in pure.parts[:-1]:
            inner = _step(handle, step, os.O_PATH | os.O_DIRECTORY)
            os.close(handle)
            handle = inner
        file = _step(handle, pure.name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    finally:
        os.close(handle)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "the file is not a regular file")
    return file


def _step(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        is_link = error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(folder, name)
        if is_link:
            raise OSError(
                errno.ELOOP, "the path contains a link; copy the file itself into the model's folder"
            ) from None
        raise


def _is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def foreign(paths: Iterable[Path]) -> str:
    """Return why other users could have changed files or folders, with the remedy; an empty string if they could not.

    Trusted files belong to this user or root, and only this user, root or their groups may write them. A user that may
    write to a folder can replace its files, unless the folder is sticky, as /tmp is. Raises OSError if a path cannot be
    read.
    """
    for path in paths:
        status = path.stat()
        if status.st_uid not in (0, os.geteuid()):
            own = os.geteuid()
            return f"{path} belongs to {_user(status.st_uid)}, not to {_user(own)}; run: chown {own} {path}"
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if is_sticky:
            continue
        if status.st_mode & stat.S_IWOTH:
            return f"{path} can be written by all users; run: chmod o-w {path}"
        if status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid()):
            return f"{path} can be written by a group that is not {_user(os.geteuid())}'s own; run: chmod g-w {path}"
    return ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"

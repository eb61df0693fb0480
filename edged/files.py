"""Reading files that somebody else may have put there, and keeping what somebody gave."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from edged.errors import EdgedError, InvalidInput, OutOfSpace

_FULL = (errno.ENOSPC, errno.EDQUOT)
# What msgspec raises of bytes that are not the JSON that is wanted: no JSON, another one, no text, nested too deep.
NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def not_stored(what: str, error: OSError) -> EdgedError:
    """Why something that was given cannot be kept: a full disk is nobody's mistake."""
    kind = OutOfSpace if error.errno in _FULL else InvalidInput
    return kind(f"{what} could not be stored: {error.strerror or error}")


def read_regular(path: Path) -> bytes:
    """All bytes of a regular file. OSError otherwise: a FIFO or device would hang or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is not a regular file")
        return file.read()


def foreign(paths: Iterable[Path]) -> str:
    """Why files or folders may be somebody else's doing, with what to do about it; empty where they are ours.

    Ours is what we or root own, and only we, root or our own group may write. Whoever may write in a folder can replace
    what is in it, unless it is sticky, as /tmp is. OSError where one cannot be looked at.
    """
    for path in paths:
        status = path.stat()
        if status.st_uid not in (0, os.geteuid()):
            return f"{path} belongs to {_user(status.st_uid)}, not to {_user(os.geteuid())}; chown it"
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if is_sticky:
            continue
        if status.st_mode & stat.S_IWOTH:
            return f"{path} may be written by everybody; chmod o-w it"
        if status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid()):
            return f"{path} may be written by a group that is not {_user(os.geteuid())}'s own; chmod g-w it"
    return ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"

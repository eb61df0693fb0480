"""Whose a socket file is: its permissions are what proves who comes through it."""

from __future__ import annotations

import grp
import os
from pathlib import Path

_GROUP, _OWNER = 0o660, 0o600


def settle(path: Path, group: str = "") -> None:
    """Lets the owner and a group open a socket: the one that is named, otherwise the daemon's own.

    A group that does not exist here, or that the daemon is not in, opens nothing: then it is the owner's alone. OSError
    where the file cannot be changed.
    """
    mode = _GROUP
    if group and not _give(path, group):
        mode = _OWNER
    path.chmod(mode)


def _give(path: Path, group: str) -> bool:
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
    except (KeyError, PermissionError):
        return False
    return True

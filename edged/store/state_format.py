"""The format of the state directory as a whole, so that a box can go back to an older edged.

`format.json` says which format the directory has and which edged wrote it. A newer format is refused: an older edged
would take files that it cannot read for missing ones. Before a new edged changes an older format it keeps a copy, made
of hard links: every file of the state is replaced as a whole, so the copy stays as it was and costs no space.

FORMAT changes if an older edged can no longer use what this one writes, not with each new file or field.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from pathlib import Path

import msgspec

from edged.errors import Refused
from edged.store import sealed

_LOG = logging.getLogger("edged.store")
FORMAT = 1
FILE = "format.json"
_NOT_COPIED = ("lock", "before-format-*", ".before-format-*")


class Mark(msgspec.Struct, frozen=True):
    """Which format a directory has, and the version of edged that wrote it first."""

    format: int
    written_by: str


# Without the file: an edged from before it, or a new directory.
_FIRST = Mark(1, "")


def copy_name(number: int | str) -> str:
    """Return the name of the copy that is kept when a directory changes to a format."""
    return f"before-format-{number}"


def refusal(state: Path, found: Mark, version: str, ours: int = FORMAT) -> str:
    """Say why a directory cannot be used by this version, and the way back; empty if it can."""
    if found.format <= ours:
        return ""
    copies = f"{state}/{copy_name(ours + 1)}"
    return (
        f"{state} has format {found.format}, written by edged {found.written_by}; edged {version} reads up to {ours}:"
        f" install edged {found.written_by} again, or go back to the copy in {copies} (docs/upgrade.md)"
    )


def claim(state: Path, version: str, ours: int = FORMAT) -> None:
    """Mark a directory as used by this version, after a copy if that changes its format. Refused for a newer one.

    A disk that cannot be written keeps its mark.
    """
    written = sealed.read(state / FILE, Mark, "format")
    found = written or _FIRST
    if why := refusal(state, found, version, ours):
        raise Refused(why)
    with contextlib.suppress(OSError):
        if found.format < ours:
            _keep_copy(state, state / copy_name(ours))
            _LOG.info("%s changes from format %d to %d; a copy is kept", state, found.format, ours)
        if written is None or found.format < ours:
            sealed.write(state / FILE, Mark(ours, version))


def _keep_copy(state: Path, copy: Path) -> None:
    """Copy a directory by hard links; a complete copy from before stays."""
    if copy.exists():
        return
    part = copy.with_name(f".{copy.name}")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(state, part, symlinks=True, copy_function=os.link, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    part.rename(copy)

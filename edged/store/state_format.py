"""The format of the state directory as a whole, so that a box can go back to an older edged.

`format.json` says which format the directory has and which edged wrote it. A newer format is refused, because an older
edged would treat files that it cannot read as missing. Before a new edged changes an older format, it copies the
directory with hard links. The copy takes no space and never changes, because edged never changes a file of the state in
place, but replaces it.

Increase FORMAT only if an older edged can no longer use the files of this one, not for each new file or field.
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
# In the state directory itself. Pictures of cameras are not copied: removing them must remove them.
_NOT_COPIED = ("lock", "frames", "before-format-*", ".before-format-*")


class Mark(msgspec.Struct, frozen=True):
    """The format of a directory, and the version of edged that first wrote it."""

    format: int
    written_by: str


# For a directory without `format.json`: it is new, or an edged that did not write this file yet has used it.
_FIRST = Mark(1, "")


def copy_name(number: int | str) -> str:
    """Return the name of the copy that is made before a directory changes to format `number`."""
    return f"before-format-{number}"


def refusal(state: Path, found: Mark, version: str, ours: int = FORMAT) -> str:
    """Return why this version cannot use a directory, with the remedy; empty if it can."""
    if found.format <= ours:
        return ""
    copies = f"{state}/{copy_name(ours + 1)}"
    return (
        f"{state} has format {found.format}, written by edged {found.written_by}; edged {version} reads up to {ours}:"
        f" install edged {found.written_by} again, or go back to the copy in {copies} (docs/upgrade.md)"
    )


def claim(state: Path, version: str, ours: int = FORMAT) -> None:
    """Mark a directory with the format of this version. If its format changes, copy the directory first.

    Raises Refused if the directory has a newer format. The mark does not change if the disk cannot be written.
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
    """Copy a directory with hard links, unless a complete copy exists."""
    if copy.exists():
        return
    part = copy.with_name(f".{copy.name}")
    shutil.rmtree(part, ignore_errors=True)
    matching = shutil.ignore_patterns(*_NOT_COPIED)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return matching(folder, names) if Path(folder) == state else set()

    shutil.copytree(state, part, symlinks=True, copy_function=os.link, ignore=left_out)
    part.rename(copy)

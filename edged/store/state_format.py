"""The format of the state directory as a whole, so that a box can go back to an older edged.

`format.json` says which format the directory has and which edged wrote it. A newer format is refused, because an older
edged could not read some files, and would act as if these files were missing. Before a new edged changes an older
format, it copies the directory, without pictures of cameras, with hard links. The copy takes hardly any space at first.
edged replaces each file of the state and does not change it in place, so the files in the copy stay the same. The only
exceptions are the audit log and trace files, which grow in the copy too. The directory gets the mark of the new format
only when the new edged can serve.

Increase FORMAT only if an older edged can no longer use the files of this one, not for each new file or field.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import msgspec

from edged.errors import Refused
from edged.store import atomic, sealed

_LOG = logging.getLogger("edged.store")
FORMAT = 1
FILE = "format.json"
# Names in the state directory itself. Pictures of cameras are not copied, because no copy of a removed picture may
# remain.
_NOT_COPIED = ("lock", "frames", "drift", "events", "before-format-*", ".before-format-*")


class Mark(msgspec.Struct, frozen=True):
    """The format of a directory, and the version of edged that first wrote this format."""

    format: int
    written_by: str


# The mark of a directory without `format.json`: the directory is new, or only an edged that did not write this file yet
# has used it.
_FIRST = Mark(1, "")


def copy_name(number: int | str) -> str:
    """Return the name of the copy that is made before a directory changes to format `number`."""
    return f"before-format-{number}"


def refusal(state: Path, found: Mark, version: str, ours: int = FORMAT) -> str:
    """Return why this version of edged cannot use a directory, with the remedy; empty if it can."""
    if found.format <= ours:
        return ""
    copies = f"{state}/{copy_name(ours + 1)}"
    return (
        f"{state} has format {found.format}, written by edged {found.written_by}, but edged {version} reads formats up"
        f" to {ours}: install edged {found.written_by} again, or go back to the copy in {copies} (docs/upgrade.md)"
    )


def prepare(state: Path, version: str, ours: int = FORMAT) -> None:
    """Copy a directory whose format this version will change. Call this before anything is written.

    Raises Refused if the directory has a newer format, or if it cannot be read or copied.
    """
    found = _read(state)
    if why := refusal(state, found, version, ours):
        raise Refused(why)
    if found.format == ours:
        return
    try:
        _keep_copy(state, state / copy_name(ours))
    except OSError as error:
        if error.errno != errno.EROFS:  # on a read-only disk nothing is written, so nothing needs a copy
            raise Refused(
                f"{state} cannot be copied before its format changes: {_reason(error)}; free space or correct"
                f" permissions in {state}, or install the previous version of edged again"
            ) from error


def claim(state: Path, version: str, ours: int = FORMAT) -> None:
    """Mark a directory with the format of this version. Call this when the daemon can serve, but before tasks start
    that write files of this format. If a new version cannot start, the old version must still accept the directory.

    Raises Refused if the format changes and the mark cannot be written.
    """
    found = _read(state)
    if found is not _FIRST and found.format == ours:
        return
    try:
        sealed.write(state / FILE, Mark(ours, version))
    except OSError as error:
        if found.format < ours and error.errno != errno.EROFS:
            raise Refused(
                f"{state / FILE} cannot be written: {_reason(error)}; free space or correct permissions in {state},"
                " then restart edged"
            ) from error
    else:
        if found.format < ours:
            copy = state / copy_name(ours)
            _LOG.info("%s changes from format %d to %d; a copy is kept in %s", state, found.format, ours, copy)


def _read(state: Path) -> Mark:
    """Return the mark of a directory. A damaged mark counts as missing if the directory has no copy from an earlier
    change of format. Otherwise raise Refused if the mark cannot be read: the directory may have a newer format."""
    path = state / FILE
    try:
        return sealed.unseal(path.read_bytes(), Mark)
    except (FileNotFoundError, NotADirectoryError):
        return _FIRST
    except (OSError, sealed.Damaged) as error:
        if isinstance(error, sealed.Damaged) and not any(state.glob(copy_name("*"))):
            return _FIRST
        raise Refused(
            f"{path} cannot be read, so the format of {state} is unknown: {_reason(error)}; restore the file from a"
            " backup, or go back to a copy (docs/upgrade.md)"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, shutil.Error):  # it has a list of (source, target, reason)
        source, _, reason = error.args[0][0]
        return f"{source}: {reason}"[:300]
    return (getattr(error, "strerror", None) or str(error))[:300]


def _keep_copy(state: Path, copy: Path) -> None:
    """Copy a directory with hard links. An existing copy comes from an upgrade that did not succeed, so it is
    replaced."""
    part = copy.with_name(f".{copy.name}")
    shutil.rmtree(part, ignore_errors=True)
    matching = shutil.ignore_patterns(*_NOT_COPIED)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return matching(folder, names) if Path(folder) == state else set()

    shutil.copytree(state, part, symlinks=True, copy_function=_link_or_copy, ignore=left_out)
    for folder, _, _ in os.walk(part):
        atomic.sync_directory(Path(folder))
    shutil.rmtree(copy, ignore_errors=True)
    part.rename(copy)
    atomic.sync_directory(state)


def _link_or_copy(source: str, target: str) -> None:
    """Make a hard link, or a copy if no link is possible. The kernel may forbid a link to another user's file. The file
    system may have no links, or the file may be on another file system."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        shutil.copy2(source, target, follow_symlinks=False)
        handle = os.open(target, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

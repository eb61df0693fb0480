"""Checks of the folders for models and engines: whether they can be written, who owns them, and the free space."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edged.config import Engines
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong
from edged.doctor.hardware import user_name

_FULL_BYTES = 1 << 20  # a disk with less free space counts as full, also for builds
_OTHERS_SEEN = 2000  # entries whose owners are checked


class Folder(msgspec.Struct, frozen=True):
    """A folder's facts. `refusal` says why the folder cannot be written; it is empty if the folder can be written.
    `others` counts the entries in the folder that have another owner. If the folder does not exist, the facts except
    `path` and `exists` are about the nearest existing folder above it."""

    path: str
    exists: bool
    refusal: str = ""
    uid: int = 0
    others: int = 0
    free_bytes: int | None = None  # None if the folder's facts cannot be read
    free_files: int | None = None  # None if the file system does not count them


def look(path: Path) -> Folder:
    """Read a folder's facts. A temporary file is written and removed, since only this shows whether the folder can be
    written."""
    path = path.absolute()
    place = next((each for each in (path, *path.parents) if os.path.lexists(each)), Path("/"))
    try:
        status, disk = place.stat(), os.statvfs(place)
    except OSError as error:
        return Folder(str(path), place == path, error.strerror or str(error))
    return Folder(
        str(path),
        place == path,
        _refusal(place) if stat.S_ISDIR(status.st_mode) else f"{place} is not a directory",
        status.st_uid,
        _others(path, status.st_uid) if place == path else 0,
        disk.f_bavail * disk.f_frsize,
        disk.f_favail if disk.f_files else None,
    )


def _refusal(place: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=place, prefix=".edged-doctor-") as file:
            file.write(b"edged doctor\n")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _others(folder: Path, owner: int) -> int:
    """Return how many of the first 2000 entries below a folder do not belong to `owner`."""
    count = seen = 0
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            seen += 1
            if seen > _OTHERS_SEEN:
                return count
            try:
                count += os.lstat(os.path.join(base, name)).st_uid != owner
            except OSError:
                continue
    return count


def ownership(name: Name, folder: Folder, daemon_uid: int | None) -> Iterator[Check]:
    """Check whether this user can write to a folder, and whether the daemon's user `daemon_uid` owns the folder. If
    `daemon_uid` is root or None (no daemon runs, or its user is unknown), any owner is right."""
    owner = user_name(folder.uid)
    if folder.refusal:
        what = "cannot be written" if folder.exists else "does not exist and cannot be created"
        remedy = "make the disk writable, give the folder to the user that runs edged (chown), or name another folder"
        yield wrong(name, f"the folder {what}: {folder.refusal}", remedy, folder.path)
    elif not folder.exists:
        yield ok(name, "the folder does not exist yet and can be created", folder.path)
    elif daemon_uid not in (None, 0, folder.uid):
        user = user_name(daemon_uid or 0)
        message = f"the folder belongs to {owner}, but the daemon runs as {user}"
        yield wrong(name, message, f"chown -R {user} {folder.path}", folder.path)
    elif folder.others:
        message = f"{folder.others} entries in the folder do not belong to {owner}, the owner of the folder"
        yield warning(name, message, f"chown -R {owner} {folder.path}", folder.path)
    else:
        yield ok(name, f"the folder can be written and belongs to {owner}", folder.path)


def space(folder: Folder, engine_bytes: int, settings: Engines) -> Check:
    """Check the free space for engines against the limits of the configuration."""
    free, budget = folder.free_bytes, settings.budget_mb << 20
    if free is None:
        return unknown(Name.DISK_SPACE, "the free space for engines cannot be read", folder.path)
    message = f"{free >> 20} MiB are free, and engines take {engine_bytes >> 20} MiB"
    message += f" of the {settings.budget_mb} MiB allowed (engines.budget_mb)" if budget else ""
    remedy = "free some space, or evict engines: edged engines evict --all"
    if free < _FULL_BYTES:
        return wrong(Name.DISK_SPACE, f"the disk is full: {message}", remedy, folder.path)
    if folder.free_files == 0:
        remedy = "delete files that are not needed (see: df -i), or evict engines: edged engines evict --all"
        return wrong(Name.DISK_SPACE, "the file system has no inodes left", remedy, folder.path)
    if free < settings.keep_free_mb << 20:
        message += f"; {settings.keep_free_mb} MiB must stay free (engines.keep_free_mb), so no engine is built"
        return wrong(Name.DISK_SPACE, message, remedy, folder.path)
    if budget and engine_bytes > budget:
        return warning(
            Name.DISK_SPACE,
            f"engines take more space than allowed: {message}",
            "raise engines.budget_mb, or unpin engines",
            folder.path,
        )
    return ok(Name.DISK_SPACE, message, folder.path)

"""The folders for models and engines: whether they can be written, whose they are, and whether there is room."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edged.config import Engines
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong

_FULL_BYTES = 1 << 20  # with fewer free a disk counts as full, as for builds
_OTHERS_SEEN = 2000  # entries that are looked at for owners


class Folder(msgspec.Struct, frozen=True):
    """A folder as it is: `refusal` says why nothing can be written there, `others` counts entries of other owners.

    Where it is not there, `exists` is False and the rest is about the nearest folder above it.
    """

    path: str
    exists: bool
    refusal: str = ""
    uid: int = 0
    others: int = 0
    free_bytes: int | None = None  # None where the disk does not answer
    free_files: int | None = None  # None where the file system does not count them


def look(path: Path) -> Folder:
    """Writes and removes a nameless file, since only that tells; nothing stays behind."""
    path = path.absolute()
    place = next((each for each in (path, *path.parents) if os.path.lexists(each)), Path("/"))
    try:
        status, disk = place.stat(), os.statvfs(place)
    except OSError as error:
        return Folder(str(path), place == path, error.strerror or str(error))
    free_files = disk.f_favail if disk.f_files else None
    refusal = "" if stat.S_ISDIR(status.st_mode) else f"{place} is not a directory"
    return Folder(
        str(path),
        place == path,
        refusal or _refusal(place),
        status.st_uid,
        _others(path, status.st_uid) if place == path else 0,
        disk.f_bavail * disk.f_frsize,
        free_files,
    )


def judge(name: Name, folder: Folder, daemon_uid: int | None) -> Iterator[Check]:
    """Judges one folder. `daemon_uid` is who the daemon runs as, None where none runs or it cannot be seen."""
    if folder.refusal:
        what = "cannot be written" if folder.exists else "is not there and cannot be made"
        remedy = "mount it writable, give it to the user that runs edged (chown), or name another folder"
        yield wrong(name, f"it {what}: {folder.refusal}", remedy, folder.path)
        return
    if not folder.exists:
        yield ok(name, "it is not there yet and can be made", folder.path)
        return
    if daemon_uid is not None and folder.uid != daemon_uid and daemon_uid != 0:
        said = f"it belongs to {_user(folder.uid)} and the daemon runs as {_user(daemon_uid)}"
        yield wrong(name, said, f"chown -R {_user(daemon_uid)} {folder.path}", folder.path)
    elif folder.others:
        said = f"{folder.others} entries in it belong to others than {_user(folder.uid)}, who owns it"
        yield warning(name, said, f"chown -R {_user(folder.uid)} {folder.path}", folder.path)
    else:
        yield ok(name, f"it can be written and belongs to {_user(folder.uid)}", folder.path)


def space(folder: Folder, engine_bytes: int, settings: Engines) -> Check:
    """Judges the room for engines against what the configuration wants."""
    free, budget = folder.free_bytes, settings.budget_mb << 20
    if free is None:
        return unknown(Name.DISK_SPACE, "the folder for engines cannot be looked at", folder.path)
    said = f"{_mb(free)} MiB are free and engines take {_mb(engine_bytes)} MiB"
    said += f" of the {settings.budget_mb} that they may" if budget else ""
    remedy = "free some space, or evict engines: edged engines evict --all"
    if free < _FULL_BYTES:
        return wrong(Name.DISK_SPACE, f"the disk is full: {said}", remedy, folder.path)
    if folder.free_files == 0:
        return wrong(Name.DISK_SPACE, "the file system has no inodes left", remedy, folder.path)
    if free < settings.keep_free_mb << 20:
        said += f"; {settings.keep_free_mb} MiB are to stay free (engines.keep_free_mb), so nothing is built"
        return wrong(Name.DISK_SPACE, said, remedy, folder.path)
    if budget and engine_bytes > budget:
        return warning(Name.DISK_SPACE, said, "raise engines.budget_mb, or unpin engines", folder.path)
    return ok(Name.DISK_SPACE, said, folder.path)


def _refusal(place: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=place, prefix=".edged-doctor-") as file:
            file.write(b"edged doctor\n")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _others(folder: Path, owner: int) -> int:
    """How many of the first entries below a folder belong to somebody else."""
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


def _mb(count: int) -> int:
    return count >> 20


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

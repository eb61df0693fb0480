"""A ring of pictures in POSIX shared memory, which the daemon reads where they lie: a raw picture is copied once on its
way to the engine, instead of through gRPC. `edged.shared_layout` describes the ring."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edged import shared_layout as layout
from edged.errors import InvalidInput, OutOfSpace

Pixels: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Place:
    """Where a picture lies, as `edged.v1.SharedImage` announces it: bytes, but for the stamp."""

    segment: str
    offset: int
    stamp: int
    size: int


class SharedRing(AbstractContextManager["SharedRing"]):
    """Holds the newest `slots` pictures of up to `slot_bytes` each; larger ones have it make a larger segment.

    `group` may read it too (a group id), for a daemon of another user. `close`, from any thread, the end of a `with`
    block, of the last reference or of the program removes it; what a killed program left is removed by the next ring
    of its user. OutOfSpace where there is no room for it: containers have 64 MB unless `--shm-size` says more.
    """

    def __init__(
        self, slots: int = 8, slot_bytes: int = 1 << 20, *, group: int | None = None, folder: Path = layout.FOLDER
    ) -> None:
        if not 2 <= slots <= 4096 or slot_bytes < 1:
            raise InvalidInput(f"a ring of {slots} slots of {slot_bytes} bytes cannot be; give 2 to 4096 slots")
        sweep(folder)
        self._slots, self._group, self._folder = slots, group, folder
        self._stamp = self._written = 0
        self._segment = _Segment(folder, slots, slot_bytes, group)
        self._lock = threading.Lock()
        self._closed = False
        self._before: _Segment | None = None  # its pictures may still be waiting to be read

    @property
    def segment(self) -> str:
        """The name of the segment that is written now, as shm_open(3) takes it."""
        return self._segment.name

    def put(self, picture: bytes | bytearray | memoryview | Pixels) -> Place:
        """Writes a picture over the oldest one. InvalidInput after `close`."""
        whole = np.ascontiguousarray(picture).data if isinstance(picture, np.ndarray) else memoryview(picture)
        data = whole.cast("B")
        with self._lock:
            if self._closed:
                raise InvalidInput("the ring is closed; make another one")
            return self._put(data)

    def close(self) -> None:
        """Removes it. What was announced and not opened by then is refused, what was opened can still be read."""
        with self._lock:
            self._closed = True
            self._segment.remove()
            if self._before is not None:
                self._before.remove()

    def _put(self, data: memoryview) -> Place:
        if len(data) > self._segment.slot_bytes:
            self._grow(len(data))
        index, self._written = self._written % self._slots, self._written + 1
        if self._before is not None and self._written > self._slots:
            self._before.remove()
            self._before = None
        self._stamp += 1
        offset = self._segment.write(index, data, self._stamp)
        return Place(self._segment.name, offset, self._stamp, len(data))

    def _grow(self, size: int) -> None:
        larger = _Segment(self._folder, self._slots, size, self._group)
        if self._before is not None:
            self._before.remove()
        self._before, self._segment, self._written = self._segment, larger, 0

    def __exit__(self, *_: object) -> None:
        self.close()


class _Segment:
    """One file. Its lock says that its client lives, also to those that do not see the client's process."""

    def __init__(self, folder: Path, slots: int, slot_bytes: int, group: int | None) -> None:
        self.slot_bytes = slot_bytes
        self._step = layout.slot_size(slot_bytes)
        path = folder / f"{layout.PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        self.name = f"/{path.name}"
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o600)
            self._removal = weakref.finalize(self, _remove, self._descriptor, path, os.getpid())
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if group is not None:
                os.fchown(self._descriptor, -1, group)
                os.fchmod(self._descriptor, 0o640)
            # Writing to a segment without room would fail later, in the middle of a stream.
            os.posix_fallocate(self._descriptor, 0, self._step * slots)
        except OSError as error:
            removal = getattr(self, "_removal", None)
            if removal is not None:
                removal()
            raise OutOfSpace(
                f"shared memory of {self._step * slots} bytes cannot be had in {folder}: {error.strerror}"
            ) from None

    def write(self, index: int, data: memoryview, stamp: int) -> int:
        """Puts a picture into a slot; the slot's offset. In this order a reader never takes a half-written one."""
        offset = index * self._step
        os.pwrite(self._descriptor, layout.STAMP.pack(0), offset)
        position = 0
        while position < len(data):
            position += os.pwrite(self._descriptor, data[position:], offset + layout.HEADER + position)
        os.pwrite(self._descriptor, layout.STAMP.pack(stamp), offset)
        return offset

    def remove(self) -> None:
        self._removal()


def _remove(descriptor: int, path: Path, owner: int) -> None:
    """In a process that was forked from the client, the segment is still the client's."""
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            path.unlink()
    os.close(descriptor)


def sweep(folder: Path = layout.FOLDER) -> None:
    """Removes segments of this user whose clients were killed."""
    for path in _left(folder):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                # A client of another container has a number of its own, but its lock counts here too.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)


def _left(folder: Path) -> Iterator[Path]:
    for path in folder.glob(f"{layout.PREFIX}*-*"):
        owner = path.name.split("-")[1]
        with contextlib.suppress(OSError):
            status = path.lstat()
            is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if is_ours and owner.isdecimal() and not os.path.exists(f"/proc/{owner}"):
                yield path


def readers_group(socket: Path) -> int | None:
    """Which group has to be let in for the daemon behind a unix socket to read what this user writes; None where none
    has to, or none can. A daemon of root, or of this user, reads it anyway."""
    try:
        status = socket.stat()
    except OSError:
        return None
    if status.st_uid in (0, os.geteuid()):
        return None
    return status.st_gid if status.st_gid in (os.getegid(), *os.getgroups()) else None

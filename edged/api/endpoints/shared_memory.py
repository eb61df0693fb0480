"""Shared memory of clients, as the daemon reads and writes it; `edged.shared_layout` describes the ring of pictures.

Nothing that a client does to its memory can hurt the daemon: the daemon opens an object once, by a name that cannot
lead outside the folder, and never maps it. A client can spoil only its own pictures and tensors.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections import OrderedDict
from pathlib import Path

from edged import shared_layout as layout
from edged.api.auth.identity import READ, WRITE, Identify, Identity, anyone
from edged.errors import EdgedError, InvalidInput, Overwritten, SegmentUnusable

LARGEST_OFFSET = 1 << 62
_MOST_SEGMENTS = 4  # limit of open segments of one stream; a ring that grows makes a new segment
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class SharedObject:
    """An open shared memory object; the object is closed when the last reference to this instance is dropped.
    `is_writable`: client and daemon may both write the object."""

    def __init__(
        self, folder: Path, name: str, client: Identity, error: type[EdgedError], *, for_writing: bool = False
    ) -> None:
        """Raise `error` for an invalid name or an unusable object, or if `client` itself could not open the object."""
        self.name = name
        if "/" in name or "\0" in name or name in ("", ".", "..") or len(os.fsencode(name)) > 255:
            raise error(f"invalid name of shared memory {name[:80]!r}: give the name of a file in /dev/shm")
        try:
            descriptor, is_writable = _opened(folder / name, for_writing)
        except OSError as problem:
            raise error(f"shared memory {name!r} cannot be opened: {_why(problem)}") from None
        status = os.fstat(descriptor)
        if unfit := _unfit(status, client):
            os.close(descriptor)
            raise error(f"shared memory {name!r} {unfit}")
        self._descriptor, self.is_writable = descriptor, is_writable and client.may(status, WRITE)
        weakref.finalize(self, os.close, descriptor)

    def length(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, place: memoryview, offset: int) -> str:
        """Fill `place` from byte `offset` of the object. Return an empty text, or why reading failed."""
        position = 0
        while position < len(place):
            try:
                count = os.preadv(self._descriptor, [place[position:]], offset + position)
            except OSError as error:
                return f"cannot be read: {error.strerror}"
            if not count:
                return "was truncated before it was read"
            position += count
        return ""

    def write(self, contents: memoryview, offset: int) -> str:
        """Write `contents` at byte `offset` of the object. Return an empty text, or why writing failed."""
        done = 0
        while done < len(contents):
            try:
                done += os.pwritev(self._descriptor, [contents[done:]], offset + done)
            except OSError as error:
                return f"cannot be written: {error.strerror}"
        return ""


def _opened(path: Path, for_writing: bool) -> tuple[int, bool]:
    """Return a descriptor, and whether the descriptor is writable. Raises OSError."""
    if for_writing:
        try:
            return os.open(path, os.O_RDWR | _FLAGS), True
        except PermissionError:
            pass
    return os.open(path, os.O_RDONLY | _FLAGS), False


def _why(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it is a symbolic link"
    if error.errno == errno.ENOENT:
        return "it does not exist here; the client may be in another container"
    return error.strerror or str(error)


def _unfit(status: os.stat_result, client: Identity) -> str:
    """Return why a file cannot be shared memory of a client; empty if the file can."""
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_nlink > 1:
        return "has several hard links, and one may belong to another user"
    if status.st_mode & stat.S_IWOTH:
        return "is writable by every user; create it with mode 0600 or 0640"
    if not client.may(status, READ):
        return "is not readable by every client of this address; give it to the group of the daemon's socket"
    return ""


class Segments:
    """The shared memory segments that one stream announced. Call `picture` for each announcement; pictures stay
    readable after `close`."""

    def __init__(self, folder: Path = layout.FOLDER, client: Identify = anyone) -> None:
        """`client` returns the client's identity: the daemon reads only segments that the client itself could read."""
        self._folder, self._client = folder, client
        self._open: OrderedDict[str, SharedObject] = OrderedDict()

    def picture(self, name: str, offset: int, stamp: int, size: int) -> SharedPicture:
        """Return the announced picture; its bytes are read later.

        Raises SegmentUnusable if the daemon cannot read the segment: then all pictures in the segment are lost. Raises
        InvalidInput if the place is outside the segment, or if size or stamp is 0.
        """
        name = name.removeprefix("/")
        length = self._segment(name).length()  # no variable holds the segment, because a traceback would keep it open
        if size <= 0 or stamp <= 0:
            raise InvalidInput(f"the shared image has size {size} and stamp {stamp}; both must be at least 1")
        if not 0 <= offset <= LARGEST_OFFSET or offset + layout.HEADER + size > length:
            raise InvalidInput(
                f"the shared image has {size} bytes at offset {offset}, but segment {name} has {length} bytes"
            )
        return SharedPicture(self._open[name], offset, stamp, size)

    def close(self) -> None:
        self._open.clear()

    def _segment(self, name: str) -> SharedObject:
        segment = self._open.get(name)
        if segment is None:
            if not name.startswith(layout.PREFIX):
                raise SegmentUnusable(f"invalid segment name {name[:80]!r}: it must begin with {layout.PREFIX}")
            segment = self._open[name] = SharedObject(self._folder, name, self._client(), SegmentUnusable)
        self._open.move_to_end(name)
        if len(self._open) > _MOST_SEGMENTS:
            self._open.popitem(last=False)
        return segment


class SharedPicture:
    """One announced picture. This instance keeps the segment open until the instance is dropped or a read fails. After
    a failed read, later reads fail in the same way."""

    __slots__ = ("_failure", "_offset", "_segment", "_stamp", "size")

    def __init__(self, segment: SharedObject, offset: int, stamp: int, size: int) -> None:
        self._offset, self._stamp, self.size = offset, stamp, size
        self._segment: SharedObject | None = segment
        self._failure: tuple[type[EdgedError], str] = (SegmentUnusable, "")  # the error of a read that failed

    def read_into(self, place: memoryview) -> None:
        """Copy the picture into `place`, which has `size` bytes. On its way to the engine, the picture is copied only
        here. Raises Overwritten if the client reused the picture's slot, SegmentUnusable if the segment cannot be
        read."""
        problem = self._stamp_problem() or self._read(place, layout.HEADER) or self._stamp_problem()
        if problem is not None:
            # Store the class and message, not the error: its traceback would keep the local variables of its frames.
            self._segment, self._failure = None, (type(problem), problem.message)
            raise problem

    def _stamp_problem(self) -> EdgedError | None:
        header = bytearray(layout.STAMP.size)
        problem = self._read(memoryview(header), 0)
        if problem is None and layout.STAMP.unpack(header)[0] != self._stamp:
            return Overwritten(
                "the client overwrote the picture's slot in shared memory before the daemon read it; use more slots"
            )
        return problem

    def _read(self, place: memoryview, position: int) -> EdgedError | None:
        if self._segment is None:
            kind, message = self._failure
            return kind(message)
        problem = self._segment.read(place, self._offset + position)
        return SegmentUnusable(f"shared memory {self._segment.name} {problem}") if problem else None


def is_local(peer: str) -> bool:
    """Whether a gRPC peer is on this machine and can share memory with the daemon."""
    return peer.startswith(("unix:", "ipv4:127.", "ipv6:%5B::1%5D", "ipv6:[::1]"))

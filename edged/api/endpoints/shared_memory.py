"""Pictures in a client's shared memory, as the daemon reads them; `edged.shared_layout` describes the ring.

Nothing that a client does to its segment can hurt the daemon: it is opened once, by a name that cannot leave the
folder, only read, and never mapped. All that a client can spoil is its own picture.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections import OrderedDict
from pathlib import Path

from edged import shared_layout as layout
from edged.api.auth.identity import READ, Identify, Identity, anyone
from edged.errors import EdgedError, InvalidInput, Overwritten, SegmentUnusable

_MOST_SEGMENTS = 4  # of one stream; a ring that grows makes a new one
_LARGEST_OFFSET = 1 << 62
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Segments:
    """The segments that one stream announced. `picture` for each announcement; `close` when the stream ends: pictures
    that were not read by then can still be."""

    def __init__(self, folder: Path = layout.FOLDER, client: Identify = anyone) -> None:
        """`client` says who announces them: those that it could not read itself are not read for it."""
        self._folder, self._client = folder, client
        self._open: OrderedDict[str, _Segment] = OrderedDict()

    def picture(self, name: str, offset: int, stamp: int, size: int) -> SharedPicture:
        """The picture that was announced, not read yet.

        SegmentUnusable where the segment cannot be read by this daemon, in which case no other picture in it can;
        InvalidInput for a place outside of it, or where nothing is announced (size 0).
        """
        name = name.removeprefix("/")
        length = self._segment(name).length()  # not kept here: the traceback of an error would keep it open
        if size <= 0 or stamp <= 0:
            raise InvalidInput("the shared image announces no picture: its size or its stamp is 0")
        if not 0 <= offset <= _LARGEST_OFFSET or offset + layout.HEADER + size > length:
            raise InvalidInput(f"the shared image lies at {offset} and has {size} bytes; segment {name} has {length}")
        return SharedPicture(self._open[name], offset, stamp, size)

    def close(self) -> None:
        self._open.clear()

    def _segment(self, name: str) -> _Segment:
        segment = self._open.get(name)
        if segment is None:
            segment = self._open[name] = _Segment(self._folder, name, self._client())
        self._open.move_to_end(name)
        if len(self._open) > _MOST_SEGMENTS:
            self._open.popitem(last=False)
        return segment


class SharedPicture:
    """One announced picture; keeps its segment open until it is dropped, or cannot be read."""

    __slots__ = ("_offset", "_segment", "_stamp", "size")

    def __init__(self, segment: _Segment, offset: int, stamp: int, size: int) -> None:
        self._offset, self._stamp, self.size = offset, stamp, size
        self._segment: _Segment | None = segment

    def read_into(self, place: memoryview) -> None:
        """Copies the picture into `place`, of `size` bytes: the one copy on its way to the engine. Overwritten where
        another picture has taken its slot, SegmentUnusable where the segment was cut off."""
        problem = self._stamp_problem() or self._read(place, layout.HEADER) or self._stamp_problem()
        if problem is not None:
            self._segment = None
            raise problem

    def _stamp_problem(self) -> EdgedError | None:
        header = bytearray(layout.STAMP.size)
        problem = self._read(memoryview(header), 0)
        if problem is None and layout.STAMP.unpack(header)[0] != self._stamp:
            return Overwritten("the picture's place in shared memory was used again before its turn; use more slots")
        return problem

    def _read(self, place: memoryview, position: int) -> EdgedError | None:
        if self._segment is None:
            return SegmentUnusable("the picture could not be read before")
        problem = self._segment.read(place, self._offset + position)
        return SegmentUnusable(f"shared memory {self._segment.name} {problem}") if problem else None


class _Segment:
    """One open segment; closed when nothing refers to it any more."""

    def __init__(self, folder: Path, name: str, client: Identity) -> None:
        self.name = name
        self._descriptor = _opened(folder, name, client)
        weakref.finalize(self, os.close, self._descriptor)

    def length(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, place: memoryview, offset: int) -> str:
        """Fills `place`; what is wrong where that is impossible, empty when nothing is."""
        return fill(self._descriptor, place, offset)


def _opened(folder: Path, name: str, client: Identity) -> int:
    """The descriptor of a segment that may be read."""
    if not name.startswith(layout.PREFIX) or "/" in name or "\0" in name or len(os.fsencode(name)) > 255:
        raise SegmentUnusable(
            f"{name[:80]!r} is no segment for edged: name it {layout.PREFIX}..., with no / but the first"
        )
    try:
        descriptor = os.open(folder / name, _FLAGS)
    except OSError as error:
        raise SegmentUnusable(f"shared memory {name} cannot be opened: {why_unopened(error)}") from None
    problem = problem_of(os.fstat(descriptor), client)
    if problem:
        os.close(descriptor)
        raise SegmentUnusable(f"shared memory {name} {problem}")
    return descriptor


def fill(descriptor: int, place: memoryview, offset: int) -> str:
    """Fills `place` from a file; what is wrong where that is impossible, empty when nothing is."""
    position = 0
    while position < len(place):
        try:
            count = os.preadv(descriptor, [place[position:]], offset + position)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        if not count:
            return "was cut off while what is in it waited"
        position += count
    return ""


def problem_of(status: os.stat_result, client: Identity) -> str:
    """What is wrong with a file that is to be a segment of a client; empty when nothing is."""
    if not stat.S_ISREG(status.st_mode):
        return "is no segment but another kind of file"
    if status.st_nlink > 1:
        return "has a second name, which may belong to another user"
    if status.st_mode & stat.S_IWOTH:
        return "may be written by everybody; make it with mode 0600 or 0640"
    if not client.may(status, READ):
        return "may not be read by every client of this address; give it to the group of the daemon's socket"
    return ""


def why_unopened(error: OSError) -> str:
    """Why a segment could not be opened, for its client."""
    if error.errno == errno.ELOOP:
        return "it is a symbolic link"
    if error.errno == errno.ENOENT:
        return "there is none of that name here; the client may be in another container"
    return error.strerror or str(error)


def is_local(peer: str) -> bool:
    """Whether a gRPC peer is on this machine, so that it can have shared memory with the daemon."""
    return peer.startswith(("unix:", "ipv4:127.", "ipv6:%5B::1%5D", "ipv6:[::1]"))

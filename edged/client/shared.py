"""Pictures in POSIX shared memory, which the daemon reads: a raw picture is copied once on its way to the engine,
instead of through gRPC. `edged.shared_layout` describes the ring."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
import numpy.typing as npt

from edged import shared_layout as layout
from edged.errors import EdgedError, InvalidInput, OutOfSpace, SegmentUnusable
from edged.proto import cameras_pb2 as pb

Pixels: TypeAlias = npt.NDArray[np.uint8]
Probe: TypeAlias = Callable[[pb.Frame], "grpc.StatusCode | None"]
"""Sends a frame to `DetectOne` and returns the error's status, None for an answer."""


@dataclass(frozen=True)
class Place:
    """Where a picture lies, as in `edged.v1.SharedImage`; `offset` and `size` in bytes."""

    segment: str
    offset: int
    stamp: int
    size: int


class SharedRing(AbstractContextManager["SharedRing"]):
    """Holds the newest `slots` pictures of up to `slot_bytes` each; a larger picture makes it move to a larger segment.

    `group` (a group id) may read it too, for a daemon of another user. `close`, from any thread, the end of a `with`
    block, of the last reference or of the program removes it; the next ring of the user removes those of killed
    programs. OutOfSpace without room for it: containers have 64 MB unless `--shm-size` gives more.
    """

    def __init__(
        self, slots: int = 8, slot_bytes: int = 1 << 20, *, group: int | None = None, folder: Path = layout.FOLDER
    ) -> None:
        if not 2 <= slots <= 4096 or slot_bytes < 1:
            raise InvalidInput(f"invalid ring of {slots} slots of {slot_bytes} bytes; give 2 to 4096 slots")
        sweep(folder)
        self._slots, self._group, self._folder = slots, group, folder
        self._stamp = self._written = 0
        self._segment = _Segment(folder, slots, slot_bytes, group)
        self._lock = threading.Lock()
        self._closed = False
        # Smaller ones, with the stamp of the picture that overwrites their newest one.
        self._before: deque[tuple[_Segment, int]] = deque()

    @property
    def segment(self) -> str:
        """The name of the segment that is written now, as shm_open(3) takes it."""
        return self._segment.name

    def put(self, picture: bytes | bytearray | memoryview | Pixels) -> Place:
        """Write a picture over the oldest one; return its place. InvalidInput after `close`."""
        whole = np.ascontiguousarray(picture).data if isinstance(picture, np.ndarray) else memoryview(picture)
        data = whole.cast("B")
        with self._lock:
            if self._closed:
                raise InvalidInput("the ring is closed; make another one")
            return self._put(data)

    def close(self) -> None:
        """Remove the segments. The daemon can still read those that it has opened."""
        with self._lock:
            self._closed = True
            self._segment.remove()
            for segment, _ in self._before:
                segment.remove()
            self._before.clear()

    def _put(self, data: memoryview) -> Place:
        if len(data) > self._segment.slot_bytes:
            self._grow(len(data))
        index, self._written = self._written % self._slots, self._written + 1
        self._stamp += 1
        while self._before and self._before[0][1] <= self._stamp:
            self._before.popleft()[0].remove()
        offset = self._segment.write(index, data, self._stamp)
        return Place(self._segment.name, offset, self._stamp, len(data))

    def _grow(self, size: int) -> None:
        larger = _Segment(self._folder, self._slots, size, self._group)
        self._before.append((self._segment, self._stamp + self._slots))
        self._segment, self._written = larger, 0

    def __exit__(self, *_: object) -> None:
        self.close()


class _Segment:
    """One file. Its lock shows that its client lives, also across process namespaces."""

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
                f"cannot allocate {self._step * slots} bytes of shared memory in {folder}: {error.strerror}"
            ) from None

    def write(self, index: int, data: memoryview, stamp: int) -> int:
        """Write a picture into a slot; return its offset. In this order no reader takes a half-written picture."""
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
    """Close and, unless this process was forked from the owner, remove."""
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            path.unlink()
    os.close(descriptor)


def sweep(folder: Path = layout.FOLDER) -> None:
    """Remove segments of this user whose clients were killed."""
    for path in _left(folder):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                # A process id of another container means nothing here, but its lock does.
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
    """Return the group that the daemon behind a unix socket needs to read what this user writes; None if it needs none
    (a daemon of root or of this user) or this user is not in it."""
    try:
        status = socket.stat()
    except OSError:
        return None
    if status.st_uid in (0, os.geteuid()):
        return None
    return status.st_gid if status.st_gid in (os.getegid(), *os.getgroups()) else None


_DETECT_ONE = "/edged.v1.Cameras/DetectOne"
_PATIENCE_S = 2.0
_SLOTS = 5  # of a camera without a window: one is written, some are on their way, one waits for an engine
_UNIX = "unix:"


class Sharing:
    """Puts the pictures of a stream into a ring until `close`, once the daemon has confirmed that it can read it. With
    `required` a picture that cannot be shared raises SegmentUnusable. While a picture is written, `most_waiting` others
    may wait for their answers, and keep their slots; with None older ones are overwritten."""

    def __init__(
        self,
        socket: Path,
        model: str,
        probe: Probe,
        *,
        required: bool = False,
        most_waiting: int | None = None,
        ring: Callable[..., SharedRing] = SharedRing,
    ) -> None:
        self._socket, self._model, self._probe, self._required, self._new_ring = socket, model, probe, required, ring
        self._slots = _SLOTS if most_waiting is None else most_waiting + 2
        self._ring: SharedRing | None = None
        self._problem = ""

    def put(self, image: Pixels) -> pb.SharedImage | None:
        """Return the place of a picture; None if it has to be sent as bytes."""
        if not self._problem:
            try:
                ring = self._ring or self._confirmed_ring(image.nbytes)
                place = ring.put(image)
                return pb.SharedImage(segment=place.segment, offset=place.offset, stamp=place.stamp, size=place.size)
            except (EdgedError, OSError) as error:
                self._problem = str(error)
        if self._required:
            raise SegmentUnusable(f"pictures cannot be shared with the daemon: {self._problem}")
        return None

    def on_error(self, code: str) -> None:
        """Stop sharing if a frame failed since the daemon, perhaps a new one, cannot read it."""
        if code == grpc.StatusCode.FAILED_PRECONDITION.name and self._ring is not None:
            self._problem = self._problem or "the daemon cannot read it any more"

    def close(self) -> None:
        self._problem = self._problem or "the stream is over"
        if self._ring is not None:
            self._ring.close()

    def _confirmed_ring(self, size: int) -> SharedRing:
        """Make the ring and send an empty picture in it: the status says whether the daemon could open the segment."""
        self._ring = self._new_ring(self._slots, size, group=readers_group(self._socket))
        nothing = pb.SharedImage(segment=self._ring.segment, offset=0, stamp=1, size=0)
        status = self._probe(pb.Frame(model=self._model, shared=nothing))
        if status is not grpc.StatusCode.INVALID_ARGUMENT or self._problem:  # closed meanwhile
            self._ring.close()
            raise SegmentUnusable(self._problem or "it does not read them")
        return self._ring


def sharing(
    channel: grpc.Channel, target: str, model: str, shared: bool | None, most_waiting: int | None
) -> Sharing | None:
    """Make it for a stream's argument `shared`: None shares if possible, True insists, False never does."""
    is_possible = target.startswith(_UNIX) and layout.FOLDER.is_dir()
    if shared and not is_possible:
        raise InvalidInput(f"pictures cannot be shared with {target}: not a unix socket; leave out shared=True")
    if shared is False or not is_possible:
        return None

    def probe(frame: pb.Frame) -> grpc.StatusCode | None:
        send: Any = channel.unary_unary(_DETECT_ONE, request_serializer=pb.Frame.SerializeToString)
        try:
            send(frame, timeout=_PATIENCE_S)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return None

    socket = Path(target.removeprefix(_UNIX))
    return Sharing(socket, model, probe, required=bool(shared), most_waiting=most_waiting)

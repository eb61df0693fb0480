"""Pictures in POSIX shared memory that the daemon reads: a raw picture is copied once into this memory, not sent
through gRPC. The memory is a ring of slots; `edged.shared_layout` describes it."""

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
"""Sends a frame to `DetectOne`; returns the status of the error, or None if the call succeeds."""


@dataclass(frozen=True)
class Place:
    """The place of a picture in shared memory, as in `edged.v1.SharedImage`. `offset` and `size` are in bytes."""

    segment: str
    offset: int
    stamp: int
    size: int


class SharedRing(AbstractContextManager["SharedRing"]):
    """A ring in shared memory with the newest `slots` pictures of up to `slot_bytes` each. If a picture is larger, the
    ring moves to a larger segment.

    `group` is the id of a group that may also read the ring, for a daemon of another user. The ring is removed by
    `close` (from any thread), at the end of a `with` block, when the last reference is dropped, and when the program
    exits. The next ring of the same user removes rings of killed programs. Raises OutOfSpace if shared memory has no
    room: containers have 64 MB unless `--shm-size` gives more.
    """

    def __init__(
        self, slots: int = 8, slot_bytes: int = 1 << 20, *, group: int | None = None, folder: Path = layout.FOLDER
    ) -> None:
        if not 2 <= slots <= 4096 or slot_bytes < 1:
            raise InvalidInput(
                f"invalid ring of {slots} slots of {slot_bytes} bytes; give 2 to 4096 slots of at least 1 byte"
            )
        sweep(folder)
        self._slots, self._group, self._folder = slots, group, folder
        self._stamp = self._written = 0
        self._segment = _Segment(folder, slots, slot_bytes, group)
        self._lock = threading.Lock()
        self._closed = False
        # Earlier, smaller segments, each with the stamp at which it is removed. In a single ring, the picture with that
        # stamp would overwrite the segment's newest picture.
        self._before: deque[tuple[_Segment, int]] = deque()

    @property
    def segment(self) -> str:
        """The name of the segment that is written now, in the form of shm_open(3)."""
        return self._segment.name

    def put(self, picture: bytes | bytearray | memoryview | Pixels) -> Place:
        """Write a picture over the oldest one and return the new picture's place. Raises InvalidInput after `close`."""
        whole = np.ascontiguousarray(picture).data if isinstance(picture, np.ndarray) else memoryview(picture)
        data = whole.cast("B")
        with self._lock:
            if self._closed:
                raise InvalidInput("the ring is closed; create a new SharedRing")
            return self._put(data)

    def close(self) -> None:
        """Remove the segments. The daemon can still read segments that it has already opened."""
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
    """One file in shared memory. It is locked while its client lives; unlike a process id, the lock is visible in other
    PID namespaces too."""

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
            # Reserve the room now: otherwise a write in the middle of a stream could fail for lack of space.
            os.posix_fallocate(self._descriptor, 0, self._step * slots)
        except OSError as error:
            removal = getattr(self, "_removal", None)
            if removal is not None:
                removal()
            raise OutOfSpace(
                f"cannot allocate {self._step * slots} bytes of shared memory in {folder}: {error.strerror};"
                " in a container, try a larger --shm-size"
            ) from None

    def write(self, index: int, data: memoryview, stamp: int) -> int:
        """Write a picture into a slot and return the slot's offset. The order of writes keeps readers from using half a
        picture."""
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
    """Close the segment. Also remove its file, unless this process was forked from the owner."""
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            path.unlink()
    os.close(descriptor)


def sweep(folder: Path = layout.FOLDER) -> None:
    """Remove the segments that killed clients of this user have left."""
    for path in _left(folder):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                # The process id may be of another container, so its absence proves nothing; the lock does.
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
    """Return the group through which the daemon behind a unix socket can read this user's files. None if the daemon
    needs no group (it runs as root or as this user), or if this user is not in the group."""
    try:
        status = socket.stat()
    except OSError:
        return None
    if status.st_uid in (0, os.geteuid()):
        return None
    return status.st_gid if status.st_gid in (os.getegid(), *os.getgroups()) else None


_DETECT_ONE = "/edged.v1.Cameras/DetectOne"
_PATIENCE_S = 2.0
_SLOTS = 5  # slots if frames may be skipped: one is being written, some are on their way, one waits for an engine
_UNIX = "unix:"


class Sharing:
    """Puts the pictures of a stream into a ring, after the daemon has confirmed that it can read the ring. If
    `required` is set, `put` raises SegmentUnusable for a picture that cannot be shared. With `most_waiting`, the ring
    has enough slots to keep every unanswered picture. If `most_waiting` is None, new pictures overwrite the oldest
    ones."""

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
        """Write a picture and return the picture's place. Return None if the picture must be sent as bytes."""
        if not self._problem:
            try:
                ring = self._ring or self._confirmed_ring(image.nbytes)
                place = ring.put(image)
                return pb.SharedImage(segment=place.segment, offset=place.offset, stamp=place.stamp, size=place.size)
            except (EdgedError, OSError) as error:
                self._problem = str(error)
        if self._required:
            raise SegmentUnusable(
                f"pictures cannot be sent through shared memory: {self._problem}; leave out shared=True"
            )
        return None

    def on_error(self, code: str) -> None:
        """Stop sharing if a frame failed because the daemon (perhaps restarted) cannot read the ring."""
        if code == grpc.StatusCode.FAILED_PRECONDITION.name and self._ring is not None:
            self._problem = self._problem or "the daemon can no longer read the memory"

    def close(self) -> None:
        self._problem = self._problem or "the stream is over"
        if self._ring is not None:
            self._ring.close()

    def _confirmed_ring(self, size: int) -> SharedRing:
        """Make the ring, and send a frame that refers to an empty picture in the ring. The daemon refuses this frame,
        and the status of the refusal shows whether the daemon could open the segment. Raises SegmentUnusable if the
        daemon could not."""
        self._ring = self._new_ring(self._slots, size, group=readers_group(self._socket))
        nothing = pb.SharedImage(segment=self._ring.segment, offset=0, stamp=1, size=0)
        status = self._probe(pb.Frame(model=self._model, shared=nothing))
        if status is not grpc.StatusCode.INVALID_ARGUMENT or self._problem:  # `_problem` is set: closed meanwhile
            self._ring.close()
            reason = "the call succeeded" if status is None else status.name
            raise SegmentUnusable(self._problem or f"the daemon did not confirm that it can read the memory ({reason})")
        return self._ring


def sharing(
    channel: grpc.Channel, target: str, model: str, shared: bool | None, most_waiting: int | None
) -> Sharing | None:
    """Make the `Sharing` of a stream; return None to send bytes. `shared` is the stream's argument: None shares if
    possible, True raises InvalidInput if sharing is impossible, False never shares."""
    is_possible = target.startswith(_UNIX) and layout.FOLDER.is_dir()
    if shared and not is_possible:
        raise InvalidInput(
            f"shared=True needs a unix socket and {layout.FOLDER}, but the target is {target}; leave out shared=True"
        )
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

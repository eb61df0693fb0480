"""Frames that the daemon collected from live cameras for one model, and their split by time.

`STATE/frames/MODEL/` holds one JPEG or PNG file for each frame, and `collection.json`, which describes them. Only the
daemon's user can read the folder. Engines are calibrated on some frames and judged (compared with the reference) on
frames of other hours. Frames of nearly the same time look alike, so they are never split between the two uses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import Meta

from edged.files import read_regular
from edged.store import sealed

FOLDER = "frames"
INDEX = "collection.json"
Use: TypeAlias = Literal["calibrate", "judge", "gap"]

_BLOCK_SECONDS = 3600.0  # the longest block of the split
_BLOCKS = 8  # a collection has at least this many blocks
_LARGEST_INDEX = 16 << 20  # bytes
_GAP = 0.05  # share of a block, at each of its ends, whose frames are not used

# Limits of the numbers in an index, far above all real values. The daemon computes with these numbers.
_Time: TypeAlias = Annotated[float, Meta(ge=-1e12, le=1e12)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]


class Frame(msgspec.Struct, frozen=True):
    """One frame. `offset_s` is the time since the collection began, in seconds of a clock that does not jump.

    `taken_unix_s` is the time of the wall clock. `boot` (the boot of the box) and `uptime_s` (seconds since that boot)
    say when the frame was kept; the age of the frame is computed from them. `likeness` is the 64-bit hash of
    `vision.likeness`, `sha256` the digest of the file, and `size` its size in bytes.
    """

    name: str
    camera: str
    offset_s: _Time
    taken_unix_s: _Time
    boot: str
    uptime_s: _Time
    likeness: int
    sha256: str
    size: _Count


class Collection(msgspec.Struct, frozen=True):
    """The frames that were collected for a model. `over_s` is the planned duration, in seconds.

    Engines use a collection only when it is `finished` (complete, or stopped by a command). From then on `id` is a
    digest of its frames. If frames are removed later because their retention ended, the id stays the same, so that
    engines that were calibrated on these frames remain valid. If all frames are removed for this reason, the next
    collection has this id until it is finished.
    """

    cameras: tuple[str, ...]
    wanted: Annotated[int, Meta(ge=1, le=1 << 32)]
    over_s: Annotated[float, Meta(ge=0.001, le=1e12)]
    started_unix_s: _Time
    frames: tuple[Frame, ...] = ()
    finished: bool = False
    id: str = ""
    spent_s: _Time = 0.0  # seconds that the collection has run, without the time that the daemon was stopped
    duplicates: _Count = 0  # frames that were dropped because a kept frame looks nearly the same
    unusable: _Count = 0  # frames that were dropped because they cannot be decoded, or are too large
    configured: bool = False  # whether the configuration started the collection, not a command

    @property
    def block_s(self) -> float:
        """Length of a block of time, in seconds. The frames of one block have the same use, except near its ends."""
        return min(_BLOCK_SECONDS, self.over_s / _BLOCKS)

    @property
    def bytes(self) -> int:
        """Size of all frames together, in bytes."""
        return sum(frame.size for frame in self.frames)

    def use(self, frame: Frame) -> Use:
        """Return the use of a frame. Blocks alternate between "calibrate" and "judge"; frames near the ends of a block
        are not used ("gap")."""
        return self.use_at(frame.offset_s)

    def use_at(self, offset_s: float) -> Use:
        """Return the use of a frame that is taken at this time, in seconds as in `Frame.offset_s`."""
        block, within = divmod(offset_s, self.block_s)
        if not _GAP * self.block_s <= within < (1 - _GAP) * self.block_s:
            return "gap"
        return "calibrate" if int(block) % 2 == 0 else "judge"

    def after_gap(self, offset_s: float) -> float:
        """Return the end of the gap that contains `offset_s`, or `offset_s` itself if it is in no gap. Both are seconds
        since the start of the collection."""
        if self.use_at(offset_s) != "gap":
            return offset_s
        return (round(offset_s / self.block_s) + _GAP) * self.block_s

    def frames_for(self, use: Use) -> tuple[Frame, ...]:
        """Return the frames for a use, in the order of time."""
        return tuple(frame for frame in self.frames if self.use(frame) == use)


class Collected(msgspec.Struct, frozen=True):
    """The finished collection of a model: its id and its frames.

    `calibrate` and `judge` map the path of each frame with this use to the digest of the file. Both are empty if the
    retention of the frames has ended; the id then still identifies the frames that calibrated engines. `cameras` maps
    the path of each frame in `judge` to its camera.
    """

    id: str
    calibrate: dict[str, str] = {}
    judge: dict[str, str] = {}
    cameras: dict[str, str] = {}

    @classmethod
    def of(cls, folder: Path, collection: Collection) -> Collected | None:
        """Return the frames of a finished collection in `folder`. If the collection is not finished, return only the id
        of the finished collection before it. Return None if no collection before it was finished."""
        if not collection.finished:
            return cls(collection.id) if collection.id else None
        uses: tuple[Use, Use] = ("calibrate", "judge")
        calibrate, judge = ({str(folder / f.name): f.sha256 for f in collection.frames_for(use)} for use in uses)
        cameras = {str(folder / f.name): f.camera for f in collection.frames_for("judge")}
        return cls(collection.id, calibrate, judge, cameras)


def folder_of(state: Path, model: str) -> Path:
    """Return the folder of a model's frames below the state directory. The model's name is percent-encoded, so that the
    folder is directly in `FOLDER` and not hidden, even if the name contains slashes or begins with a dot."""
    name = quote(model, safe="")
    return state / FOLDER / (f"%2E{name[1:]}" if name.startswith(".") else name)


def read_index(folder: Path) -> Collection:
    """Read the index of a folder. Raises OSError, and sealed.Damaged if the index is too large or damaged."""
    path = folder / INDEX
    if path.stat().st_size > _LARGEST_INDEX:
        raise sealed.Damaged(f"{INDEX} is too large")
    return sealed.unseal(read_regular(path), Collection)


def find(state: Path, model: str) -> Collected | None:
    """Return `Collected.of` for the collection of a model in a state directory; None, too, if the index cannot be read.
    For commands that run without the daemon."""
    folder = folder_of(state, model)
    try:
        return Collected.of(folder, read_index(folder))
    except (OSError, sealed.Damaged):
        return None


def id_of(frames: Sequence[Frame]) -> str:
    """Return 12 hexadecimal digits of a digest over the contents and times of frames."""
    parts = "".join(f"{frame.sha256} {frame.offset_s:.3f}\n" for frame in frames)
    return hashlib.sha256(parts.encode()).hexdigest()[:12]

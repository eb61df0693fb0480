"""A camera that reads frames from another process's ring in shared memory (`edged.shared_layout` describes it).

A slot has the bytes of a picture but not its format, so the address must give the format. The writer does not announce
pictures: the reader polls the stamps every 4 milliseconds, and counts the pictures that it missed.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np

from edged import shared_layout as layout
from edged.client.frames import Picture
from edged.client.sources import jpeg
from edged.client.sources.address import query_settings
from edged.client.sources.source import Live, Shot
from edged.errors import InvalidInput

_LOOK_S = 0.004
_CHANNELS = {"bgr": 3, "gray": 1}
_MOST_SLOTS = 4096


class RingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ring's number of `slots`, and the format of its pictures: raw pixels of `format` (bgr or gray) if a width and
    height are given, otherwise JPEG."""

    slots: int = 8
    width: int = 0
    height: int = 0
    format: str = "bgr"

    @property
    def raw_bytes(self) -> int:
        return self.width * self.height * _CHANNELS[self.format]


class Slot(NamedTuple):
    """A picture's stamp and offset in the ring."""

    stamp: int
    offset: int


def shared_camera(address: str, folder: Path = layout.FOLDER) -> Live:
    """Return the camera at `NAME?width=1280&height=720&format=bgr&slots=8`. NAME is a segment's name, or edged-4711 for
    the newest ring of process 4711. Raises InvalidInput for an invalid address."""
    name, settings = _parse(address)

    @contextlib.contextmanager
    def connect(camera: Live) -> Iterator[Iterator[Shot]]:
        path = _newest(folder, name)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            yield _follow(camera, descriptor, settings)
        finally:
            os.close(descriptor)

    return Live(f"shm://{name}", connect)


def _parse(address: str) -> tuple[str, RingSettings]:
    parts = urlsplit(f"shm://{address}")
    name = (parts.netloc + parts.path).lstrip("/")
    settings = query_settings(f"shm://{address}", parts.query, RingSettings)
    if not name.startswith(layout.PREFIX) or "/" in name:
        raise InvalidInput(
            f"shm://{name} is not a ring of frames; names of rings begin with {layout.PREFIX}; see: ls {layout.FOLDER}"
        )
    sized = settings.width > 0 and settings.height > 0
    if not 1 <= settings.slots <= _MOST_SLOTS or not (sized or settings.width == settings.height == 0):
        raise InvalidInput(
            f"shm://{address}: invalid sizes; give slots from 1 to {_MOST_SLOTS}, and for raw pixels width and height"
        )
    if settings.format not in _CHANNELS:
        raise InvalidInput(f"shm://{address}: format {settings.format!r} is not supported; give bgr or gray")
    return name, settings


def _newest(folder: Path, name: str) -> Path:
    segments = (path for path in folder.iterdir() if path.name == name or path.name.startswith(f"{name}-"))
    found = sorted(segments, key=lambda path: path.stat().st_mtime_ns)
    if not found:
        raise FileNotFoundError(f"no process has a ring named {name}")
    return found[-1]


def _follow(camera: Live, descriptor: int, settings: RingSettings) -> Iterator[Shot]:
    """Yield pictures until the owner removes the ring. Raises OSError if the ring's size does not fit the settings."""
    step = os.fstat(descriptor).st_size // settings.slots
    if step < layout.slot_size(max(1, settings.raw_bytes)) or step % layout.ALIGNED:
        raise OSError(
            f"the ring's slots of {step} bytes do not fit the pictures; give the ring's slots, width, height and format"
        )
    last = 0
    while not camera.stopped.is_set():
        newest = max(_slots(descriptor, step, settings.slots))
        if newest.stamp <= last:
            if os.fstat(descriptor).st_nlink == 0:
                return
            camera.stopped.wait(_LOOK_S)
            continue
        picture = _read(descriptor, newest, settings.raw_bytes or step - layout.HEADER)
        if picture is None:  # a newer picture overwrote it meanwhile
            continue
        camera.missed += newest.stamp - last - 1 if last else 0
        last = newest.stamp
        yield Shot.now(functools.partial(_develop, picture, settings))


def _slots(descriptor: int, step: int, count: int) -> Iterator[Slot]:
    for index in range(count):
        header = os.pread(descriptor, layout.STAMP.size, index * step)
        if len(header) < layout.STAMP.size:
            raise OSError("a slot of the ring cannot be read, because the ring's file became shorter")
        yield Slot(layout.STAMP.unpack(header)[0], index * step)


def _read(descriptor: int, slot: Slot, size: int) -> bytes | None:
    picture = os.pread(descriptor, size, slot.offset + layout.HEADER)
    after = os.pread(descriptor, layout.STAMP.size, slot.offset)
    whole = len(picture) == size and after == layout.STAMP.pack(slot.stamp)
    return picture if whole else None


def _develop(picture: bytes, settings: RingSettings) -> Picture:
    """Return a picture's pixels or JPEG bytes. Raises ValueError if a slot that should have a JPEG has none."""
    if settings.raw_bytes:
        shape = (settings.height, settings.width, 3) if settings.format == "bgr" else (settings.height, settings.width)
        return np.frombuffer(picture, np.uint8).reshape(shape)
    end = jpeg.length(picture)
    if end is None:
        raise ValueError("the slot has no JPEG; if the ring has raw pixels, give their width, height and format")
    return picture[:end]

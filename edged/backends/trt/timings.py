"""What a builder measured of this device, kept in a file between builds: the next one need not measure it again.

Only a hint. Whatever is wrong with the file, the build goes on without it and says so; and a file that cannot be
written costs time at the next build, no more. The file is a line that names the runtime's version, a digest, and the
runtime's own bytes, which it would take as they are. TensorRT-RTX measures nothing when it builds, so keeps nothing.

Files are called BACKEND-WHAT, one for each device, driver and runtime that a box has had; the newest few are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from edged.backends.trt.api import Config, TimingCache, Trt, find
from edged.files import read_regular

_TITLE = b"edged timings 1 "
_DIGEST = 32
_MOST_FILES = 8  # of all devices, drivers and runtimes that this box has had


class Timings:
    """The timing cache of one build. `path` is empty if no cache is kept."""

    def __init__(self, trt: Trt, path: str, version: str) -> None:
        # Where kernels are made on the device when an engine is opened, a builder has nothing to measure.
        self._path = Path(path) if path and find(trt, "IRuntimeCache") is None else None
        self._head = _TITLE + version.encode() + b"\n"
        self._cache: TimingCache | None = None
        self.notes: list[str] = []

    def attach(self, config: Config) -> None:
        """Gives the builder what was measured before, or an empty cache to fill."""
        if self._path is None:
            return
        cache = config.create_timing_cache(self._read(self._path))
        if cache is None or not config.set_timing_cache(cache, False):
            self.notes.append("earlier timings are of another device and were not used")
            cache = config.create_timing_cache(b"")
            if cache is not None and not config.set_timing_cache(cache, False):
                cache = None
        self._cache = cache  # it must live until the engine is built

    def keep(self) -> None:
        """After a build that succeeded: replaces the file in one step."""
        if self._path is None or self._cache is None:
            return
        data = bytes(self._cache.serialize())
        try:
            _replace(self._path, self._head + hashlib.sha256(data).digest() + data)
        except OSError as error:
            self.notes.append(f"timings could not be kept: {error.strerror or error}")
        else:
            _prune(self._path)

    def _read(self, path: Path) -> bytes:
        """What the runtime made before; empty if there is nothing of use."""
        try:
            kept = read_regular(path)
        except FileNotFoundError:
            return b""
        except OSError as error:
            self.notes.append(f"earlier timings could not be read: {error.strerror or error}")
            return b""
        if not kept.startswith(self._head):
            self.notes.append("earlier timings are of another version and were not used")
            return b""
        digest, data = kept[len(self._head) :][:_DIGEST], kept[len(self._head) + _DIGEST :]
        if hashlib.sha256(data).digest() != digest:
            self.notes.append("earlier timings are damaged and were not used")
            return b""
        return data


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)  # not synced: a file that a crash cut short is damaged, which is noticed
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _prune(kept: Path) -> None:
    """Removes all but the newest files of this one's kind, leftovers of killed writers too. Never raises."""
    kind, dash, _ = kept.name.partition("-")
    with contextlib.suppress(OSError):
        alike = [path for path in kept.parent.iterdir() if path.name.lstrip(".").startswith(kind + dash)]
        dated = [(path.lstat(), path) for path in alike if dash]
        files = [(found.st_mtime_ns, path) for found, path in dated if stat.S_ISREG(found.st_mode)]
        for _, path in sorted(files, reverse=True)[_MOST_FILES:]:
            path.unlink()

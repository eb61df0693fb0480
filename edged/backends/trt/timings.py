"""The builder's kernel timings on this device, kept in a file so that the next build need not measure them again.

A build does not depend on the file. If the file is invalid, the build continues without it and adds a note. If the file
cannot be written, the build adds a note, and the next build takes longer. The file has a line with the runtime's
version, then a digest, then the timings in the runtime's format. The digest is needed because the runtime does not
detect damage. TensorRT-RTX measures nothing in a build, so there is no such file for it.

The name of a file begins with the backend and a hyphen. There is a file for each combination of device, driver and
runtime that the box has had. The newest `_MOST_FILES` files of a backend are kept.
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
_MOST_FILES = 8  # of one backend, for all devices, drivers and runtimes together


class Timings:
    """The timing cache of one build. `path` is empty if no cache is kept."""

    def __init__(self, trt: Trt, path: str, version: str) -> None:
        # A runtime with IRuntimeCache compiles kernels when it opens an engine, so its builder measures nothing.
        self._path = Path(path) if path and find(trt, "IRuntimeCache") is None else None
        self._head = _TITLE + version.encode() + b"\n"
        self._cache: TimingCache | None = None
        self.notes: list[str] = []

    def attach(self, config: Config) -> None:
        """Add the earlier timings, or an empty cache to fill, to the configuration of the build."""
        if self._path is None:
            return
        cache = config.create_timing_cache(self._read(self._path))
        if cache is None or not config.set_timing_cache(cache, False):
            self.notes.append("earlier kernel timings are from another device and were not used")
            cache = config.create_timing_cache(b"")
            if cache is not None and not config.set_timing_cache(cache, False):
                cache = None
        self._cache = cache  # the cache must live until the engine is built

    def keep(self) -> None:
        """Save the timings in the file, which is replaced atomically. Call this after a successful build."""
        if self._path is None or self._cache is None:
            return
        data = bytes(self._cache.serialize())
        try:
            _replace(self._path, self._head + hashlib.sha256(data).digest() + data)
        except OSError as error:
            self.notes.append(f"kernel timings could not be saved: {error.strerror or error}")
        else:
            _prune(self._path)

    def _read(self, path: Path) -> bytes:
        """Return the earlier timings in the runtime's format; empty if none can be used."""
        try:
            kept = read_regular(path)
        except FileNotFoundError:
            return b""
        except OSError as error:
            self.notes.append(f"earlier kernel timings could not be read: {error.strerror or error}")
            return b""
        if not kept.startswith(self._head):
            self.notes.append("earlier kernel timings are from another version of the runtime and were not used")
            return b""
        digest, data = kept[len(self._head) :][:_DIGEST], kept[len(self._head) + _DIGEST :]
        if hashlib.sha256(data).digest() != digest:
            self.notes.append("earlier kernel timings are damaged and were not used")
            return b""
        return data


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)  # not synced: if a crash truncates the file, its digest shows that
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _prune(kept: Path) -> None:
    """Keep only the newest `_MOST_FILES` files of the same backend. This number includes temporary files that killed
    builds left. Never raises."""
    kind, dash, _ = kept.name.partition("-")
    with contextlib.suppress(OSError):
        alike = [path for path in kept.parent.iterdir() if path.name.lstrip(".").startswith(kind + dash)]
        dated = [(path.lstat(), path) for path in alike if dash]
        files = [(found.st_mtime_ns, path) for found, path in dated if stat.S_ISREG(found.st_mode)]
        for _, path in sorted(files, reverse=True)[_MOST_FILES:]:
            path.unlink()

"""JSON files with a checksum, for everything that the daemon keeps for itself, and a thread that writes them.

The last field, `sha256`, is the digest of every byte before it. A damaged file counts as missing: it is counted, logged
once and removed, and what it held is found out again. The files stay readable JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from edged.decoding import ready
from edged.errors import ConfigError
from edged.files import NOT_JSON, read_regular
from edged.store import atomic

_LOG = logging.getLogger("edged.store")
_MARK = b',"sha256":"'
_END = b'"}\n'
_LARGEST = 64 << 20  # bytes; a larger file is not one of these and must not fill the memory

DAMAGED: Counter[str] = Counter()  # damaged files in this process, by what they hold

T = TypeVar("T", bound=msgspec.Struct)


class Damaged(ValueError):
    """Bytes that are not what was written."""


def seal(content: msgspec.Struct, indent: int = 0) -> bytes:
    """Encode a struct as JSON with its digest as the last field. `indent` in spaces, 0 for one line."""
    text = msgspec.json.encode(content)
    body = (msgspec.json.format(text, indent=indent) if indent else text).rstrip()[:-1].rstrip()
    return body + _MARK + _digest(body) + _END


def unseal(data: bytes, kind: type[T], *, unsealed: bool = False) -> T:
    """Decode what `seal` encoded; Damaged for anything else. `unsealed` accepts JSON without a digest."""
    body, mark, end = data.rpartition(_MARK)
    if is_sealed(data):
        body += b"}"
    elif mark or not unsealed:
        raise Damaged("its digest does not match")
    else:
        body = end
    try:
        return msgspec.json.decode(body, type=ready(kind))
    except (*NOT_JSON, ValueError, ConfigError) as error:
        raise Damaged(str(error)) from error


def is_sealed(data: bytes) -> bool:
    """Whether bytes end with the digest of what comes before it."""
    body, mark, end = data.rpartition(_MARK)
    return bool(mark) and end == _digest(body) + _END


def write(path: Path, content: msgspec.Struct) -> None:
    """Replace a file, and create its folder, which a full disk may have prevented before. OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    atomic.write_file(path, seal(content))


def keep(path: Path, content: msgspec.Struct) -> None:
    """As `write`, for what can be found out again: a disk that cannot be written loses it."""
    with contextlib.suppress(OSError):
        write(path, content)


def read(path: Path, kind: type[T], what: str) -> T | None:
    """Read a file; None if it is missing, unreadable or damaged. A damaged one is removed. `what` is the label under
    which damage is counted."""
    try:
        if path.stat().st_size > _LARGEST:
            raise Damaged("it is too large")
        return unseal(read_regular(path), kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _LOG.warning("cannot read %s: %s; its content is found out again", path, error.strerror or error)
        DAMAGED[what] += 1
    except Damaged as error:
        discard(path, what, str(error))
    return None


def discard(path: Path, what: str, why: str) -> None:
    """Count and remove a damaged file."""
    DAMAGED[what] += 1
    _LOG.warning("%s is damaged and is made again: %s", path, why)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


Work: TypeAlias = Callable[[], object]
Later: TypeAlias = Callable[[Work], None]


def at_once(work: Work) -> None:
    """Do it now, for programs without an event loop."""
    work()


class Background:
    """One thread that does writes in order; of two writes of one file the later one stays.

    It starts with the first write and does not keep the process alive.
    """

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, work: Work) -> None:
        """Queue a write."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
                self._thread.start()
        self._works.put(work)

    def flush(self, seconds: float) -> bool:
        """Wait until everything that was queued is done; whether it was in time."""
        done = threading.Event()
        self.put(done.set)
        return done.wait(seconds)

    def _run(self) -> None:
        while True:
            work = self._works.get()
            try:
                work()
            except OSError as error:  # such as a full disk: the content is lost at the daemon's end
                _LOG.info("cannot write to disk: %s", error)
            except Exception:
                _LOG.exception("a write ended with an unexpected error")

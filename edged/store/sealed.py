"""JSON files with a checksum, for the daemon's own data, and a thread that writes them.

The last field, `sha256`, is the digest of every byte before it. A damaged file counts as missing: it is counted, logged
and removed, and the daemon determines its content again. The files stay readable JSON.
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
_LARGEST = 64 << 20  # bytes; a larger file was not written by edged and must not fill the memory

DAMAGED: Counter[str] = Counter()  # number of damaged files that this process found, by kind of content

T = TypeVar("T", bound=msgspec.Struct)


class Damaged(ValueError):
    """Data whose checksum is wrong or missing, or data that cannot be decoded."""


def seal(content: msgspec.Struct, indent: int = 0) -> bytes:
    """Encode a struct as JSON with its digest as the last field. `indent` is a number of spaces; 0 writes one line."""
    text = msgspec.json.encode(content)
    body = (msgspec.json.format(text, indent=indent) if indent else text).rstrip()[:-1].rstrip()
    return b"".join((body, _MARK, _digest(body), _END))  # one copy: a gallery can have 42 MiB


def unseal(data: bytes, kind: type[T], *, unsealed: bool = False) -> T:
    """Decode the output of `seal`. Raises Damaged for other data. With `unsealed`, JSON without a digest is also
    accepted."""
    body, mark, end = data.rpartition(_MARK)
    if is_sealed(data):
        body += b"}"
    elif mark or not unsealed:
        raise Damaged("the digest does not match the content")
    else:
        body = end
    try:
        return msgspec.json.decode(body, type=ready(kind))
    except (*NOT_JSON, ValueError, ConfigError) as error:
        raise Damaged(str(error)) from error


def is_sealed(data: bytes) -> bool:
    """Whether data ends with the digest of the bytes before it."""
    body, mark, end = data.rpartition(_MARK)
    return bool(mark) and end == _digest(body) + _END


def write(path: Path, content: msgspec.Struct, mode: int = 0o640) -> None:
    """Replace a file, and create its folder if the folder is missing, for example after a full disk. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=mode | (mode >> 2 & 0o111))  # readers may enter the folder
    atomic.write_file(path, seal(content), mode)


def keep(path: Path, content: msgspec.Struct) -> None:
    """Replace a file as `write` does, but ignore errors of the disk: the content can be determined again."""
    with contextlib.suppress(OSError):
        write(path, content)


def read(path: Path, kind: type[T], what: str) -> T | None:
    """Read a file. Return None if it is missing, unreadable or damaged. A damaged file is removed. `what` is the label
    under which unreadable and damaged files are counted."""
    try:
        if path.stat().st_size > _LARGEST:
            raise Damaged("the file is too large")
        return unseal(read_regular(path), kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _LOG.warning("cannot read %s: %s; the file will be created again", path, error.strerror or error)
        DAMAGED[what] += 1
    except Damaged as error:
        discard(path, what, str(error))
    return None


def discard(path: Path, what: str, why: str) -> None:
    """Count and remove a damaged file."""
    DAMAGED[what] += 1
    _LOG.warning("%s is damaged and will be created again: %s", path, why)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


Work: TypeAlias = Callable[[], object]
Later: TypeAlias = Callable[[Work], None]


def at_once(work: Work) -> None:
    """Call `work` immediately. Programs without an event loop use this instead of `Background`."""
    work()


class Background:
    """A thread that calls queued functions in order, so that the last write of a file wins.

    The thread starts with the first function and does not keep the process alive.
    """

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, work: Work) -> None:
        """Queue a function that writes."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
                self._thread.start()
        self._works.put(work)

    def flush(self, seconds: float) -> bool:
        """Wait at most `seconds` for all queued writes. Return whether they are done."""
        done = threading.Event()
        self.put(done.set)
        return done.wait(seconds)

    def _run(self) -> None:
        while True:
            work = self._works.get()
            try:
                work()
            except OSError as error:  # such as a full disk: the content is lost when the daemon ends
                _LOG.info("cannot write to disk: %s", error)
            except Exception:
                _LOG.exception("a write to disk failed with an unexpected error; the change is lost at the next start")

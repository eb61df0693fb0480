"""Reads and writes an object store that boxes share, with the library `obstore`. The store is a folder, a web server,
S3, Google Cloud Storage or Azure.

Every call has a time limit, also if the server is down, slow, or never ends its answer. The store is not trusted:
callers check the data that they read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Awaitable
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from edged import packages, tasks
from edged.errors import (
    ConfigError,
    DaemonUnavailable,
    EdgedError,
    NotFound,
    Refused,
    TooLarge,
    Unauthenticated,
    Unsupported,
    redact,
)
from edged.files import disk_fault
from edged.references.transfer import signing

SCHEMES = ("file", "https", "http", "s3", "gs", "az")
_PIECE = 1 << 20
T = TypeVar("T")


class Patience(NamedTuple):
    """Time limits of calls. `call_s`: seconds for a call that moves little data, and for each piece of a file.
    `slowest`: the lowest accepted rate in bytes a second. The limit of a whole file is `call_s` plus the file's size
    divided by this rate."""

    call_s: float = 20.0
    slowest: float = 200_000.0

    def whole(self, size: int) -> float:
        """Return the time limit in seconds for a file of `size` bytes."""
        return self.call_s + size / self.slowest


USUAL = Patience()


class Item(NamedTuple):
    """An object of a bucket. `size` is in bytes. `unix_s` is the time of its last change in seconds since the epoch."""

    name: str
    size: int
    unix_s: float


def check_address(url: str) -> None:
    """Raise ConfigError unless a URL names an object store."""
    try:
        parts = urlsplit(url)
        is_usable = parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or parts.scheme not in SCHEMES or not (parts.netloc or parts.scheme == "file"):
        raise ConfigError(
            f"{redact(url)[:100]!r} is not a valid address of a store; write SCHEME://PLACE, with one of the schemes"
            f" {', '.join(SCHEMES)}"
        )
    if "@" in parts.netloc:
        raise ConfigError(
            "the address of the store must not contain a user or password; set the environment variables of the store's"
            " own tools instead (docs/fleet.md)"
        )
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ConfigError(
            f"{redact(url)[:100]!r} does not name a folder of this box; write file:///PATH, with an absolute path"
        )


class Bucket:
    """The objects below a URL.

    Calls raise Unauthenticated if the credentials are wrong, and Refused if an object is behind a symbolic link. They
    raise Unsupported if `obstore` is missing or the store lacks the operation, and ConfigError if `obstore` rejects the
    URL. All other failures, such as a slow store, raise DaemonUnavailable.
    """

    def __init__(self, url: str, patience: Patience = USUAL) -> None:
        """Raise ConfigError unless the URL names a store. The store is not contacted."""
        check_address(url)
        self.url, self._patience, self._opened = url.rstrip("/"), patience, None
        parts = urlsplit(self.url)
        self._folder = Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def place(self) -> str:
        """The URL without its query, for messages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"

    async def read(self, name: str, most: int) -> bytes | None:
        """Return the content of a small object, or None if the object is missing. Raises TooLarge if the object has
        more than `most` bytes."""
        try:
            async with contextlib.aclosing(self._pieces(name, most, self._patience.call_s)) as pieces:
                return b"".join([piece async for piece in pieces])
        except NotFound:
            return None

    async def save(self, name: str, file: Path, size: int) -> str:
        """Download an object of at most `size` bytes to a new local file; return the SHA-256 in hexadecimal digits.

        Raises NotFound if the object is missing, TooLarge if it has more than `size` bytes, and OutOfSpace, DiskFailing
        or Refused if the file cannot be written.
        """
        digest = hashlib.sha256()
        try:
            with file.open("xb") as out:

                def write(piece: bytes) -> None:
                    digest.update(piece)
                    out.write(piece)

                async with contextlib.aclosing(self._pieces(name, size, self._patience.whole(size))) as pieces:
                    async for piece in pieces:
                        await asyncio.to_thread(write, piece)
        except OSError as error:
            raise disk_fault(file.parent, error) or Refused(f"{file} cannot be written: {error.strerror}") from None
        return digest.hexdigest()

    async def write(self, name: str, data: bytes) -> None:
        """Write a small object. If an object of this name exists, replace it."""
        await self._call(name, lambda obstore, store: obstore.put_async(store, name, data))

    async def create(self, name: str, data: bytes) -> bool:
        """Write a small object unless an object of this name exists; return whether it was written. A store without
        conditional writes, such as a web server, replaces an existing object, and the result is True."""
        try:
            await self._call(name, lambda obstore, store: obstore.put_async(store, name, data, mode="create"))
        except _Exists:
            return False
        except Unsupported:  # a web server
            await self.write(name, data)
        return True

    async def upload(self, name: str, file: Path) -> None:
        """Write a local file as an object. If an object of this name exists, replace it."""
        seconds = self._patience.whole(file.stat().st_size)
        await self._call(name, lambda obstore, store: obstore.put_async(store, name, file), seconds)

    async def size(self, name: str) -> int | None:
        """Return the size of an object in bytes, or None if the object is missing."""
        try:
            found = await self._call(name, lambda obstore, store: obstore.head_async(store, name))
        except NotFound:
            return None
        return int(found["size"])

    async def list(self, prefix: str) -> list[Item]:
        """Return all objects below a prefix. If the store is a folder, leave out the objects behind a symbolic link.
        Raises Unsupported if the store cannot list its objects, such as a plain web server."""
        stream = await self._call(prefix, _listed(prefix))
        found, end = [], asyncio.get_running_loop().time() + 30 * self._patience.call_s
        while page := await self._within(prefix, _next(stream), self._patience.call_s):
            found += [Item(each["path"], each["size"], _seconds(each["last_modified"])) for each in page]
            if asyncio.get_running_loop().time() > end:
                raise DaemonUnavailable(f"{self.place} did not list all objects in time; try again")
        if self._folder is None:
            return found
        return [each for each in found if not await asyncio.to_thread(_has_link, self._folder, each.name)]

    async def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with contextlib.suppress(NotFound):
            await self._call(name, lambda obstore, store: obstore.delete_async(store, name))

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _pieces(self, name: str, most: int, seconds: float) -> AsyncGenerator[bytes, None]:
        """Yield an object in pieces. Raises TooLarge if the object has more than `most` bytes, and DaemonUnavailable if
        the transfer takes longer than `seconds`."""
        end = asyncio.get_running_loop().time() + seconds
        found = await self._call(name, lambda obstore, store: obstore.get_async(store, name))
        if found.meta["size"] > most:
            raise TooLarge(f"object {name} in {self.place} is too large: it has more than {most} bytes")
        stream, left = found.stream(min_chunk_size=_PIECE).__aiter__(), most
        while piece := await self._within(name, _next(stream), self._patience.call_s):
            left -= len(piece)
            if left < 0:
                raise TooLarge(f"object {name} in {self.place} is too large: it has more than {most} bytes")
            if asyncio.get_running_loop().time() > end:
                raise DaemonUnavailable(
                    f"{self.place} is too slow: object {name} takes longer than {seconds:.0f} s; try again"
                )
            yield bytes(piece)

    async def _call(self, name: str, call: Any, seconds: float | None = None) -> Any:
        obstore, store = self._store()
        if self._folder is not None and await asyncio.to_thread(_has_link, self._folder, name):
            raise Refused(
                f"the path of object {name} in {self.place} has a link, which edged does not follow; remove the link"
            )
        return await self._within(name, call(obstore, store), seconds or self._patience.call_s)

    async def _within(self, name: str, call: Awaitable[T], seconds: float) -> T:
        try:
            return await tasks.at_most(seconds, call)
        except (TimeoutError, asyncio.TimeoutError):
            raise DaemonUnavailable(
                f"{self.place} does not answer within {seconds:.0f} s; check its address and the network"
            ) from None
        except EdgedError:
            raise
        except Exception as error:
            raise self._failure(name, error) from None

    def _failure(self, name: str, error: Exception) -> EdgedError:
        from obstore import exceptions

        # The text may have several lines, and may contain a server's answer.
        text = redact(str(error).partition("\n")[0])[:200]
        if isinstance(error, (exceptions.NotFoundError, FileNotFoundError)):
            return NotFound(f"{self.place} has no object {name}")
        if isinstance(error, (exceptions.AlreadyExistsError, exceptions.PreconditionError)):
            return _Exists(f"{name} exists in {self.place}")
        if isinstance(error, NotImplementedError):
            return Unsupported(f"{self.place} lacks an operation that edged needs: {text}")
        if isinstance(error, (exceptions.UnauthenticatedError, exceptions.PermissionDeniedError, PermissionError)):
            return Unauthenticated(f"{self.place} refuses access: {text}; check the credentials (docs/fleet.md)")
        return DaemonUnavailable(f"{self.place} cannot be used: {text}")

    def _store(self) -> tuple[Any, Any]:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise Unsupported(
                f"the shared store needs the package obstore, which is not installed: {packages.install_extra('fleet')}"
            ) from None
        if self._opened is None:
            self._opened = self._open(from_url)
        return obstore, self._opened

    def _open(self, from_url: Any) -> Any:
        parts, seconds = urlsplit(self.url), int(self._patience.call_s)
        if self._folder is not None:
            if not self._folder.is_dir():  # such as a network folder that is not mounted
                raise DaemonUnavailable(f"folder {self._folder} of the store does not exist; create or mount it")
            return from_url(self.url)
        options: dict[str, Any] = {
            # Manifests are signed and contain the digests of all files, so the connection need not be encrypted.
            "client_options": {"allow_http": True, "connect_timeout": f"{min(10, seconds)}s", "timeout": "1h"},
            "retry_config": {"max_retries": 1, "retry_timeout": timedelta(seconds=seconds)},
        }
        try:
            return from_url(self.url, **options, **signing(parts.scheme))
        except Exception as error:  # the library's errors have no common class
            raise ConfigError(f"{self.place} cannot be used as a store: {redact(str(error))[:200]}") from None


class _Exists(Refused):
    """Raised if the object that a call should create exists already."""


def _has_link(folder: Path, name: str) -> bool:
    """Whether a path below a folder contains a symbolic link, which `obstore` would follow."""
    place = folder
    for part in PurePosixPath(name).parts:
        place = place / part
        if place.is_symlink():
            return True
    return False


def _listed(prefix: str) -> Any:
    async def listing(obstore: Any, store: Any) -> Any:
        return obstore.list(store, prefix).__aiter__()

    return listing


async def _next(stream: Any) -> Any:
    """Return the next item of a stream; None at its end."""
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None


def _seconds(moment: datetime) -> float:
    return moment.timestamp()

"""Bearer tokens of 256 random bits. Their SHA-256 digests are in a file that only the file's owner can read.

A slow hash such as scrypt is for secrets that people choose, because such secrets can be guessed. 256 random bits
cannot be guessed, whatever the hash, and a slow hash would cost time in every call.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from edged.config.schema import Role
from edged.decoding import explain, ready
from edged.errors import AlreadyExists, ConfigError, EdgedError, InvalidInput, NotFound
from edged.files import hand_over, read_regular
from edged.store import atomic

PREFIX = "edged_"  # a prefix by which scanners find leaked secrets
_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stored token: `sha256` in hexadecimal; `created` and `expires` in seconds since the epoch, 0 for never."""

    name: str
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    roles: tuple[Role, ...]
    created: float = 0.0
    expires: float = 0.0


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[Token, ...] = ()
    version: int = 1


def make(name: str, roles: frozenset[Role], days: float = 0.0) -> tuple[Token, str]:
    """Return a new token, and its secret, which is not stored. The token expires after `days`; 0 means never.

    Raises InvalidInput for an invalid name, or without a role.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"invalid token name {name[:80]!r}: use at most 64 letters, digits and . _ @ -, a letter or digit first"
        )
    if not roles:
        raise InvalidInput(f"token {name} needs a role; give --role infer, read or operate")
    secret = PREFIX + secrets.token_urlsafe(_BYTES)
    now = time.time()
    token = Token(name, digest(secret), tuple(sorted(roles)), now, now + days * 86400 if days else 0.0)
    return token, secret


def digest(secret: str) -> str:
    """Return the SHA-256 of a secret, in hexadecimal."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def find(tokens: tuple[Token, ...], secret: str) -> Token | None:
    """Return the token that has this secret; None if no token has this secret. All tokens are compared in constant
    time, so that the duration reveals nothing."""
    shown, found = digest(secret), None
    for token in tokens:
        if hmac.compare_digest(token.sha256, shown):
            found = token
    return found


class TokenFile:
    """The tokens on disk. Every change replaces the whole file; a running daemon sees the change within a second."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[Token, ...]:
        """Return all tokens; empty if the file does not exist. Raises ConfigError if the file is unusable, or if other
        users have any access to it."""
        try:
            data = read_regular(self.path)
            status = self.path.stat()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ConfigError(f"the tokens in {self.path} cannot be read: {error.strerror or error}") from error
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"tokens file {self.path} is accessible to users other than its owner; run: chmod 600 {self.path}"
            )
        try:
            return msgspec.json.decode(data, type=ready(_File)).tokens
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"cannot parse {self.path} as a file of tokens: {explain(error)}; restore the file, or remove it and"
                " create new tokens: edged tokens new"
            ) from error

    def add(self, token: Token) -> None:
        """Add a token. Raises AlreadyExists if its name is taken."""
        with self._locked():
            tokens = self.read()
            if any(each.name == token.name for each in tokens):
                raise AlreadyExists(
                    f"token {token.name} already exists; revoke it first: edged tokens revoke {token.name}"
                )
            self._write((*tokens, token))

    def revoke(self, name: str) -> Token:
        """Remove and return a token. Raises NotFound."""
        with self._locked():
            tokens = self.read()
            gone = next((token for token in tokens if token.name == name), None)
            if gone is None:
                raise NotFound(f"token {name[:80]!r} does not exist in {self.path}; see: edged tokens list")
            self._write(tuple(token for token in tokens if token is not gone))
            return gone

    def _write(self, tokens: tuple[Token, ...]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_File(tokens)), indent=2) + b"\n"
        atomic.sweep(self.path.parent)
        atomic.write_file(self.path, data, 0o600)
        hand_over(self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder against other commands, so that no command overwrites the tokens of another."""
        import fcntl

        folder = self.path.parent
        try:
            if not folder.is_dir():
                folder.mkdir(parents=True, mode=0o700)
                hand_over(folder)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise EdgedError(f"cannot write tokens to {folder}: {error.strerror}; use sudo, or --file") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise EdgedError(f"cannot write tokens to {folder}: {error.strerror}; use sudo, or --file") from error
        finally:
            os.close(handle)


class TokenBook:
    """The tokens that were in the file at the last `look`. If the file becomes unusable, the previous tokens stay
    valid, and `problem` is the reason; otherwise `problem` is empty."""

    def __init__(self, file: TokenFile) -> None:
        """Read the file. Raises ConfigError."""
        self._file = file
        atomic.sweep(file.path.parent)
        self._sign = self._signed()
        self.tokens = self._read()
        self.problem = ""

    def find(self, secret: str) -> Token | None:
        """Return the token of a secret, as of the last `look`. This does not read the file: a caller that guesses
        secrets must not cause reads of the disk."""
        return find(self.tokens, secret)

    def look(self) -> bool:
        """Read the file again if it changed or was unusable; return whether the tokens changed."""
        sign = self._signed()
        if sign == self._sign and not self.problem:
            return False
        before = self.tokens
        try:
            self.tokens, self.problem = self._read(), ""
        except ConfigError as error:
            self.problem = str(error)
        self._sign = sign
        return self.tokens != before

    def _read(self) -> tuple[Token, ...]:
        tokens = self._file.read()
        if tokens and self._file.path.stat().st_uid not in (0, os.geteuid()):  # the owner could add tokens
            raise ConfigError(
                f"tokens file {self._file.path} belongs to another user than the daemon's; run: chown {os.geteuid()}"
                f" {self._file.path}"
            )
        return tokens

    def _signed(self) -> tuple[int, ...]:
        try:
            status = self._file.path.stat()
        except OSError:
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns  # ctime: owner or mode changed

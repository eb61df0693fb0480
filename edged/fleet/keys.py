"""The Ed25519 key with which a box signs its engines, and the trusted keys of other boxes. Uses PyNaCl.

STATE/fleet/key             the secret key, in hexadecimal digits; only its owner may read it
STATE/fleet/trusted.json    {"boxes": {"NAME": "public key in hexadecimal digits"}}
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edged import packages
from edged.decoding import ready
from edged.errors import AlreadyExists, ConfigError, InvalidInput, NotFound, Refused, Unsupported
from edged.files import hand_over, read_regular
from edged.store import atomic

FOLDER = "fleet"
_KEY, _TRUSTED = "key", "trusted.json"
_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)


class _Trusted(msgspec.Struct, frozen=True):
    boxes: dict[str, str] = {}


class Keys:
    """The keys below a daemon's state directory. Each call reads the files again; they are small."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    @property
    def place(self) -> Path:
        """The file of the secret key."""
        return self._folder / _KEY

    def generate(self) -> str:
        """Create the secret key of this box; return the public key. Raises AlreadyExists if the box already has a key,
        Refused if the file cannot be written, Unsupported without PyNaCl."""
        _signing()  # raises Unsupported without PyNaCl, before the file exists
        secret = os.urandom(32)
        place = self._folder / _KEY
        try:
            self._make_folder()
            handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise AlreadyExists(f"this box already has a key, {place}; the public key is {self.public()}") from None
        except OSError as error:
            raise Refused(
                f"the key cannot be written to {place}: {error.strerror}; use sudo, or name another folder with --state"
            ) from None
        with os.fdopen(handle, "wb") as file:
            file.write(secret.hex().encode() + b"\n")
            file.flush()
            os.fsync(handle)
        hand_over(place)
        return _public(secret)

    def public(self) -> str:
        """Return the public key of this box, or an empty text if the box has no key. Raises ConfigError if the file of
        the key cannot be used."""
        secret = self._secret()
        return _public(secret) if secret else ""

    def sign(self, data: bytes) -> tuple[str, str]:
        """Return the public key and the signature of data, both in hexadecimal digits. Raises Refused if this box has
        no key."""
        secret = self._secret()
        if not secret:
            raise Refused("this box cannot sign engines, because it has no key; create a key: edged fleet keygen")
        return _public(secret), bytes(_signing().SigningKey(secret).sign(data).signature).hex()

    def trust(self, name: str, key: str) -> None:
        """Trust the engines of a box. Raises InvalidInput for an invalid name or key, and AlreadyExists if the box with
        this name is trusted with another key."""
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name[:40]!r} is not a name for a box; use 1 to 64 letters, digits and . _ @ -")
        if not _HEX.fullmatch(key):
            raise InvalidInput(
                "the public key is invalid; give the 64 hexadecimal digits that edged fleet keygen prints"
            )
        found = dict(self.trusted())
        if found.get(name, key) != key:
            raise AlreadyExists(
                f"box {name} is already trusted with a different key; remove that key first: edged fleet untrust {name}"
            )
        self._write({**found, name: key})

    def untrust(self, name: str) -> str:
        """Stop trusting a box; return its key. Raises NotFound if no trusted box has this name."""
        found = dict(self.trusted())
        if name not in found:
            raise NotFound(f"no trusted box is named {name[:40]!r}; see: edged fleet keys")
        key = found.pop(name)
        self._write(found)
        return key

    def trusted(self) -> Mapping[str, str]:
        """Return a mapping from the names of the trusted boxes to their public keys. Raises ConfigError if the file
        cannot be used."""
        place = self._folder / _TRUSTED
        try:
            return msgspec.json.decode(read_regular(place), type=ready(_Trusted)).boxes
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the trusted keys in {place} cannot be read: {error}; correct the file, or remove it and trust the"
                " boxes again: edged fleet trust"
            ) from None

    def name_of(self, key: str) -> str:
        """Return the name of the box with this public key: "this box" for the box's own key, and an empty text for a
        key that is not trusted."""
        if not _HEX.fullmatch(key):
            return ""
        if key == self.public():
            return "this box"
        return next((name for name, trusted in self.trusted().items() if trusted == key), "")

    def _secret(self) -> bytes:
        place = self._folder / _KEY
        try:
            text = read_regular(place).decode("ascii", "replace").strip()
            status = place.stat()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise ConfigError(f"the key of this box, {place}, cannot be read: {error.strerror or error}") from None
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"other users than the owner can access the key {place}; run: chmod 600 {place}")
        if not _HEX.fullmatch(text):
            raise ConfigError(f"{place} contains no key; remove the file, and create a key: edged fleet keygen")
        return bytes.fromhex(text)

    def _write(self, trusted: Mapping[str, str]) -> None:
        place = self._folder / _TRUSTED
        try:
            self._make_folder()
            atomic.write_file(
                place, msgspec.json.format(msgspec.json.encode(_Trusted(dict(trusted))), indent=2) + b"\n"
            )
            hand_over(place)
        except OSError as error:
            raise Refused(
                f"the trusted keys cannot be written to {place}: {error.strerror}; use sudo, or name another folder"
                " with --state"
            ) from None

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, mode=0o700)
            hand_over(self._folder)


def is_signed(key: str, signature: str, data: bytes) -> bool:
    """Whether the owner of a public key made the signature of `data`. Key and signature are hexadecimal digits."""
    nacl = _signing()
    with contextlib.suppress(Exception):  # hostile texts: not hexadecimal, of a wrong length, not a point of the curve
        nacl.VerifyKey(bytes.fromhex(key)).verify(data, bytes.fromhex(signature))
        return True
    return False


def _public(secret: bytes) -> str:
    return bytes(_signing().SigningKey(secret).verify_key).hex()


def _signing() -> Any:
    try:
        from nacl import signing
    except ImportError:
        raise Unsupported(
            f"signed engines need the package PyNaCl, which is not installed: {packages.install_extra('fleet')}"
        ) from None
    return signing

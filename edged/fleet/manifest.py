"""A manifest is a small signed text that describes a published engine, with the digests of the engine's files. Pure.

engines/KEY.json      the manifest of the engine with this key
engines/KEY.before    the manifest that KEY.json replaced, for `edged fleet rollback`
timings/NAME.json     the manifest of a timing cache of TensorRT
blobs/SHA256          files, named by the SHA-256 of their content
leases/KEY.json       the box that builds an engine now; see leases.py
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from edged.backends.artefact import FileRecord
from edged.decoding import ready
from edged.errors import Refused
from edged.files import NOT_JSON
from edged.store.key import EngineKey
from edged.store.record import EngineRecord

FORMAT = 1
LARGEST = 1 << 20  # bytes of a manifest
LARGEST_ENGINE = 64 << 30  # bytes
_DOMAIN = b"edged manifest 1\n"  # begins each signed text, so that no signature of other data is valid here
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA_256 = re.compile(r"[0-9a-f]{64}")

Kind: TypeAlias = Literal["engine", "timings"]


class Manifest(msgspec.Struct, frozen=True):
    """A published engine or timing cache. `name` is the engine's key or the name of the cache. `record` is None for a
    timing cache."""

    format: int
    kind: Kind
    name: str
    files: dict[str, FileRecord]
    record: EngineRecord | None
    edged_version: str
    published_unix_s: float

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


class Signed(msgspec.Struct, frozen=True):
    """A manifest as text, with its signature and the public key of the box that signed it. The signature and the key
    are hexadecimal digits."""

    signer: str
    signature: str
    manifest: str

    @property
    def content(self) -> bytes:
        """The bytes that are signed."""
        return _DOMAIN + self.manifest.encode()

    def read(self) -> Manifest:
        """Return the manifest. The caller checks the signature first. Raises Refused if the manifest cannot be read."""
        try:
            found = msgspec.json.decode(self.manifest, type=ready(Manifest))
        except (*NOT_JSON, ValueError) as error:
            raise Refused(f"the manifest cannot be read: {error}") from None
        if found.format > FORMAT:
            raise Refused(
                f"the manifest has format {found.format}, but this version of edged reads formats up to {FORMAT};"
                " update edged"
            )
        return found


def place(kind: Kind, name: str) -> str:
    """Return the name of a manifest in the bucket."""
    return f"{'engines' if kind == 'engine' else 'timings'}/{name}.json"


def place_before(name: str) -> str:
    """Return the name of an engine's previous manifest in the bucket."""
    return f"engines/{name}.before"


def blob(file: FileRecord) -> str:
    """Return the name of the object in the bucket that has the content of a file."""
    return f"blobs/{file.sha256}"


def signed_text(manifest: Manifest) -> tuple[str, bytes]:
    """Return a manifest as text, and the bytes to sign."""
    text = msgspec.json.encode(manifest).decode()
    return text, _DOMAIN + text.encode()


def parse(data: bytes) -> Signed:
    """Decode a signed manifest without checking the signature. Raises Refused if the data is not a signed manifest."""
    try:
        return msgspec.json.decode(data, type=ready(Signed))
    except (*NOT_JSON, ValueError):
        raise Refused("the manifest is damaged") from None


def check(found: Manifest, kind: Kind, name: str, key: EngineKey | None = None) -> None:
    """Check the kind and name of a manifest, and that its file names, digests (SHA-256) and sizes are valid. If `key`
    is given, also check that the manifest has exactly the parts of `key` and does not contradict the engine's record.
    Raises Refused if a check fails."""
    if (found.kind, found.name) != (kind, name):
        raise Refused(f"the manifest describes {found.kind} {found.name[:40]!r}, not the requested {kind} {name!r}")
    if not found.files:
        raise Refused("the manifest names no files")
    for file, record in found.files.items():
        if not _NAME.fullmatch(file) or file == "record.json" or not _SHA_256.fullmatch(record.sha256):
            raise Refused(f"file {file[:40]!r} has an invalid name or digest in the manifest")
        if not 0 <= record.size <= LARGEST_ENGINE:
            raise Refused(f"file {file!r} has an impossible size in the manifest: {record.size} bytes")
    if key is None:
        return
    if found.record is None or dict(found.record.parts) != dict(key.parts) or key.digest != name:
        raise Refused(f"the manifest has no record of the requested engine {name!r}")
    recipe = found.record.recipe.parts()
    if found.record.files != found.files or not found.record.is_usable or recipe.items() - key.parts.items():
        raise Refused(
            "the manifest contradicts itself: the record of the engine does not match the engine's key or files, or the"
            " record says that the engine is not usable"
        )

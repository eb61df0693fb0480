"""The files of one built engine, and the only way to read them: checked against the digests in their record.

A runtime's own check is not enough: OpenVINO accepts a blob with flipped weights without a word.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from edged.errors import EngineDamaged
from edged.files import read_regular

_CHUNK = 1 << 20


class FileRecord(msgspec.Struct, frozen=True):
    """One file of an engine: sha256 as hexadecimal, size in bytes."""

    sha256: str
    size: int


class Artefact(msgspec.Struct, frozen=True):
    """A directory and the files that an engine consists of, by name. An engine may have none (see `null`)."""

    root: str
    files: dict[str, FileRecord]

    @classmethod
    def seal(cls, root: Path) -> Artefact:
        """Digests every file that a build left in `root`."""
        files = {path.name: _digest(path) for path in sorted(root.iterdir())}
        return cls(str(root), files)

    @property
    def size(self) -> int:
        return sum(record.size for record in self.files.values())

    def load(self, name: str) -> bytes:
        """The bytes of one file, equal to what was recorded; EngineDamaged when missing or altered.

        Reads once and checks what was read, so that nothing can change between the check and the use.
        """
        record = self.files.get(name)
        if record is None:
            raise EngineDamaged(f"engine file {name} is not in its record; it will be rebuilt")
        try:
            data = read_regular(Path(self.root) / name)
        except OSError as error:
            raise EngineDamaged(f"engine file {name} cannot be read: {error.strerror}; it will be rebuilt") from error
        if len(data) != record.size or hashlib.sha256(data).hexdigest() != record.sha256:
            raise EngineDamaged(f"engine file {name} does not match its record (altered on disk); it will be rebuilt")
        return data

    def check(self) -> None:
        """Checks every file without keeping its bytes; EngineDamaged when one is missing or altered."""
        for name, record in self.files.items():
            try:
                found = _digest(Path(self.root) / name)
            except OSError as error:
                raise EngineDamaged(f"engine file {name} cannot be read: {error.strerror}") from error
            if found != record:
                raise EngineDamaged(f"engine file {name} does not match its record (altered on disk)")


def _digest(path: Path) -> FileRecord:
    digest, size = hashlib.sha256(), 0
    if not path.is_file():  # a FIFO would never end
        raise FileNotFoundError(2, "not a regular file", str(path))
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(digest.hexdigest(), size)

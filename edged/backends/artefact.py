"""The files of one built engine. Every read of a file compares its bytes with the recorded size and digest.

The check of a runtime is not enough: OpenVINO accepts a blob with altered weights without an error.
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
    """The files of an engine, if any. `files` maps the name of each file in the folder `root` to its record."""

    root: str
    files: dict[str, FileRecord]

    @classmethod
    def seal(cls, root: Path) -> Artefact:
        """Record size and digest of every file that a build wrote to `root`."""
        files = {path.name: _digest(path) for path in sorted(root.iterdir())}
        return cls(str(root), files)

    @classmethod
    def seal_file(cls, path: Path) -> Artefact:
        """Record size and digest of one file."""
        return cls(str(path.parent), {path.name: _digest(path)})

    @property
    def size(self) -> int:
        return sum(record.size for record in self.files.values())

    def load(self, name: str) -> bytes:
        """Return the bytes of one file. Raises EngineDamaged if the file is missing or differs from its record.

        The file is read once. The returned bytes are the bytes that were checked, so a later change has no effect.
        """
        record = self.files.get(name)
        if record is None:
            raise EngineDamaged(f"engine file {name} is not in the engine's record; the engine will be rebuilt")
        try:
            data = read_regular(Path(self.root) / name)
        except OSError as error:
            raise EngineDamaged(
                f"engine file {name} cannot be read: {error.strerror}; the engine will be rebuilt"
            ) from error
        if len(data) != record.size or hashlib.sha256(data).hexdigest() != record.sha256:
            raise EngineDamaged(
                f"engine file {name} does not match its record (altered on disk); the engine will be rebuilt"
            )
        return data

    def check(self) -> None:
        """Check every file without keeping its bytes. Raises EngineDamaged if a file is missing or altered."""
        for name, record in self.files.items():
            try:
                found = _digest(Path(self.root) / name)
            except OSError as error:
                raise EngineDamaged(
                    f"engine file {name} cannot be read: {error.strerror}; the engine will be rebuilt"
                ) from error
            if found != record:
                raise EngineDamaged(
                    f"engine file {name} does not match its record (altered on disk); the engine will be rebuilt"
                )


def _digest(path: Path) -> FileRecord:
    digest, size = hashlib.sha256(), 0
    if not path.is_file():  # reading a FIFO would never end
        raise FileNotFoundError(2, "not a regular file", str(path))
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(digest.hexdigest(), size)

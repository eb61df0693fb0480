"""Checks a model's external data: whether the files exist, are complete, and lie inside the model's folder.

The checks come before a runtime opens the model, because some runtimes follow absolute paths and links anywhere.
Format: onnx/docs/ExternalData.md.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec
import onnx

from edged.files import leads_outside
from edged.jobs import onnx_walk
from edged.jobs.weights import byte_size
from edged.models.finding import Category, Finding, Stage
from edged.models.inspection import ExternalFile

_SHA_1 = re.compile(r"[0-9a-f]{40}")
_CHUNK = 1 << 20
_PERMIT = "give edged's user read permission for it"
_LARGEST = 1 << 62  # the sum of a larger offset and a length could overflow the 64 bits that runtimes use


class _Reference(msgspec.Struct, frozen=True):
    """A tensor's reference to external data in the file `location`, a relative path. The data ends at byte `end`."""

    tensor: str
    location: str
    end: int


def files(tensors: Iterable[onnx.TensorProto], folder: Path) -> tuple[tuple[ExternalFile, ...], Finding | None]:
    """Return the external files that the tensors refer to, each with its problem (if any), and the first finding."""
    first: Finding | None = None
    needed: dict[str, _Reference] = {}
    damaged: dict[str, Finding] = {}
    for tensor in tensors:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        reference = _reference(tensor)
        if isinstance(reference, Finding):
            location = _entries(tensor).get("location", "")
            damaged.setdefault(location, reference)
            needed.setdefault(location, _Reference(reference.node, location, 0))
        elif reference.location not in needed or reference.end > needed[reference.location].end:
            needed[reference.location] = reference
    found = []
    for location, reference in sorted(needed.items()):
        # A finding about the file precedes a finding about a reference. A reference may name no file.
        size, finding = _look(folder, reference) if location else (0, None)
        finding = finding or damaged.get(location)
        first = first or finding
        found.append(ExternalFile(location, size, finding.line() if finding is not None else ""))
    return tuple(found), first


def altered(
    tensors: Iterable[onnx.TensorProto], folder: Path, found: Sequence[ExternalFile]
) -> tuple[tuple[ExternalFile, ...], Finding | None]:
    """Compare external files with the checksums in the model. Return the files with their problems, and the first
    finding.

    `found` are the files, as `files` returned them without a finding. Only files with a checksum are read. A file that
    cannot be read is returned unchanged."""
    checksums: dict[str, dict[str, str]] = {}  # by file: tensor names by checksum
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL and (entries := _entries(tensor)).get("checksum"):
            name = onnx_walk.text(tensor.name)
            checksums.setdefault(entries["location"], {}).setdefault(entries["checksum"].lower(), name)
    first: Finding | None = None
    judged = []
    for file in found:
        finding = _compared(folder, file.path, checksums.get(file.path, {}))
        first = first or finding
        judged.append(msgspec.structs.replace(file, problem=finding.line()) if finding is not None else file)
    return tuple(judged), first


def _compared(folder: Path, location: str, checksums: Mapping[str, str]) -> Finding | None:
    """Return a finding if the SHA-1 of a file is not the SHA-1 in the model. `checksums` maps each SHA-1 in the model
    to the name of a tensor."""
    if not checksums:
        return None
    for checksum, tensor in checksums.items():
        if not _SHA_1.fullmatch(checksum):
            what = f"tensor {tensor!r} has a damaged external data reference: checksum {checksum[:50]!r} is not a SHA-1"
            return _finding(Category.EXTERNAL_DAMAGED, what, "export the model again", tensor)
    try:
        held = _sha_1(folder / location)
    except OSError:
        return None
    for checksum, tensor in checksums.items():
        if checksum != held:
            what = f"external data {location[:200]!r} was altered: its SHA-1 is {held[:12]}..., the model declares"
            return _finding(Category.EXTERNAL_DAMAGED, f"{what} {checksum[:12]}...", "copy it again", tensor)
    return None


def _sha_1(path: Path) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {onnx_walk.text(entry.key): onnx_walk.text(entry.value) for entry in tensor.external_data}


def _reference(tensor: onnx.TensorProto) -> _Reference | Finding:
    """Return a tensor's reference to external data, or the finding if it is invalid."""
    name, entries = onnx_walk.text(tensor.name), _entries(tensor)
    location = entries.get("location", "")
    if not location:
        message = f"tensor {name!r} has external data, but names no file"
        return _finding(Category.EXTERNAL_DAMAGED, message, "export the model again", name)
    numbers = []
    for key in ("offset", "length"):
        number = _number(entries.get(key, ""))
        if number is None:
            message = f"tensor {name!r} has a damaged reference to external data: invalid {key} {entries[key][:40]!r}"
            return _finding(Category.EXTERNAL_DAMAGED, message, "export the model again", name)
        numbers.append(number)
    offset, length = numbers
    takes = byte_size(tensor)
    if takes is not None and "length" in entries and length != takes:
        message = f"tensor {name!r} takes {takes} bytes, but its reference to external data says {length}"
        return _finding(Category.EXTERNAL_DAMAGED, message, "export the model again", name)
    return _Reference(name, location, offset + (takes if takes is not None else length))


def _number(text: str) -> int | None:
    """Parse a number of bytes; 0 if the text is empty, None if it is invalid."""
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        return None
    number = int(text)
    return number if number <= _LARGEST else None


def _look(folder: Path, reference: _Reference) -> tuple[int, Finding | None]:
    """Return the size of an external file in bytes (0 if unknown), and the finding if the file cannot be used."""
    location, tensor = reference.location, reference.tensor
    named = f"external data {location[:200]!r}"
    path = PurePosixPath(location)
    if leads_outside(location):
        outside = f"{named} lies outside the model's folder"
        return 0, _finding(Category.EXTERNAL_OUTSIDE, outside, "export it into the model's folder", tensor)
    try:
        status = (folder / location).lstat()
        linked = _linked(folder, path)
    except OSError as error:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            missing, remedy = f"{named} is missing", "put it into the model's folder"
        else:
            missing, remedy = f"{named} cannot be read: {error.strerror}", _PERMIT
        return 0, _finding(Category.EXTERNAL_MISSING, missing, remedy, tensor)
    if linked:
        outside = f"{named} is behind the symbolic link {linked[:100]!r}, which can lead outside the model's folder"
        return 0, _finding(Category.EXTERNAL_OUTSIDE, outside, "copy the file itself into the model's folder", tensor)
    if not stat.S_ISREG(status.st_mode):
        message = f"{named} is not a regular file"
        return 0, _finding(
            Category.EXTERNAL_NOT_A_FILE, message, "copy the file itself into the model's folder", tensor
        )
    if not os.access(folder / location, os.R_OK):
        unreadable = f"{named} cannot be read: permission denied"
        return status.st_size, _finding(Category.EXTERNAL_MISSING, unreadable, _PERMIT, tensor)
    if status.st_size < reference.end:
        message = f"{named} is truncated: it has {status.st_size} bytes of at least {reference.end}"
        return status.st_size, _finding(Category.EXTERNAL_TRUNCATED, message, "copy it again", tensor)
    return status.st_size, None


def _linked(folder: Path, path: PurePosixPath) -> str:
    """Return the first part of a path below the folder that is a symbolic link; empty if no part is a link."""
    return next((str(part) for part in _parts(path) if (folder / part).is_symlink()), "")


def _parts(path: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield `a`, `a/b`, `a/b/c` for the path `a/b/c`."""
    yield from reversed([path, *list(path.parents)[:-1]])


def _finding(category: Category, message: str, remedy: str, tensor: str) -> Finding:
    return Finding(Stage.EXTERNAL_DATA, category, message, remedy, tensor)

"""Finds and checks the user's samples. The engines of a model are verified with the model's samples.

Samples are in `models/NAME/samples/`: pictures as JPEG or PNG files, tensors as *.npz files. The files may change at
any time, so verification skips and reports a file that cannot be read. edged adds a model only if all samples that are
given with the model can be read.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from edged.errors import InvalidInput
from edged.files import read_regular

FOLDER = "samples"
SHA_256 = re.compile(r"[0-9a-f]{64}")
_TENSORS = ".npz"
_SUFFIXES = (".jpg", ".jpeg", ".png", _TENSORS)
_WANTED = "*.jpg, *.jpeg, *.png or *.npz files"
MOST = 32  # more samples would take long and verify little more
MOST_BYTES = 16 << 20  # of one file


def is_tensors(name: str) -> bool:
    """Whether the sample with this name or path holds tensors instead of a picture."""
    return name.lower().endswith(_TENSORS)


def listed(folder: Path) -> tuple[Path, ...]:
    """Return the samples in a folder, in the order of their names, at most `MOST`. Empty if the folder cannot be read.

    Links are not followed: otherwise a hostile package could use any picture that the daemon can read as a sample.
    """
    try:
        if folder.is_symlink():
            return ()
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _is_sample(entry.name) and entry.is_file(follow_symlinks=False)]
    except OSError:
        return ()
    return tuple(folder / name for name in heapq.nsmallest(MOST, names))


def find(given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> dict[str, Path]:
    """Return a mapping from the name of each given sample to its path. `given` are files and folders; a folder stands
    for all samples in it. Raises InvalidInput for an unusable path, for two samples of the same name, and for too many
    samples."""
    found: dict[str, Path] = {}
    for path in [Path(given)] if isinstance(given, (str, os.PathLike)) else map(Path, given):
        for sample in _expanded(path):
            if sample.name in found:
                raise InvalidInput(f"two samples are named {sample.name}; rename one of them")
            found[sample.name] = sample
    if len(found) > MOST:
        raise InvalidInput(f"{len(found)} samples are too many; choose at most {MOST} that show what the cameras see")
    return found


def check_name(name: str) -> None:
    """Raise InvalidInput unless `listed` would accept a file of this name as a sample."""
    if not _is_sample(name) or "/" in name or "\0" in name:
        raise InvalidInput(f"invalid sample name {name[:80]!r}; give {_WANTED}")


def check_size(name: str, size: int) -> None:
    """Raise InvalidInput for a sample of more than `MOST_BYTES`."""
    if size > MOST_BYTES:
        raise InvalidInput(f"sample {name} has {size >> 20} MiB; give files of at most {MOST_BYTES >> 20} MiB")


def content(path: str) -> str:
    """Return the sha256 of a sample's content. A file is read again only if it has changed.

    Returns "SIZE bytes" if the file is too large, "error ERRNO" if the file cannot be read.
    """
    try:
        status = os.stat(path)
        if status.st_size > MOST_BYTES:
            return f"{status.st_size} bytes"
        return _digest(path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    except OSError as error:
        return f"error {error.errno}"


def by_content(samples: Iterable[str], digest_of: Callable[[str], str] = content) -> dict[str, str]:
    """Return the paths of samples by the SHA-256 of their content. Leave out samples that cannot be read. `digest_of`
    returns the digest of a path."""
    found = {digest_of(path): path for path in sorted(samples, reverse=True)}
    return {digest: found[digest] for digest in sorted(found) if SHA_256.fullmatch(digest)}


@functools.lru_cache(maxsize=4096)
def _digest(path: str, *stamp: int) -> str:
    return hashlib.sha256(read_regular(Path(path))).hexdigest()


def _expanded(path: Path) -> list[Path]:
    try:
        if not path.exists():
            raise InvalidInput(f"file or folder {path} does not exist; give {_WANTED}, or a folder of them")
        found = sorted(p for p in path.iterdir() if _is_sample(p.name)) if path.is_dir() else [path]
        if not found:
            raise InvalidInput(f"{path} contains no pictures or tensors; put {_WANTED} there")
        for sample in found:
            check_name(sample.name)
            check_size(sample.name, sample.stat().st_size)
            if not sample.is_file():
                raise InvalidInput(f"sample {sample} is not a file; give pictures or tensors, or a folder of them")
    except OSError as error:
        raise InvalidInput(f"sample {path} cannot be read: {error.strerror or error}") from error
    return found


def _is_sample(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(_SUFFIXES) and name.isprintable()

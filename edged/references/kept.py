"""Keeps the files of references (addresses of models) on this box. A reference is fetched once. Later uses read the
kept files and need no network.

    STATE/references/KEY/         KEY is a digest of the reference; STATE is a daemon's state or a user's data folder
        pin.json                  the reference, digests, settings
        problem                   why the reference could not be fetched; a successful fetch removes this file
        files/NAME                the model, and files that belong to it
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from edged import paths
from edged.decoding import ready
from edged.errors import NotFound, Refused
from edged.files import NOT_JSON, disk_fault, unwritable
from edged.references import sources, transfer
from edged.references.reference import Reference, file_name, parse
from edged.references.sources import Source
from edged.references.transfer import Challenged

FOLDER = "references"
_PIN, _PROBLEM, _FILES, _ABSENT, _OLD = "pin.json", "problem", "files", "absent", "old"
_PAGE = (b"<!", b"<html", b"<?xml")  # the first bytes of a page, such as one for logging in


class Pin(msgspec.Struct, frozen=True):
    """The record of a fetched reference. `digests` maps the relative name of each file to its SHA-256, the model first.
    `settings` and `notes` come from the source."""

    reference: str
    digests: dict[str, str]
    settings: dict[str, str] = {}
    notes: list[str] = []

    @property
    def model(self) -> tuple[str, str]:
        """Name and digest of the model."""
        return next(iter(self.digests.items()))


class Local(NamedTuple):
    """A model file on this box. `pin` is None for a file that was not fetched."""

    path: Path
    pin: Pin | None = None


def local(text: str, state: Path | None = None, notify: Callable[[str], None] = lambda line: None) -> Local:
    """Return the model file that an argument names: the path itself, or the file of a reference. If this box does not
    have the file of a reference yet, fetch it. `state` is the folder for fetched files; None means this user's data
    folder. `notify` is called with lines about the progress.

    Raises InvalidInput for a reference that cannot be used, Refused if a file does not have the expected digest, and
    the errors of `transfer.save`.
    """
    reference = parse(text)
    if reference is None:
        return Local(Path(text))
    place = _place(reference, state)
    pin = read(place)
    if pin is None or not _is_kept(reference, place, pin):
        with _alone(place, notify):
            pin = read(place)  # another process may have fetched it
            if pin is None or not _is_kept(reference, place, pin):
                pin = _fetch(reference, place, pin, notify)
    return Local(place / _FILES / pin.model[0], pin)


def place_of(text: str, state: Path) -> tuple[Path, bool]:
    """Return the path of the model file that an argument names, without fetching it. The second value is True, unless
    the argument is a reference whose fetched file is missing or has changed. In this case the second value is False,
    and the path is a substitute that does not exist.

    Raises InvalidInput for a reference that cannot be used.
    """
    reference = parse(text)
    if reference is None:
        return Path(text), True
    place = _place(reference, state)
    pin = read(place)
    if pin is not None and _is_kept(reference, place, pin):
        return place / _FILES / pin.model[0], True
    return place / _ABSENT / file_name(reference.identity), False


def keep_problem(text: str, state: Path, problem: str) -> None:
    """Store `problem`, the reason why a reference could not be fetched. A later successful fetch removes it."""
    path, is_kept = place_of(text, state)
    if not is_kept:
        with contextlib.suppress(OSError):  # the problem is in the log, too
            place = path.parent.parent
            place.mkdir(parents=True, exist_ok=True)
            (place / _PROBLEM).write_text(problem)


def problem_of(path: Path) -> str:
    """Return why a file could not be fetched. `path` is the file's path as `place_of` returned it. Return an empty text
    if no fetch has failed, or if the path does not belong to a reference."""
    place = path.parent.parent
    if path.parent.name != _ABSENT or place.parent.name != FOLDER:
        return ""
    try:
        return (place / _PROBLEM).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _place(reference: Reference, state: Path | None) -> Path:
    root = (state or paths.user_data_dir()) / FOLDER
    return root / hashlib.sha256(reference.identity.encode()).hexdigest()[:24]


@contextlib.contextmanager
def _alone(place: Path, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of this reference, so that no other process fetches it at the same time."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = (place.parent / f".{place.name}.lock").open("w")
    except OSError as error:
        raise Refused(
            unwritable(place.parent) or f"{place.parent} cannot be written: {error.strerror or error}"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notify("waiting for another process that fetches the same reference")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in place.parent.glob(f".{place.name}-*"):  # left by a process that was killed
            if (left / _OLD).exists() and not place.exists():
                (left / _OLD).rename(place)  # the old folder has the pin
            shutil.rmtree(left, ignore_errors=True)
        yield


def read(place: Path) -> Pin | None:
    """Return the pin (the record of a fetched reference) in a folder; None if it is missing or cannot be read."""
    try:
        found = msgspec.json.decode((place / _PIN).read_bytes(), type=ready(Pin))
    except (OSError, *NOT_JSON):
        return None
    return found if found.digests else None


def _is_kept(reference: Reference, place: Path, pin: Pin) -> bool:
    """Whether all files still have the digests in the pin. If the reference names a digest, the model must also have
    this digest."""
    try:
        return reference.digest in ("", pin.model[1]) and all(
            _digest(place / _FILES / name) == digest for name, digest in pin.digests.items()
        )
    except OSError:
        return False


def _fetch(reference: Reference, place: Path, pin: Pin | None, notify: Callable[[str], None]) -> Pin:
    def moved(done: int) -> None:
        notify(f"fetching {reference.text}: {done >> 20} MiB")

    with _scratch(place) as scratch:
        new = scratch / "new"
        notify(f"asking for {reference.text}")
        source = sources.find(reference)
        digests: dict[str, str] = {}
        for name in source.files:
            file = new / _FILES / name
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                try:
                    transfer.save(source.files[name], file, moved)
                except Challenged:
                    if not digests:
                        raise
                    source = _renewed(reference, source)
                    file.unlink(missing_ok=True)
                    transfer.save(source.files[name], file, moved)
            except NotFound:
                if not source.files[name].is_optional:
                    raise
                continue
            location = source.files[name]
            if not location.is_optional and (problem := _no_model(file)):
                raise Refused(f"{reference.text} {problem}")
            digests[name] = _digest(file)
            if location.digest not in ("", reference.digest, digests[name]):
                raise Refused(
                    f"{reference.text}: file {name} does not have the SHA-256 that the source announces; try again"
                )
        found = Pin(reference.text, digests, dict(source.settings), list(source.notes))
        _compare(reference, found, pin, place)
        with (new / _PIN).open("wb") as out:
            out.write(msgspec.json.encode(found))
            out.flush()
            os.fsync(out.fileno())  # if a power cut destroyed the pin, a changed file would be accepted
        if place.exists():
            place.rename(scratch / _OLD)
        new.rename(place)
        return found


def _renewed(reference: Reference, source: Source) -> Source:
    """Find the files again, because a token may have expired while earlier files were fetched. Raises Refused if the
    files are no longer the same."""
    found = sources.find(reference)
    before, now = ([(name, each.digest) for name, each in of.files.items()] for of in (source, found))
    if now != before:
        raise Refused(f"{reference.text} changed while it was fetched; try again")
    return found


@contextlib.contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """Yield a folder that is removed at the end. Raises OutOfSpace, DiskFailing or Refused if storing a file fails."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as folder:
            yield Path(folder)
    except OSError as error:
        raise disk_fault(place, error) or Refused(f"{place} cannot be stored: {error.strerror or error}") from None


def _no_model(file: Path) -> str:
    """Return why a file cannot be a model; empty if it can be a model."""
    with file.open("rb") as opened:
        first = opened.read(16).lstrip().lower()
    if not first:
        return "answers with an empty file; check the address"
    if first.startswith(_PAGE):
        return "answers with a web page instead of a model file; check the address, and whether it needs a login"
    return ""


def _compare(reference: Reference, found: Pin, pin: Pin | None, place: Path) -> None:
    """Raise Refused if the model does not have the digest in the reference. If the reference has no digest, the model
    must have the digest of the first fetch."""
    _, digest = found.model
    wanted = reference.digest or (pin.model[1] if pin else "")
    if wanted and digest != wanted:
        accept = "check the digest" if reference.digest else f"the file has changed; to accept it, remove {place}"
        raise Refused(f"{reference.text} has the SHA-256 {digest}, not {wanted}; {accept}")


def _digest(file: Path) -> str:
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            found.update(piece)
    return found.hexdigest()

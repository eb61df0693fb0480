"""Installed Python packages that offer model families, as entry points of the group `edged.families`.

Finding packages reads files and runs no code of the packages. `load` runs their code, and only in a process that called
`permit`: an engine host, a one-shot child, or a user's own program. The daemon never calls `load`.

Format: https://packaging.python.org/en/latest/specifications/entry-points/.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edged.errors import FamilyFailed, Superseded, Unsupported

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "edged.families"
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,58}[a-z0-9])?")
TARGET = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

_UNKNOWN = "unknown"
_DIGITS = 16  # of a package's digest
_WHOLE = 16 << 20  # bytes; of a larger file, only size and time count
_SKIPPED = "__pycache__"
_KNOWN = 1 << 13  # most file digests in the cache. The cache helps because the daemon reads the packages once a minute


class Package(msgspec.Struct, frozen=True):
    """An installed package as it is now: name and version of the distribution, and a digest of the files from which
    its family is imported. An edited checkout keeps its version but not its digest."""

    name: str
    version: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Offer(msgspec.Struct, frozen=True):
    """A family that a package offers. `target` is MODULE:CLASS. `problem` says why edged cannot use the family; empty
    if it can."""

    family: str
    package: Package
    target: str
    problem: str = ""


def offers() -> tuple[Offer, ...]:
    """Return every family that an installed package offers, sorted by name. Reads the disk, and runs no code of the
    packages."""
    found = sorted(map(_offer, _points()), key=lambda offer: (offer.family, offer.package.name))
    times = Counter(offer.family for offer in found)
    return tuple(_unambiguous(offer, found) if times[offer.family] > 1 else offer for offer in found)


def folders(family: str) -> tuple[str, ...]:
    """Return the folders and files from which a family is imported; empty if no package offers it. Reads the disk."""
    return tuple(str(place) for point in _points() if point.name == family for place in _places(point.value))


def permit(is_permitted: bool = True) -> None:
    """Allow this process to run the code of packages, or forbid it again."""
    global _is_permitted
    _is_permitted = is_permitted


def is_permitted() -> bool:
    """Whether this process may run the code of packages."""
    return _is_permitted


_is_permitted = False


def load(family: str, package: Package) -> object:
    """Import a family and return the object that its entry point names.

    Raises Unsupported in a process without permission, Superseded if the installed package is not `package`, and
    FamilyFailed if the family cannot be imported.
    """
    if not _is_permitted:
        raise Unsupported(
            f"this process may not run the code of family {family} of package {package}; in your own program, name the"
            " family in the argument 'families'"
        )
    offer = _current(family, package)
    module, _, name = offer.target.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit and panics of Rust: a thread of a host would end silently
        raise failed(family, package, error, f"cannot import {offer.target}") from error
    _current(family, package)  # its files may have been replaced during the import
    if _imported.setdefault(module, package) != package:
        raise Superseded(
            f"package {package} of family {family} changed after this process had imported the package; only a new"
            " process can use the changed package"
        )
    return found


_imported: dict[str, Package] = {}  # by module


def failed(family: str, package: Package, error: BaseException | str, what: str = "") -> FamilyFailed:
    """Return the error that names a family and its package as the cause. `error` is the family's exception, or a text
    that describes the problem; `what` names the failed action."""
    reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}".removesuffix(": ")
    text = ": ".join(filter(None, (f"family {family} of package {package}", what, reason)))
    return FamilyFailed(text[:_LONGEST], family)


_LONGEST = 1000  # characters of an error: a package's message may be anything


def _current(family: str, package: Package) -> Offer:
    installed = [offer for offer in offers() if offer.family == family and not offer.problem]
    if not installed:
        raise Superseded(
            f"package {package} of family {family} is not installed in the environment of this process, or another"
            " package also offers the family; see: edged family list"
        )
    if installed[0].package != package:
        raise Superseded(
            f"package {package} of family {family} changed on disk; repeat the command (edged repeats its own work)"
        )
    return installed[0]


def _points() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # imports much that most processes do not need

    importlib.invalidate_caches()  # a package may have been installed since this process started
    try:
        return tuple(entry_points(group=GROUP))
    except Exception:  # metadata of some package is damaged; the errors for this are not documented
        return tuple(_readable_points())


def _readable_points() -> Iterator[EntryPoint]:
    """Yield the entry points of the packages whose metadata can be read. This is slower than `entry_points`, which
    raises if the metadata of any package is damaged."""
    from importlib.metadata import distributions

    seen = set[str]()
    for distribution in distributions():
        found: list[EntryPoint] = []
        with contextlib.suppress(Exception):
            name, points = str(distribution.metadata["Name"]), distribution.entry_points
            if name not in seen:  # the first one on the path is the one that is imported
                seen.add(name)
                found = [point for point in points if point.group == GROUP]
        yield from found


def _offer(point: EntryPoint) -> Offer:
    family, target = point.name, point.value.split("[")[0].strip()
    package = _package(point)
    if not NAME.fullmatch(family):
        allowed = "1 to 60 lower-case letters, digits, dots, dashes and underscores"
        return Offer(family[:80], package, target, f"invalid family name; a name has {allowed}")
    if not TARGET.fullmatch(target):
        return Offer(family, package, target, f"entry point {target[:80]!r} does not have the form MODULE:CLASS")
    return Offer(family, package, target)


def _package(point: EntryPoint) -> Package:
    points = point.dist.entry_points if point.dist is not None else ()
    name, version = _named(point, "Name"), _named(point, "Version")
    hasher = hashlib.sha256(f"{name}\0{version}\0".encode())
    hasher.update("".join(sorted(f"{p.name}\0{p.value}\0" for p in points if p.group == GROUP)).encode())
    for place in _places(point.value):
        for file in _files(place):
            hasher.update(f"{file.relative_to(place.parent)}\0".encode(errors="surrogateescape"))
            hasher.update(_content(file))
    return Package(name, version, hasher.hexdigest()[:_DIGITS])


def _named(point: EntryPoint, key: str) -> str:
    """Return the value of a key in the metadata of an entry point's package, as one printable line of about 80
    characters."""
    try:
        found = point.dist.metadata.get_all(key) if point.dist is not None else None
    except Exception:  # the metadata is missing or damaged
        found = None
    text = " ".join(str(found[0] if found else _UNKNOWN).split())[:80]
    return text if text.isprintable() else ascii(text)


def _places(target: str) -> list[Path]:
    """Return the folders of a target's top-level package, or the file of its top-level module. Runs no code of the
    package: it searches only for the top level, since a search for a submodule would import the package."""
    top = re.split(r"[.:\s]", target.strip(), maxsplit=1)[0]
    try:
        spec = importlib.util.find_spec(top) if top else None
    except (ImportError, ValueError, AttributeError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return sorted(Path(place) for place in spec.submodule_search_locations)
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    for folder, inner, names in os.walk(place):
        inner[:] = sorted(name for name in inner if name != _SKIPPED)
        yield from (Path(folder, name) for name in sorted(names))


def _content(file: Path) -> bytes:
    """Return a digest of a file's content, or of its size and time if it is large."""
    try:
        about = file.stat()
        if about.st_size <= _WHOLE and stat.S_ISREG(about.st_mode):
            return _digest(file, about.st_size, about.st_mtime_ns, about.st_ino)
        return f"{about.st_size}\0{about.st_mtime_ns}".encode()
    except OSError as error:
        return f"{error.errno}".encode()


@functools.lru_cache(_KNOWN)
def _digest(file: Path, size: int, mtime_ns: int, inode: int) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()


def _unambiguous(offer: Offer, every: list[Offer]) -> Offer:
    """Return the offer with a `problem`, because other packages offer a family of the same name. edged uses none of
    these offers."""
    others = {str(each.package) for each in every if each.family == offer.family and each != offer}
    others = others or {str(offer.package)}
    return msgspec.structs.replace(
        offer, problem=f"{', '.join(sorted(others))} also offers this family; uninstall one of the packages"
    )

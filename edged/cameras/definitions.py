"""The cameras that the daemon runs: those of its configuration, and those that operators added (stored in files)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from edged.config.cameras import Camera
from edged.config.keys import shown
from edged.decoding import ready
from edged.errors import AlreadyExists, InvalidInput, NotFound, Refused
from edged.files import not_stored, read_regular
from edged.store import atomic

_LOG = logging.getLogger("edged.cameras")
_SUFFIX = ".json"
_MODE = 0o600  # addresses of cameras can contain passwords
_MOST = 1024


class Definition(NamedTuple):
    """A camera's settings. `is_configured`: the configuration defines the camera, so commands cannot change it."""

    camera: Camera
    is_configured: bool


class Definitions:
    """All cameras by name. A camera of the configuration hides an added camera with the same name."""

    def __init__(self, folder: Path, configured: Mapping[str, Camera]) -> None:
        """`folder` has a file for each camera that operators added; the folder need not exist."""
        self._folder = folder
        self._configured = dict(configured)
        self._added = dict(_read(folder))

    def all(self) -> dict[str, Definition]:
        """Return all cameras, sorted by name."""
        added = {name: Definition(camera, False) for name, camera in self._added.items()}
        configured = {name: Definition(camera, True) for name, camera in self._configured.items()}
        return dict(sorted({**added, **configured}.items()))

    def find(self, name: str) -> Definition:
        """Return a camera. Raises NotFound with the names of the existing cameras."""
        known = self.all()
        if name not in known:
            names = ", ".join(known) or "none; add one with: edged cameras add"
            raise NotFound(f"no configured camera is named {shown(name)}; existing cameras: {names}")
        return known[name]

    def configure(self, configured: Mapping[str, Camera]) -> None:
        """Replace the cameras of the configuration."""
        self._configured = dict(configured)

    def add(self, name: str, camera: Camera) -> None:
        """Add a camera. Raises AlreadyExists if the name is taken, and InvalidInput if too many cameras were added
        already. Raises OutOfSpace or a similar error if the camera cannot be stored."""
        if name in self.all():
            raise AlreadyExists(f"camera {name!r} exists already; change it with: edged cameras set {name} KEY=VALUE")
        if len(self._added) >= _MOST:
            raise InvalidInput(f"no more than {_MOST} cameras can be added; remove a camera first")
        self._write(name, camera)

    def replace(self, name: str, camera: Camera) -> None:
        """Replace the settings of an added camera. Raises NotFound if there is no such camera, and InvalidInput if the
        camera is defined in the configuration. Raises OutOfSpace or a similar error if the camera cannot be stored."""
        self._require_added(name, "change")
        self._write(name, camera)

    def remove(self, name: str) -> None:
        """Remove an added camera. Raises NotFound if there is no such camera, InvalidInput if the camera is defined in
        the configuration, and Refused if its file cannot be removed."""
        self._require_added(name, "remove")
        try:
            (self._folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)
        except OSError as error:
            raise Refused(f"camera {name!r} cannot be removed: {error.strerror or error}") from error
        del self._added[name]

    def _require_added(self, name: str, verb: str) -> None:
        if self.find(name).is_configured:
            raise InvalidInput(
                f"camera {name!r} is in the daemon's configuration; {verb} it there, then run: edged reload"
            )

    def _write(self, name: str, camera: Camera) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic.write_file(self._folder / f"{name}{_SUFFIX}", msgspec.json.encode(camera), _MODE)
        except OSError as error:
            raise not_stored(f"camera {name!r}", error) from error
        self._added[name] = camera


def _read(folder: Path) -> list[tuple[str, Camera]]:
    """Read the camera files of a folder. A damaged file is logged and left out."""
    found: list[tuple[str, Camera]] = []
    try:
        atomic.sweep(folder)
        paths = sorted(folder.glob(f"[!.]*{_SUFFIX}"))
    except OSError as error:
        _LOG.error("the added cameras in %s cannot be read and do not run: %s", folder, error.strerror or error)
        return found
    for path in paths[:_MOST]:
        try:
            found.append((path.name.removesuffix(_SUFFIX), msgspec.json.decode(read_regular(path), type=ready(Camera))))
        except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
            _LOG.error("camera file %s cannot be used and is ignored: %s", path, error)
    return found

"""Model files that clients send with a load command: kept below the state directory while the daemon runs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from edged.errors import ConfigError, InvalidInput, TooLarge
from edged.files import not_stored
from edged.models import triton_config
from edged.models.entries import ModelEntry, folder_entries
from edged.models.repository import Repository

_MOST_FILES = 256
_MOST_BYTES = 2 << 30
_DEEPEST = 8


class Overrides:
    """A folder with one subfolder for each model that was loaded with files."""

    def __init__(self, root: Path, repository: Repository) -> None:
        self.root, self._repository = root.absolute(), repository

    def sweep(self) -> None:
        """Remove the files of an earlier daemon; call at start only."""
        shutil.rmtree(self.root, ignore_errors=True)

    def entries(self, name: str, config: str | None, files: Mapping[str, bytes]) -> dict[str, ModelEntry]:
        """Return the versions of a model by name: from the repository, with another configuration (JSON) if given, or
        only from `files` (by path inside the model's folder). Empty if the repository does not have the model.

        InvalidInput for an invalid configuration or files; no file is left behind then.
        """
        if files and config is None:
            raise InvalidInput("files to load a model from require its `config`, which may be {}")
        if config is None:
            return {e.name: e for e in self._repository.versions(name)}
        from edged.models.triton_text import read_json  # protobuf, which few models need

        try:
            triton = read_json(config, name)
        except ConfigError as error:
            raise InvalidInput(f"the `config` to load model {name!r} with: {error}") from error
        if not files:
            return {e.name: e for e in self._repository.versions(name, triton)}
        folder = self._stage(name, files)
        try:
            found = folder_entries(folder, name, triton)
            if not found:
                raise InvalidInput(f"model {name!r}: none of the files is named like file:1/model.onnx")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return {e.name: e for e in found}

    def discard(self, entries: Mapping[str, ModelEntry]) -> None:
        """Remove the files of a model that was loaded from files."""
        for folder in {Path(entry.folder) for entry in entries.values()}:
            if folder.parent == self.root:
                shutil.rmtree(folder, ignore_errors=True)

    def _stage(self, name: str, files: Mapping[str, bytes]) -> Path:
        places = {_inside(path): data for path, data in files.items()}
        if len(files) > _MOST_FILES or len(places) < len(files):
            raise InvalidInput(f"model {name!r} comes with {len(files)} files; give each once, {_MOST_FILES} at most")
        if sum(map(len, places.values())) > _MOST_BYTES:
            raise TooLarge(f"the files of model {name!r} have more than {_MOST_BYTES >> 20} MiB")
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o750)
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root))
            try:
                for path, data in places.items():
                    place = folder / path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(data)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as error:
            raise not_stored(f"the files of model {name!r}", error) from error
        return folder


def _inside(path: str) -> PurePosixPath:
    """Check that a path is inside a model's folder; InvalidInput."""
    pure = PurePosixPath(path)
    outside = pure.is_absolute() or ".." in pure.parts or not pure.parts or len(pure.parts) > _DEEPEST
    if outside or not path.isprintable() or any(len(part.encode()) > 255 for part in pure.parts):
        raise InvalidInput(f"{path[:80]!r} is not a file inside a model's folder; name it like file:1/model.onnx")
    if str(pure) == triton_config.FILE:
        raise InvalidInput(f"{triton_config.FILE} is not accepted as a file; send it as `config`, in JSON")
    return pure

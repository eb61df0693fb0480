"""Models as clients send them with a command to load: files below the state directory, gone when the daemon ends."""

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
    """A folder with one folder for each model that was loaded with files of its own."""

    def __init__(self, root: Path, repository: Repository) -> None:
        self.root, self._repository = root.absolute(), repository

    def sweep(self) -> None:
        """Removes what a daemon before left. For the daemon's start, not beside another one."""
        shutil.rmtree(self.root, ignore_errors=True)

    def entries(self, name: str, config: str | None, files: Mapping[str, bytes]) -> dict[str, ModelEntry]:
        """What there would be of a model: as the repository has it, with another configuration (JSON), or, with `files`
        by path inside the model's folder, of these alone. Empty where the repository does not have it.

        InvalidInput for what cannot be; then nothing is left behind.
        """
        if files and config is None:
            raise InvalidInput("files to load a model from come with its `config`, which may be {}")
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
                raise InvalidInput(f"of the files to load model {name!r} from none is like file:1/model.onnx")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return {e.name: e for e in found}

    def discard(self, entries: Mapping[str, ModelEntry]) -> None:
        """Removes the files of a model that is no longer loaded, where they are here."""
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
    """A path inside a model's folder, or InvalidInput."""
    pure = PurePosixPath(path)
    outside = pure.is_absolute() or ".." in pure.parts or not pure.parts or len(pure.parts) > _DEEPEST
    if outside or not path.isprintable() or any(len(part.encode()) > 255 for part in pure.parts):
        raise InvalidInput(f"{path[:80]!r} is not a file inside a model's folder; name it like file:1/model.onnx")
    if str(pure) == triton_config.FILE:
        raise InvalidInput(f"{triton_config.FILE} does not come as a file; give it as `config`, in JSON")
    return pure

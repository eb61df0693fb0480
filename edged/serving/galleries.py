"""Keeps a model's gallery, which is a set of named embeddings, in memory and in a file below the state directory.

Faces and their names are personal data. The files have vectors but no pictures. Only the daemon's user can read the
files. Child processes run as the same user, but their confinement keeps them from these files (`daemon/locations.py`).
A damaged file is kept for the operator, but not used.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from urllib.parse import quote, unquote

from msgspec.structs import replace

from edged.errors import InvalidInput, NotFound
from edged.files import not_stored, read_regular
from edged.models.entries import split_name
from edged.serving.work import Answered, EngineRef
from edged.store import atomic, sealed
from edged.tasks import despite_cancelling
from edged.vision.content import Embedding
from edged.vision.gallery import MOST_BYTES, Gallery, space_of

_LOG = logging.getLogger("edged.serving")
_SUFFIX = ".json"
_MODE = 0o600
_MOST_BYTES = 64 << 20  # vectors of all galleries
_LARGEST = MOST_BYTES * 2  # bytes of a file: vectors in base64, and names


class Galleries:
    """The galleries of all models. Threads copy vectors and access the disk."""

    def __init__(self, folder: Path) -> None:
        """Read the galleries in `folder`, which need not exist."""
        self._folder = folder
        self._galleries: dict[str, Gallery] = {}
        self._damaged: dict[str, str] = {}  # why a file cannot be used, by model
        self._changing = asyncio.Lock()
        self._read()

    def of(self, model: str, engine: EngineRef) -> Gallery | None:
        """Return a model's gallery; None if there is no gallery that vectors of `engine` can be compared with."""
        found = self._galleries.get(model)
        is_same = found is not None and found.space == space_of(engine.model, engine.recognition)
        return found if is_same else None

    def all(self) -> dict[str, Gallery]:
        """Return all galleries, sorted by model."""
        return dict(sorted(self._galleries.items()))

    def damaged(self) -> dict[str, str]:
        """Return a mapping from models to the reasons why the files of their galleries cannot be used."""
        return dict(self._damaged)

    async def add(self, model: str, space: str, name: str, embeddings: list[Embedding]) -> Gallery:
        """Add the embeddings of pictures to a name, and return the gallery. Older vectors of another `space` are
        dropped, because new vectors cannot be compared with them. Raises InvalidInput if the gallery is full, and the
        errors of `files.not_stored` if it cannot be written."""
        async with self._changing:
            before = self._galleries.get(model)
            if before is None or before.space != space:
                before = Gallery(space, len(embeddings[0].vector()), (), b"")
            gallery = await asyncio.to_thread(before.with_pictures, name, embeddings)
            others = sum(len(each.vectors) for key, each in self._galleries.items() if key != model)
            if others + len(gallery.vectors) > _MOST_BYTES:
                raise InvalidInput(f"all galleries together would exceed {_MOST_BYTES >> 20} MiB; remove a name first")
            await self._replace(model, gallery)
            return gallery

    async def remove(self, model: str, name: str) -> Gallery | None:
        """Remove a name from a gallery, or the whole gallery if the name is empty. Return the remaining gallery, or
        None. Raises NotFound if the gallery or the name does not exist."""
        async with self._changing:
            gallery = self._galleries.get(model)
            if gallery is None and not (model in self._damaged and not name):
                raise NotFound(f"model {model[:80]!r} has no gallery; see: edged gallery list")
            if name and gallery is not None:
                if name not in gallery.names:
                    raise NotFound(f"the gallery of {model} has no name {name[:80]!r}; see: edged gallery list {model}")
                gallery = await asyncio.to_thread(gallery.without, name)
            left = gallery if name and gallery is not None and gallery.names else None
            await self._replace(model, left)
            return left

    async def forget(self, model: str) -> None:
        """Remove the galleries of all versions of a model, if there are any."""
        for each in {*self._galleries, *self._damaged}:
            if split_name(each)[0] == model:
                await self.remove(each, "")

    async def _replace(self, model: str, gallery: Gallery | None) -> None:
        """Replace the gallery of a model on disk and in memory, or delete it. Disk and memory agree even if the caller
        is cancelled."""
        path = self._path(model)

        async def change() -> None:
            if gallery is None:
                await asyncio.to_thread(path.unlink, missing_ok=True)
                self._galleries.pop(model, None)
            else:
                await asyncio.to_thread(sealed.write, path, gallery, _MODE)
                self._galleries[model] = gallery
            self._damaged.pop(model, None)

        try:
            await despite_cancelling(change())
        except OSError as error:
            raise not_stored(f"the gallery of {model!r}", error) from error

    def _path(self, model: str) -> Path:
        return self._folder / f"{quote(model, safe='')}{_SUFFIX}"

    def _read(self) -> None:
        try:
            atomic.sweep(self._folder)
            paths = sorted(self._folder.glob(f"[!.]*{_SUFFIX}"))
        except OSError as error:
            _LOG.error("galleries in %s cannot be read: %s", self._folder, error.strerror or error)
            return
        for path in paths:
            model = unquote(path.name.removesuffix(_SUFFIX))
            try:
                if path.stat().st_size > _LARGEST:
                    raise sealed.Damaged("the file is too large")
                self._galleries[model] = sealed.unseal(read_regular(path), Gallery)
            except (OSError, sealed.Damaged) as error:
                why = str(getattr(error, "strerror", None) or error)
                _LOG.error("gallery %s cannot be used: %s; restore the file or add the pictures again", path, why)
                self._damaged[model] = why


def embeddings_of(answer: Answered) -> list[Embedding]:
    """Return the embeddings in an answer and in the answers to its regions."""
    inner = [found for each in answer.crops if isinstance(each, Answered) for found in embeddings_of(each)]
    return [answer.content, *inner] if isinstance(answer.content, Embedding) else inner


def named(answer: Answered, gallery: Gallery, least: float) -> Answered:
    """Return an answer in which each embedding has the nearest name of the gallery, and the similarity. The name is
    empty if the similarity is below `least`."""
    crops = tuple(named(each, gallery, least) if isinstance(each, Answered) else each for each in answer.crops)
    content = answer.content
    if isinstance(content, Embedding):
        label, similarity = gallery.nearest(content)
        content = replace(content, label=label if similarity >= least else "", similarity=similarity)
    return replace(answer, content=content, crops=crops)

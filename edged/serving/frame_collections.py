"""Keeps the collections of all models in memory, and their indexes and frames on disk.

Only one task at a time may change a collection. After the start, threads access the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from edged.errors import EdgedError, InvalidInput
from edged.events import CollectionFinished, CollectionStarted, What
from edged.files import not_stored
from edged.formatting import many
from edged.models.collected import Collected, Collection, id_of
from edged.serving.collecting import Clock, Gathering, Pacer, retained
from edged.serving.frame_files import FrameFiles
from edged.tasks import despite_cancelling

_LOG = logging.getLogger("edged.serving")
_REST_SECONDS = 60.0  # pause of a collection if the disk or the budget is full


class FrameCollections:
    """The finished and running collections of all models."""

    def __init__(self, files: FrameFiles, emit: Callable[[What, str], None], clock: Callable[[], Clock]) -> None:
        """Read the collections on disk. `emit` records an event of a model."""
        self.on_change: Callable[[str], None] = lambda model: None  # called if `collected` changes for a model
        self.gatherings: dict[str, Gathering] = {}
        self.running: dict[str, Gathering] = {}  # those that are not finished
        self.damaged: dict[str, str] = {}  # why frames on disk cannot be used
        self._files, self._emit, self._clock = files, emit, clock
        self._read()

    def collected(self, model: str) -> Collected | None:
        """Return the collected frames of a model, or None if no collection has finished. While a further collection
        runs, the result has the id of the previous collection, but no frames."""
        found = self.gatherings.get(model)
        return found.collected if found is not None else None

    def folder(self, model: str) -> Path:
        """Return the folder of a model's frames."""
        return self._files.folder(model)

    def spent_s(self, gathering: Gathering) -> float:
        """Return for how many seconds a collection has run."""
        spent = gathering.collection.spent_s
        return spent if gathering.collection.finished else gathering.pacer.offset(self._clock().mono_s)

    def has_frames(self, model: str) -> bool:
        """Whether a model has frames or a running collection. Frames whose retention has ended do not count."""
        found = self.gatherings.get(model)
        return model in self.damaged or (found is not None and bool(found.kept or not found.collection.finished))

    async def begin(self, model: str, collection: Collection) -> None:
        """Add a new collection for a model without frames. Raises the errors of `files.not_stored` if the collection
        cannot be written."""
        if before := self.gatherings.get(model):
            collection = replace(collection, id=before.collection.id)
        made = self._gathering(model, collection)
        made.collected = Collected.of(self.folder(model), collection)
        await self.save(made, collection)
        self.gatherings[model] = self.running[model] = made
        self._emit(CollectionStarted(collection.wanted, collection.over_s), model)
        _LOG.info("collecting %s for model %s", many(collection.wanted, "frame"), model)

    def rest(self, gathering: Gathering, problem: str) -> None:
        """Pause a collection for a minute. `problem` says why."""
        if gathering.problem != problem:
            _LOG.warning("the collection of frames for model %s pauses: %s; trying again", gathering.model, problem)
        gathering.problem = problem
        gathering.pacer.rest(self._clock().mono_s + _REST_SECONDS)

    async def finish(self, gathering: Gathering) -> None:
        """Finish a collection. A collection without frames keeps the id of the model's previous collection, or is
        removed if the model had no previous collection."""
        model, frames = gathering.model, gathering.collection.frames
        made = id_of(frames) if frames else gathering.collection.id
        if not made:
            with contextlib.suppress(EdgedError):
                await self.remove(model)
        elif await self.try_to_save(gathering, replace(gathering.collection, finished=True, id=made)):
            del self.running[model]
            gathering.problem = ""
            self._set_collected(gathering)
        if model not in self.running:
            self._emit(CollectionFinished(len(frames)), model)
            _LOG.info("collected %s for model %s", many(len(frames), "frame"), model)

    async def retain(self, gathering: Gathering, keep_s: float) -> None:
        """Delete frames that are older than `keep_s` seconds, and correct the dates of the other frames."""
        before = gathering.collection.frames
        kept = retained(before, self._clock(), keep_s)
        if kept == before or not await self.try_to_save(gathering, replace(gathering.collection, frames=kept)):
            return
        names = {frame.name for frame in before} - {frame.name for frame in kept}
        if names:
            self._set_collected(gathering)
            with contextlib.suppress(OSError):  # the next start removes them
                await asyncio.to_thread(self._files.discard, gathering.model, names)
            _LOG.info("deleted %s of model %s: older than frames.keep_days", many(len(names), "frame"), gathering.model)

    async def remove(self, model: str) -> None:
        """Remove all frames of a model. Raises InvalidInput if they cannot be removed."""
        found = self.gatherings.pop(model, None)
        self.running.pop(model, None)
        try:
            await despite_cancelling(asyncio.to_thread(self._files.remove, model))
            self.damaged.pop(model, None)
        except OSError as error:
            self.damaged[model] = f"the frames could not be removed: {error.strerror or error}"
            raise InvalidInput(f"the frames of {model!r} could not be removed: {error.strerror or error}") from error
        finally:
            if found is not None and found.collected is not None:
                self.on_change(model)

    async def save(self, gathering: Gathering, collection: Collection) -> None:
        """Write the index of a collection, with the time that it has run, then keep the collection in memory. Disk and
        memory agree even if the caller is cancelled. Raises the errors of `files.not_stored` if the disk fails."""
        collection = replace(collection, spent_s=self.spent_s(gathering))

        async def change() -> None:
            await asyncio.to_thread(self._files.save, gathering.model, collection)
            gathering.collection, gathering.saved_mono_s = collection, self._clock().mono_s

        try:
            await despite_cancelling(change())
        except OSError as error:
            raise not_stored(f"the frames of {gathering.model!r}", error) from error

    async def try_to_save(self, gathering: Gathering, collection: Collection) -> bool:
        """Like `save`, but return whether it succeeded. An error pauses the collection and becomes its problem."""
        try:
            await self.save(gathering, collection)
        except EdgedError as error:
            self.rest(gathering, str(error))
            return False
        return True

    def _set_collected(self, gathering: Gathering) -> None:
        before = gathering.collected
        gathering.collected = Collected.of(self.folder(gathering.model), gathering.collection)
        if gathering.collected != before:
            self.on_change(gathering.model)

    def _read(self) -> None:
        try:
            found, self.damaged = self._files.open()
        except OSError as error:
            _LOG.error("collected frames in %s cannot be read: %s", self._files.root, error.strerror or error)
            return
        for model, collection in found.items():
            last = max((frame.offset_s for frame in collection.frames), default=0.0)
            made = self._gathering(model, replace(collection, spent_s=max(collection.spent_s, last)))
            made.collected = Collected.of(self.folder(model), collection)
            self.gatherings[model] = made
            if not collection.finished:
                self.running[model] = made

    def _gathering(self, model: str, collection: Collection) -> Gathering:
        now = self._clock().mono_s
        return Gathering(model, collection, Pacer(collection, now), saved_mono_s=now)

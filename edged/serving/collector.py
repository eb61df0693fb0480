"""Collects frames of live cameras for models: takes candidates from streams, and keeps those that look new.

All access to the disk is in threads. If the disk or the budget is full, a collection rests and tries again later;
nothing is half kept. A collection goes on after a restart of the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from edged.config.frames import Frames
from edged.errors import EdgedError, InvalidInput, NotFound, OutOfSpace, Refused
from edged.events import CollectionFinished, CollectionStarted, What
from edged.files import not_stored
from edged.formatting import many
from edged.models.collected import Collected, Collection, Frame, id_of
from edged.models.entries import split_name
from edged.models.samples import MOST_BYTES
from edged.serving.candidates import Candidates, Outcome, Pace, Sift
from edged.serving.collecting import Clock, Gathering, Pacer, is_known, retained
from edged.serving.frame_files import FrameFiles
from edged.serving.taps import Tapped
from edged.tasks import TaskGroup, despite_cancelling, until_set

_LOG = logging.getLogger("edged.serving")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TURN_SECONDS, _IDLE_SECONDS = 1.0, 60.0
_SAVE_SECONDS = 300.0  # between two writes of the time that a collection has run
_RETAIN_SECONDS = 3600.0  # between two looks for old frames
_REST_SECONDS = 60.0  # after a full disk or budget
_MOST_IN_MEMORY = 32 << 20  # bytes of frames that are not written yet; one more frame may be taken


@functools.cache
def _boot() -> str:
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


def read_clock() -> Clock:
    """Read all clocks of the box."""
    return Clock(time.monotonic(), _boot(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


class Collector:
    """The collections of all models. It is a tap of all streams. `run` does the work that waits for the disk."""

    def __init__(
        self,
        files: FrameFiles,
        sift: Sift,
        emit: Callable[[What, str], None] = lambda what, model: None,
        clock: Callable[[], Clock] = read_clock,
        pace: Pace | None = None,
    ) -> None:
        """Read the collections on disk. `sift` examines candidates in a child; `emit` records an event of a model."""
        self.on_change: Callable[[str], None] = lambda model: None  # called if `collected` changes for a model
        self.keep_free_mb = 0  # space on the disk that stays free
        self._files, self._emit, self._clock = files, emit, clock
        self._candidates = Candidates(files, sift, pace or Pace())
        self._settings = Frames()
        self._wake, self._changing = asyncio.Event(), asyncio.Lock()
        self._tasks = TaskGroup(self._wake.set)
        self._taken: list[tuple[Gathering, Tapped, Clock]] = []
        self._examining: asyncio.Task[None] | None = None
        self._retain_at = -1e9
        self._gatherings: dict[str, Gathering] = {}
        self._running: dict[str, Gathering] = {}  # those that are not finished
        self._damaged: dict[str, str] = {}
        self._read()

    # -- frames of streams -------------------------------------------------------------------------------------------

    def wants(self, model: str, camera: str, now: float) -> bool:
        """As `Tap.wants`."""
        found = self._running.get(model)
        if found is None or found.is_ending or not found.pacer.wants(camera, now):
            return False
        if found.pacer.is_over(now, found.kept + found.waiting):  # it finishes once those that wait are examined
            return False
        return sum(len(frame.data) for _, frame, _ in self._taken) < _MOST_IN_MEMORY

    def take(self, frame: Tapped) -> None:
        """As `Tap.take`."""
        found = self._running.get(frame.model)
        if found is not None and not found.is_ending:
            self._taken.append((found, frame, self._clock()))
            found.waiting += 1
            found.waiting_bytes += len(frame.data)
            found.plan()
            self._wake.set()

    # -- what there is -----------------------------------------------------------------------------------------------

    def collected(self, model: str) -> Collected | None:
        """Return the frames that were collected for a model; None if there are none, or not all yet."""
        found = self._gatherings.get(model)
        return found.collected if found is not None else None

    def all(self) -> dict[str, Gathering]:
        """Return all collections, sorted by model."""
        return dict(sorted(self._gatherings.items()))

    def damaged(self) -> dict[str, str]:
        """Return why frames on disk cannot be used, by model."""
        return dict(self._damaged)

    def folder(self, model: str) -> Path:
        """Return the folder of a model's frames."""
        return self._files.folder(model)

    def spent_s(self, gathering: Gathering) -> float:
        """Return for how long a collection has run."""
        spent = gathering.collection.spent_s
        return spent if gathering.collection.finished else gathering.pacer.offset(self._clock().mono_s)

    # -- commands ----------------------------------------------------------------------------------------------------

    def reconfigure(self, settings: Frames) -> None:
        """Apply the limits and the collections of the configuration."""
        self._settings, self._retain_at = settings, -1e9
        self._wake.set()

    async def start(self, model: str, cameras: Iterable[str], frames: int, over_s: float) -> None:
        """Begin a collection. Raises Refused if the model has frames, and the errors of `not_stored`."""
        async with self._changing:
            found = self._gatherings.get(model)
            if found is not None or model in self._damaged:
                is_running = found is not None and not found.collection.finished
                what = "frames are already being collected" if is_running else "there are already frames"
                raise Refused(f"{what} for model {model!r}; remove them first: edged samples remove {model}")
            await self._begin(model, Collection(tuple(sorted(set(cameras))), frames, over_s, self._clock().unix_s))

    def stop(self, model: str) -> None:
        """End a collection early: it finishes once its candidates are examined. Raises NotFound."""
        found = self._running.get(model)
        if found is None:
            raise NotFound(f"no frames are being collected for model {model[:80]!r}; see: edged samples list")
        found.is_ending = True
        self._wake.set()

    async def remove(self, model: str) -> None:
        """Remove all frames of a model. Raises NotFound, and InvalidInput if the files cannot be removed."""
        async with self._changing:
            if model not in self._gatherings and model not in self._damaged:
                raise NotFound(f"there are no frames for model {model[:80]!r}; see: edged samples list")
            await self._remove(model)
        self._wake.set()  # the configuration may ask for new ones

    async def forget(self, model: str) -> None:
        """Remove the frames of all versions of a model, if it has any."""
        async with self._changing:
            for each in {*self._gatherings, *self._damaged}:
                if split_name(each)[0] == model:
                    await self._remove(each)

    # -- work ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write, examine and keep candidates, and delete old frames, until cancelled."""
        try:
            while True:
                self._wake.clear()
                async with self._changing:
                    await self._take_turn()
                await until_set(self._wake, _TURN_SECONDS if self._running else _IDLE_SECONDS)
        finally:
            await self._tasks.stop()
            for each in self._running.values():
                with contextlib.suppress(EdgedError):
                    await self._save(each, each.collection)

    async def _take_turn(self) -> None:
        now = self._clock()
        await self._apply_settings()
        while self._taken:
            await self._write(*self._taken.pop(0))
        for each in tuple(self._running.values()):
            if not each.waiting and (each.is_ending or each.pacer.is_over(now.mono_s, each.kept)):
                await self._finish(each)
            elif now.mono_s - each.saved_mono_s >= _SAVE_SECONDS:
                await self._try_to_save(each, each.collection)
        if now.mono_s >= self._retain_at:
            self._retain_at = now.mono_s + _RETAIN_SECONDS
            for each in tuple(self._gatherings.values()):
                await self._retain(each, now)
        is_free = self._examining is None or self._examining.done()
        if is_free and self._candidates.is_due(now.mono_s):
            work = self._candidates.examine(self._keep, lambda: self._clock().mono_s)
            self._examining = self._tasks.start(work)

    async def _apply_settings(self) -> None:
        """Begin the collections of the configuration, change them, and end those that it no longer has."""
        wanted = self._settings.collect
        for model, spec in wanted.items():
            found, over_s = self._gatherings.get(model), spec.over_hours * 3600
            cameras = tuple(sorted(set(spec.cameras)))
            if found is None and model not in self._damaged:
                began = Collection(cameras, spec.frames, over_s, self._clock().unix_s, configured=True)
                with contextlib.suppress(EdgedError):  # the next turn tries again
                    await self._begin(model, began)
            elif found is not None and found.collection.configured and model in self._running:
                changed = replace(found.collection, cameras=cameras, wanted=spec.frames, over_s=over_s)
                if changed != found.collection and await self._try_to_save(found, changed):
                    found.pacer = Pacer(found.collection, self._clock().mono_s)
        for each in self._running.values():
            each.is_ending = each.is_ending or (each.collection.configured and each.model not in wanted)

    async def _begin(self, model: str, collection: Collection) -> None:
        made = self._gathering(model, collection)
        await self._save(made, collection)
        self._gatherings[model] = self._running[model] = made
        self._emit(CollectionStarted(collection.wanted, collection.over_s), model)
        _LOG.info("collecting %s for model %s", many(collection.wanted, "frame"), model)

    def _gathering(self, model: str, collection: Collection) -> Gathering:
        now = self._clock().mono_s
        return Gathering(model, collection, Pacer(collection, now), saved_mono_s=now)

    async def _write(self, gathering: Gathering, frame: Tapped, at: Clock) -> None:
        """Write a candidate for examination, if there is space for it."""
        picture = frame.pixel_format, frame.width, frame.height, frame.stride
        offset, keep_free = gathering.pacer.offset(frame.work.received), self.keep_free_mb << 20
        try:
            if self._running.get(gathering.model) is gathering:
                self._require_budget(gathering)
                await self._candidates.add(gathering, frame.camera, offset, at, frame.data, picture, keep_free)
                return
        except EdgedError as error:
            self._rest(gathering, str(error))
        gathering.waiting -= 1
        gathering.waiting_bytes -= len(frame.data)

    def _require_budget(self, gathering: Gathering) -> None:
        """Raise OutOfSpace if the frames, with those that wait, need more space than the configuration allows."""
        model, settings = gathering.model, self._settings
        if gathering.bytes > settings.model_mb << 20:
            raise OutOfSpace(f"the frames of {model} need more than frames.model_mb, {settings.model_mb} MiB; raise it")
        if sum(each.bytes for each in self._gatherings.values()) > settings.limit_mb << 20:
            raise OutOfSpace(
                f"the frames of all models need more than frames.limit_mb, {settings.limit_mb} MiB; raise it"
            )

    def _rest(self, gathering: Gathering, problem: str) -> None:
        """Keep nothing for a while."""
        if gathering.problem != problem:
            _LOG.warning("collecting frames for model %s: %s; trying again", gathering.model, problem)
        gathering.problem = problem
        gathering.pacer.rest(self._clock().mono_s + _REST_SECONDS)

    async def _keep(self, outcomes: list[Outcome]) -> None:
        async with self._changing:
            for owner in {each.candidate.of for each in outcomes}:
                mine = [each for each in outcomes if each.candidate.of is owner]
                try:
                    if self._running.get(owner.model) is owner:
                        await self._add(owner, mine)
                finally:
                    owner.waiting -= len(mine)
                    owner.waiting_bytes -= sum(each.candidate.size for each in mine)
                    owner.plan()

    async def _add(self, owner: Gathering, outcomes: list[Outcome]) -> None:
        """Add candidates to the frames of a model: those that can be used and look new."""
        frames, duplicates, unusable = list(owner.collection.frames), 0, 0
        problem = next((each.disk_problem for each in outcomes if each.disk_problem), "")
        try:
            for each in outcomes:
                camera = each.candidate.camera
                if each.disk_problem:
                    continue
                if each.problem:
                    unusable += 1
                    _LOG.info("a frame of camera %s is not collected: %s", camera, each.problem)
                elif is_known(each.likeness, camera, frames):
                    duplicates += 1
                elif len(frames) < owner.collection.wanted:
                    frames.append(await asyncio.to_thread(self._adopt, owner.model, each))
            before = owner.collection
            counts = {"duplicates": before.duplicates + duplicates, "unusable": before.unusable + unusable}
            await self._save(owner, replace(before, frames=tuple(frames), **counts))
            owner.problem = "" if len(frames) > len(before.frames) else owner.problem
        except (OSError, EdgedError) as error:
            problem = str(not_stored("frames", error) if isinstance(error, OSError) else error)
            names = [frame.name for frame in frames[owner.kept :]]
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._files.discard, owner.model, names)
        if problem:
            self._rest(owner, problem)

    def _adopt(self, model: str, outcome: Outcome) -> Frame:
        found, offset = outcome.candidate, round(outcome.candidate.offset_s, 3)
        name, digest, size = self._files.adopt(model, outcome.file, f"{offset:010.1f}", outcome.suffix, MOST_BYTES)
        at = found.at
        return Frame(name, found.camera, offset, at.unix_s, at.boot, at.uptime_s, outcome.likeness, digest, size)

    async def _finish(self, gathering: Gathering) -> None:
        """Finish a collection; remove it if it has no frames."""
        model, frames = gathering.model, gathering.collection.frames
        if not frames:
            with contextlib.suppress(EdgedError):
                await self._remove(model)
        elif await self._try_to_save(gathering, replace(gathering.collection, finished=True, id=id_of(frames))):
            del self._running[model]
            gathering.problem = ""
            self._set_collected(gathering)
        if model not in self._running:
            self._emit(CollectionFinished(len(frames)), model)
            _LOG.info("collected %s for model %s", many(len(frames), "frame"), model)

    async def _retain(self, gathering: Gathering, now: Clock) -> None:
        """Delete frames that are too old, and date the others."""
        before = gathering.collection.frames
        kept = retained(before, now, self._settings.keep_days * 86400)
        if kept == before or not await self._try_to_save(gathering, replace(gathering.collection, frames=kept)):
            return
        names = {frame.name for frame in before} - {frame.name for frame in kept}
        if names:
            self._set_collected(gathering)
            with contextlib.suppress(OSError):  # the next start removes them
                await asyncio.to_thread(self._files.discard, gathering.model, names)
            _LOG.info("deleted %s of model %s: older than frames.keep_days", many(len(names), "frame"), gathering.model)

    async def _remove(self, model: str) -> None:
        found = self._gatherings.pop(model, None)
        self._running.pop(model, None)
        try:
            await despite_cancelling(asyncio.to_thread(self._files.remove, model))
            self._damaged.pop(model, None)
        except OSError as error:
            self._damaged[model] = f"they could not be removed: {error.strerror or error}"
            raise InvalidInput(f"the frames of {model!r} could not be removed: {error.strerror or error}") from error
        finally:
            if found is not None and found.collected is not None:
                self.on_change(model)

    async def _save(self, gathering: Gathering, collection: Collection) -> None:
        """Write the index of a collection, with the time that it has run, then use it. Disk and memory agree even if
        the caller is cancelled. Raises the errors of `not_stored`."""
        collection = replace(collection, spent_s=self.spent_s(gathering))

        async def change() -> None:
            await asyncio.to_thread(self._files.save, gathering.model, collection)
            gathering.collection, gathering.saved_mono_s = collection, self._clock().mono_s

        try:
            await despite_cancelling(change())
        except OSError as error:
            raise not_stored(f"the frames of {gathering.model!r}", error) from error

    async def _try_to_save(self, gathering: Gathering, collection: Collection) -> bool:
        """Like `_save`; return whether it succeeded. An error becomes the problem of the collection."""
        try:
            await self._save(gathering, collection)
        except EdgedError as error:
            self._rest(gathering, str(error))
            return False
        return True

    def _set_collected(self, gathering: Gathering) -> None:
        before = gathering.collected
        gathering.collected = Collected.of(self.folder(gathering.model), gathering.collection)
        if gathering.collected != before:
            self.on_change(gathering.model)

    def _read(self) -> None:
        try:
            found, self._damaged = self._files.open()
        except OSError as error:
            _LOG.error("collected frames cannot be read: %s: %s", self._files.root, error.strerror or error)
            return
        for model, collection in found.items():
            last = max((frame.offset_s for frame in collection.frames), default=0.0)
            made = self._gathering(model, replace(collection, spent_s=max(collection.spent_s, last)))
            made.collected = Collected.of(self.folder(model), collection)
            self._gatherings[model] = made
            if not collection.finished:
                self._running[model] = made

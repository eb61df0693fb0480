"""Collects frames of live cameras for models: copies candidates from streams, and keeps candidates that look new.

Threads access the disk. If the disk or the budget is full, a collection pauses and tries again later. Frames are never
stored incompletely. A collection continues after a restart of the daemon.
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

from edged.config.tables import Frames
from edged.errors import EdgedError, NotFound, OutOfSpace, Refused
from edged.events import What
from edged.files import not_stored
from edged.models.collected import Collection, Frame
from edged.models.entries import split_name
from edged.models.samples import MOST_BYTES
from edged.serving.candidates import Candidates, Outcome, Pace, Sift
from edged.serving.collecting import Clock, Gathering, Pacer, is_known
from edged.serving.frame_collections import FrameCollections
from edged.serving.frame_files import FrameFiles
from edged.serving.taps import Tapped
from edged.tasks import TaskGroup, until_set

_LOG = logging.getLogger("edged.serving")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TURN_SECONDS, _IDLE_SECONDS = 1.0, 60.0
_SAVE_SECONDS = 300.0  # between two writes of the time that a collection has run
_RETAIN_SECONDS = 3600.0  # between two looks for old frames
_MOST_IN_MEMORY = 32 << 20  # bytes of frames that are not written yet; one more frame may be taken


@functools.cache
def _boot() -> str:
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


def read_clock() -> Clock:
    """Read all clocks of the box."""
    return Clock(time.monotonic(), _boot(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


class Collector:
    """The collections of all models. A collector is a `Tap` of all streams. `run` does the work on the disk."""

    def __init__(
        self,
        files: FrameFiles,
        sift: Sift,
        emit: Callable[[What, str], None] = lambda what, model: None,
        clock: Callable[[], Clock] = read_clock,
        pace: Pace | None = None,
    ) -> None:
        """Read the collections on disk. `sift` examines candidates in a child process. `emit` records an event of a
        model."""
        self.keep_free_mb = 0  # space on the disk that stays free
        self._files, self._clock = files, clock
        self.kept = FrameCollections(files, emit, clock)
        self._candidates = Candidates(files, sift, pace or Pace())
        self._settings = Frames()
        self._wake, self._changing = asyncio.Event(), asyncio.Lock()
        self._tasks = TaskGroup(self._wake.set)
        self._taken: list[tuple[Gathering, Tapped, Clock]] = []
        self._examining: asyncio.Task[None] | None = None
        self._retain_at = -1e9
        self._not_begun: dict[str, str] = {}  # by model: why a collection of the configuration could not begin

    # -- frames of streams -------------------------------------------------------------------------------------------

    def wants(self, model: str, camera: str, now: float) -> bool:
        """See `Tap.wants`."""
        found = self.kept.running.get(model)
        if found is None or found.is_ending or not found.pacer.wants(camera, now):
            return False
        if found.pacer.is_over(now, found.kept + found.waiting):  # the waiting candidates may complete it
            return False
        return sum(len(frame.data) for _, frame, _ in self._taken) < _MOST_IN_MEMORY

    def take(self, frame: Tapped) -> None:
        """See `Tap.take`."""
        found = self.kept.running.get(frame.model)
        if found is not None and not found.is_ending:
            self._taken.append((found, frame, self._clock()))
            found.waiting += 1
            found.waiting_bytes += len(frame.data)
            found.plan()
            self._wake.set()

    # -- commands ----------------------------------------------------------------------------------------------------

    def reconfigure(self, settings: Frames) -> None:
        """Apply the limits and the collections of the configuration."""
        self._settings, self._retain_at = settings, -1e9
        self._wake.set()

    async def start(self, model: str, cameras: Iterable[str], frames: int, over_s: float) -> None:
        """Begin to collect `frames` frames in `over_s` seconds. Raises Refused if the model has frames, and the errors
        of `files.not_stored` if the collection cannot be written."""
        async with self._changing:
            if self.kept.has_frames(model):
                is_running = model in self.kept.running
                what = "frames are already being collected" if is_running else "frames are already kept"
                raise Refused(f"{what} for model {model!r}; remove them first: edged samples remove {model}")
            await self.kept.begin(model, Collection(tuple(sorted(set(cameras))), frames, over_s, self._clock().unix_s))

    def stop(self, model: str) -> None:
        """End a model's collection once its candidates are examined. Raises NotFound if no collection runs."""
        found = self.kept.running.get(model)
        if found is None:
            raise NotFound(f"no frames are being collected for model {model[:80]!r}; see: edged samples list")
        found.is_ending = True
        self._wake.set()

    async def remove(self, model: str) -> None:
        """Remove all frames of a model. Raises NotFound if it has none, InvalidInput if the files cannot be removed."""
        async with self._changing:
            if model not in self.kept.gatherings and model not in self.kept.damaged:
                raise NotFound(f"model {model[:80]!r} has no collected frames; see: edged samples list")
            await self.kept.remove(model)
        self._wake.set()  # the configuration may ask for new ones

    async def forget(self, model: str) -> None:
        """Remove the frames of all versions of a model, if there are any."""
        async with self._changing:
            for each in {*self.kept.gatherings, *self.kept.damaged}:
                if split_name(each)[0] == model:
                    await self.kept.remove(each)

    # -- work ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write, examine and keep candidates, and delete old frames, until cancelled."""
        try:
            while True:
                self._wake.clear()
                async with self._changing:
                    await self._take_turn()
                await until_set(self._wake, _TURN_SECONDS if self.kept.running else _IDLE_SECONDS)
        finally:
            await self._tasks.stop()
            for each in self.kept.running.values():
                with contextlib.suppress(EdgedError):
                    await self.kept.save(each, each.collection)

    async def _take_turn(self) -> None:
        now = self._clock()
        await self._apply_settings()
        while self._taken:
            await self._write(*self._taken.pop(0))
        for each in tuple(self.kept.running.values()):
            if not each.waiting and (each.is_ending or each.pacer.is_over(now.mono_s, each.kept)):
                await self.kept.finish(each)
            elif now.mono_s - each.saved_mono_s >= _SAVE_SECONDS:
                await self.kept.try_to_save(each, each.collection)
        if now.mono_s >= self._retain_at:
            self._retain_at = now.mono_s + _RETAIN_SECONDS
            for each in tuple(self.kept.gatherings.values()):
                await self.kept.retain(each, self._settings.keep_days * 86400)
        is_free = self._examining is None or self._examining.done()
        if is_free and self._candidates.is_due(now.mono_s):
            work = self._candidates.examine(self._keep, lambda: self._clock().mono_s)
            self._examining = self._tasks.start(work)

    async def _apply_settings(self) -> None:
        """Begin new collections of the configuration, apply changes to running ones, and end removed ones."""
        wanted = self._settings.collect
        for model, spec in wanted.items():
            found, over_s = self.kept.gatherings.get(model), spec.over_hours * 3600
            cameras = tuple(sorted(set(spec.cameras)))
            if not self.kept.has_frames(model):
                began = Collection(cameras, spec.frames, over_s, self._clock().unix_s, configured=True)
                try:
                    await self.kept.begin(model, began)
                    self._not_begun.pop(model, None)
                except EdgedError as error:  # the next turn tries again
                    if self._not_begun.get(model) != str(error):
                        _LOG.warning("frames of model %s cannot be collected: %s; trying again", model, error)
                    self._not_begun[model] = str(error)
            elif found is not None and found.collection.configured and model in self.kept.running:
                changed = replace(found.collection, cameras=cameras, wanted=spec.frames, over_s=over_s)
                if changed != found.collection and await self.kept.try_to_save(found, changed):
                    found.pacer = Pacer(found.collection, self._clock().mono_s)
        for each in self.kept.running.values():
            each.is_ending = each.is_ending or (each.collection.configured and each.model not in wanted)

    async def _write(self, gathering: Gathering, frame: Tapped, at: Clock) -> None:
        """Write a candidate for examination, if there is space for it."""
        picture = frame.pixel_format, frame.width, frame.height, frame.stride
        offset, keep_free = gathering.pacer.offset(frame.work.received), self.keep_free_mb << 20
        try:
            if self.kept.running.get(gathering.model) is gathering:
                self._require_budget(gathering)
                await self._candidates.add(gathering, frame.camera, offset, at, frame.data, picture, keep_free)
                return
        except EdgedError as error:
            self.kept.rest(gathering, str(error))
        gathering.waiting -= 1
        gathering.waiting_bytes -= len(frame.data)

    def _require_budget(self, gathering: Gathering) -> None:
        """Raise OutOfSpace if the kept frames and the candidates need more space than the configuration allows."""
        model, settings = gathering.model, self._settings
        if gathering.bytes > settings.model_mb << 20:
            raise OutOfSpace(
                f"the frames of {model} exceed the {settings.model_mb} MiB of frames.model_mb; raise this limit"
            )
        if sum(each.bytes for each in self.kept.gatherings.values()) > settings.limit_mb << 20:
            raise OutOfSpace(
                f"the frames of all models exceed the {settings.limit_mb} MiB of frames.limit_mb; raise this limit"
            )

    async def _keep(self, outcomes: list[Outcome]) -> None:
        async with self._changing:
            for owner in {each.candidate.of for each in outcomes}:
                mine = [each for each in outcomes if each.candidate.of is owner]
                try:
                    if self.kept.running.get(owner.model) is owner:
                        await self._add(owner, mine)
                finally:
                    owner.waiting -= len(mine)
                    owner.waiting_bytes -= sum(each.candidate.size for each in mine)
                    owner.plan()

    async def _add(self, owner: Gathering, outcomes: list[Outcome]) -> None:
        """Add the usable candidates that look new to the frames of the model."""
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
            await self.kept.save(owner, replace(before, frames=tuple(frames), **counts))
            owner.problem = "" if len(frames) > len(before.frames) else owner.problem
        except (OSError, EdgedError) as error:
            problem = str(not_stored("frames", error) if isinstance(error, OSError) else error)
            names = [frame.name for frame in frames[owner.kept :]]
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._files.discard, owner.model, names)
        if problem:
            self.kept.rest(owner, problem)

    def _adopt(self, model: str, outcome: Outcome) -> Frame:
        found, offset = outcome.candidate, round(outcome.candidate.offset_s, 3)
        name, digest, size = self._files.adopt(model, outcome.file, f"{offset:010.1f}", outcome.suffix, MOST_BYTES)
        at = found.at
        return Frame(name, found.camera, offset, at.unix_s, at.boot, at.uptime_s, outcome.likeness, digest, size)

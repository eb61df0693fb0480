"""Stores candidates for collected frames, and examines them in child processes. A candidate is the copy of a frame.

Candidates are written to a separate folder and examined in batches, so that few child processes start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from edged.errors import EdgedError, OutOfSpace, Overloaded
from edged.files import not_stored
from edged.ipc import job_messages as jobs
from edged.serving.collecting import Clock, Gathering
from edged.serving.frame_files import FrameFiles

_LOG = logging.getLogger("edged.serving")
_MOST, _MOST_BYTES = 64, 256 << 20  # candidates, and their bytes, in a full batch
_SHORT = 0.1  # candidates wait at most this share of the time of their collection
_SUFFIXES = (".jpg", ".png", ".webp", ".bmp", ".gif")

# Examines candidates in a child.
Sift: TypeAlias = "Callable[[jobs.Sift], Awaitable[jobs.Sifted]]"


@dataclass(frozen=True)
class Pace:
    """When a child process examines candidates. Candidates wait at most `wait_s` seconds. A child starts earlier if
    many candidates wait, or if they may complete a collection. Even then, `between_s` seconds pass between the end of a
    child and the next start. Both times are shorter for a collection of a few minutes."""

    wait_s: float = 30.0
    between_s: float = 10.0


class Candidate(NamedTuple):
    """A frame that may be kept. `file` has the bytes of the frame, which are raw if `message` has a pixel format."""

    of: Gathering
    camera: str
    offset_s: float
    at: Clock
    size: int
    file: Path
    message: jobs.Candidate


class Outcome(NamedTuple):
    """The outcome of examining a candidate. `file` is the file to keep, `likeness` the hash of its picture
    (`vision.likeness`), and `suffix` the file suffix of its format. `problem` says why the frame cannot be used,
    `disk_problem` why it could not be examined."""

    candidate: Candidate
    file: Path
    likeness: int = 0
    suffix: str = ""
    problem: str = ""
    disk_problem: str = ""


@dataclass
class _Batch:
    folder: Path
    began_mono_s: float
    candidates: list[Candidate] = field(default_factory=list)


class Candidates:
    """Keeps candidates until they are examined, and examines them. Methods raise EdgedError if the disk is full or
    fails.

    One task may add candidates while another task examines a batch.
    """

    def __init__(self, files: FrameFiles, sift: Sift, pace: Pace) -> None:
        self._files, self._sift, self._pace = files, sift, pace
        self._batch: _Batch | None = None
        self._examined_mono_s = -1e9

    async def add(
        self,
        of: Gathering,
        camera: str,
        offset_s: float,
        at: Clock,
        data: bytes,
        picture: tuple[str, int, int, int],
        keep_free: int,
    ) -> None:
        """Write a candidate to disk. `picture` has the pixel format, width, height and stride of the frame. `keep_free`
        bytes of the disk stay free."""
        try:
            if self._batch is None:
                self._batch = _Batch(await asyncio.to_thread(self._files.new_batch), at.mono_s)
            batch, name = self._batch, str(len(self._batch.candidates))
            await asyncio.to_thread(self._files.add_candidate, batch.folder, name, data, keep_free)
        except OSError as error:
            raise not_stored("frames", error) from error
        message = jobs.Candidate(name, *picture)
        batch.candidates.append(Candidate(of, camera, offset_s, at, len(data), batch.folder / name, message))

    def is_due(self, now: float) -> bool:
        """Whether candidates should be examined at `now`, in monotonic seconds."""
        batch = self._batch
        if batch is None or not batch.candidates:
            return False
        owners = {each.of for each in batch.candidates}
        short = min(each.collection.over_s for each in owners) * _SHORT
        if now - batch.began_mono_s >= min(self._pace.wait_s, short) or any(each.is_ending for each in owners):
            return True
        if now - self._examined_mono_s < min(self._pace.between_s, short):
            return False
        is_full = len(batch.candidates) >= _MOST or sum(each.size for each in batch.candidates) >= _MOST_BYTES
        return is_full or any(each.pacer.is_over(now, each.kept + each.waiting) for each in owners)

    async def examine(self, use: Callable[[list[Outcome]], Awaitable[None]], now: Callable[[], float]) -> None:
        """Examine all waiting candidates and call `use` with the outcomes. Then remove the files of the candidates."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        try:
            try:
                outcomes = await self._outcomes(batch.folder, batch.candidates)
            except Exception:  # a bug: the collection goes on without these candidates
                _LOG.exception(
                    "%d frames were not added to their collections, because examining them failed; the collections"
                    " continue",
                    len(batch.candidates),
                )
                outcomes = [Outcome(each, each.file, problem="it could not be examined") for each in batch.candidates]
            await use(outcomes)
        finally:
            self._examined_mono_s = now()
            await asyncio.to_thread(self._files.discard_batch, batch.folder)

    async def _outcomes(self, folder: Path, candidates: list[Candidate]) -> list[Outcome]:
        """Examine candidates in a child process and return the outcomes. If the child fails, examine each half in a
        separate child, until the candidate that causes the failure is alone."""
        try:
            found = await self._sift(jobs.Sift(str(folder), tuple(each.message for each in candidates)))
            return [_outcome(one, each) for one, each in zip(candidates, found.frames, strict=True)]
        except (OutOfSpace, Overloaded) as error:  # not the fault of a frame
            return [Outcome(each, each.file, disk_problem=str(error)) for each in candidates]
        except (EdgedError, ValueError) as error:
            if len(candidates) == 1:
                return [Outcome(candidates[0], candidates[0].file, problem=str(error))]
        half = len(candidates) // 2
        return [
            *(await self._outcomes(folder, candidates[:half])),
            *(await self._outcomes(folder, candidates[half:])),
        ]


def _outcome(candidate: Candidate, found: jobs.SiftedFrame) -> Outcome:
    is_raw = bool(candidate.message.pixel_format)
    file = candidate.file.with_suffix(".jpg") if is_raw else candidate.file
    problem = found.problem or ("" if found.suffix in _SUFFIXES else "its format is unknown")
    return Outcome(candidate, file, found.likeness, found.suffix, problem)

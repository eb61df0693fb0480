"""Keeps pictures and videos of events in a folder with limits of age and size."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np

from edged.client.frames import Picture
from edged.client.sinks.mp4 import Mp4
from edged.client.sinks.sink import Answered
from edged.config.cameras import Events
from edged.errors import EdgedError
from edged.store import atomic
from edged.vision.draw import encode_jpeg

_MINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:-\d{1,3})?_[A-Za-z0-9._-]{1,64}\.(?:jpg|mp4)(?:\.part)?")
_MOST_BYTES = 128 << 20  # bytes of pictures kept for the seconds before an event; also the limit of the queue
_LONGEST_S = 600.0  # the longest clip
_WAITING = 256  # pictures and events in the queue
_MOST_WAITING_BYTES = 64 << 20  # bytes of pictures in the queue above which further pictures are compressed first
_PRUNE_S = 3600.0  # seconds between removals of old files; they are also removed before each event
_CLOSE_S = 3.0
_LOOK_S = 0.5  # seconds between checks for the end of a clip while no pictures or events arrive

_TOO_SLOW = "the box is too slow to write all pictures of events; some are left out"

_log = logging.getLogger("edged.capture")


class EventFolder:
    """The files of one camera's events. Only files whose names have the form `_MINE` are ever removed."""

    def __init__(self, folder: Path, keep_days: float, keep_mb: int) -> None:
        self.folder = folder
        self._keep_s, self._keep_bytes = keep_days * 86400, keep_mb << 20

    def path(self, place: str, suffix: str, unix_s: float) -> Path:
        """Return an unused path for a file of an event. Raises OSError if the folder cannot be created."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        stem = f"{datetime.fromtimestamp(unix_s).astimezone():%Y-%m-%dT%H-%M-%S}"
        for number in range(1000):
            path = self.folder / f"{stem}{f'-{number}' if number else ''}_{place}{suffix}"
            if not path.exists() and not Path(f"{path}.part").exists():
                return path
        raise FileExistsError(
            17,
            "an event gets no file, because the folder already has 1000 files for the second in which the event began",
            str(self.folder),
        )

    def prune(self, unix_s: float) -> None:
        """Remove files that are too old. Then remove the oldest files until the total size is within the limit."""
        files: list[tuple[float, int, Path]] = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                if _MINE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    files.append((status.st_mtime, status.st_size, Path(entry.path)))
        total = sum(size for _, size, _ in files)
        for modified, size, path in sorted(files):
            if unix_s - modified <= self._keep_s and total <= self._keep_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


class _Clip:
    """A video that is being written; its name is `NAME.part` until it is complete."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises EdgedError or OSError if the video cannot be written."""
        self.path, self._part = path, Path(f"{path}.part")
        self._video = Mp4(self._part, lossless=True)

    def add(self, answered: Answered) -> None:
        self._video.on_answer(answered)

    def close(self) -> None:
        try:
            self._video.close()
        finally:
            with contextlib.suppress(OSError):
                if self._part.stat().st_size:
                    self._part.replace(self.path)
                else:
                    self._part.unlink()


class EventRecorder:
    """Writes a snapshot, a clip, or both for each event, in its own thread.

    A clip begins some seconds before its event and ends some seconds after it. `problem` says why the last file could
    not be written, or why pictures are left out now; it is empty without a problem. `dropped` counts pictures and
    events that were dropped because the thread was too slow.
    """

    def __init__(self, events: Events, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns the time in seconds; the arguments `now` of the methods are times of this clock."""
        self.problem, self.dropped = "", 0
        self._clock = clock
        self._events = events
        self._folder = EventFolder(folder, events.keep_days, events.keep_mb)
        self._recent: deque[tuple[float, Answered]] = deque()
        self._bytes = 0
        self._clip: _Clip | None = None
        self._video: Path | None = None  # path of the current clip; `begin` sets it before the thread creates the clip
        self._clip_began, self._until = 0.0, -math.inf
        self._active: set[str] = set()
        self._queued_bytes = self._taken_bytes = 0  # sizes of all pictures that were queued and taken
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="edged-events", daemon=True)
        self._thread.start()

    def on_answer(self, answered: Answered, now: float) -> None:
        """Add an answered picture, for clips. `now` is monotonic."""
        if not self._events.clips or answered.image is None:
            return
        if self._queued_bytes - self._taken_bytes > _MOST_WAITING_BYTES:
            answered = Answered(answered.result, _compressed(answered.image))  # the thread is busy, so do it here
        self._put(lambda: self._take(answered, now), answered.size)

    def begin(self, place: str, answered: Answered | None, now: float, unix_s: float) -> str:
        """Begin an event; return the path of its snapshot, or of its clip if no snapshot is made. Return an empty
        string if no file is wanted or possible. An event that begins during the clip of an earlier event is recorded in
        that clip."""
        try:
            picture = self._folder.path(place, ".jpg", unix_s) if self._events.snapshots and answered else None
            video = current = self._video
            if current is None and self._events.clips:
                video = self._folder.path(place, ".mp4", unix_s)
        except OSError as error:
            self._fail(error)
            return ""
        self._video = video
        if not self._put(lambda: self._begin(place, picture, video, answered, now, unix_s)):
            self._video = current
            return ""
        return str(picture or video or "")

    def end(self, place: str, now: float) -> None:
        """End an event; its clip continues for some seconds."""
        self._put(lambda: self._end(place, now))

    def close(self) -> None:
        """Complete the current clip; wait a few seconds at most."""
        with contextlib.suppress(queue.Full):
            self._work.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)

    def _put(self, work: Callable[[], None], size: int = 0) -> bool:
        """Queue work for the thread, with a picture of `size` bytes; return False if the queue is full."""
        try:
            if self._queued_bytes - self._taken_bytes + size > _MOST_BYTES:
                raise queue.Full
            self._work.put_nowait(work)
        except queue.Full:
            self.dropped += 1
            self._fail(_TOO_SLOW)
            return False
        if size:  # only the streaming thread queues pictures, so no addition is lost
            self._queued_bytes += size
        return True

    def _run(self) -> None:
        due = -math.inf
        while True:
            if (now := self._clock()) >= due:
                due = now + _PRUNE_S
                self._folder.prune(time.time())
            try:
                work = self._work.get(timeout=due - now if self._clip is None else _LOOK_S)
            except queue.Empty:  # the camera sends no pictures now
                if self._clip is not None:
                    self._attempt(lambda: self._complete_if_over(self._clock()))
                continue
            if work is None:
                break
            self._attempt(work)
        self._attempt(self._complete)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, EdgedError) as error:
            with contextlib.suppress(OSError, EdgedError):  # only the first error matters
                self._complete()
            self._fail(error)

    def _begin(
        self, place: str, picture: Path | None, video: Path | None, answered: Answered | None, now: float, unix_s: float
    ) -> None:
        self._active.add(place)
        self._folder.prune(unix_s)
        failure: Exception | None = None
        try:
            if picture is not None and answered is not None and answered.jpeg is not None:
                atomic.write_file(picture, answered.jpeg)
        except (OSError, EdgedError) as error:  # the clip may still be possible
            failure = error
        if video is not None and self._clip is None:
            if video.exists():  # the clip of the earlier event was completed meanwhile
                video = self._video = self._folder.path(place, ".mp4", unix_s)
            self._clip, self._clip_began = _Clip(video), now
            for _, earlier in self._recent:
                self._clip.add(earlier)
        if failure is not None:
            self._fail(failure)
        else:
            self.problem = ""

    def _end(self, place: str, now: float) -> None:
        self._active.discard(place)
        self._until = now + self._events.after_seconds

    def _take(self, answered: Answered, now: float) -> None:
        self._taken_bytes += answered.size
        if self.problem == _TOO_SLOW and self._work.empty():
            self.problem = ""
        kept = Answered(answered.result, _compressed(answered.image))
        self._recent.append((now, kept))
        self._bytes += kept.size
        while now - self._recent[0][0] > self._events.before_seconds or self._bytes > _MOST_BYTES:
            self._bytes -= self._recent.popleft()[1].size
            if not self._recent:
                break
        if self._clip is not None:
            self._clip.add(kept)
            self._complete_if_over(now)

    def _complete_if_over(self, now: float) -> None:
        if now - self._clip_began > _LONGEST_S or (not self._active and now > self._until):
            self._complete()

    def _complete(self) -> None:
        clip, self._clip = self._clip, None
        try:
            if clip is not None:
                clip.close()
        finally:
            self._video = None

    def _fail(self, error: Exception | str) -> None:
        problem = str(getattr(error, "strerror", None) or error)
        if problem != self.problem:
            _log.warning("files of events in %s are missing or incomplete: %s", self._folder.folder, problem)
        self.problem = problem


def _compressed(picture: Picture | None) -> Picture | None:
    """Encode an uncompressed picture (an array) as JPEG. Return any other picture unchanged. Uncompressed pictures of
    several seconds would need too much memory."""
    return encode_jpeg(picture) if isinstance(picture, np.ndarray) else picture

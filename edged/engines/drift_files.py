"""The files of the checks for drift: a small history of each model, and the frames that raised an alarm.

`STATE/drift/MODEL/history.json` has a digest (`store/sealed.py`); a damaged file counts as empty.
`STATE/drift/MODEL/TIME-CAMERA/` has a picture, and `answers.json` with the served answer and the reference's answer.
Only the daemon's user can read the folder; child processes cannot read it. All functions wait for the disk: call them
in threads.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from edged.engines.drift_answers import Answers
from edged.engines.drift_cameras import Past
from edged.store import sealed

DRIFT_FOLDER = "drift"
OUTCOMES = ("agreed", "differed", "empty", "failed")
_HISTORY = "history.json"
_MOST_FRAMES = 4  # of a model
_MOST_NAME = 60  # characters of a camera's id in the name of a folder
_DAY = 86400.0


class Checked(msgspec.Struct, frozen=True):
    """The last check of a model. `outcome` is one of `OUTCOMES`. The outcome `empty` means that there was nothing to
    compare. Before the first check, `outcome` is `""`. `reason` says why the check failed or the answers differed."""

    unix_s: float = 0.0
    camera: str = ""
    outcome: str = ""
    reason: str = ""


class History(msgspec.Struct, frozen=True):
    """The history of a model's checks.

    `engine` identifies the engine and content that `answers` are about. `frame` is the folder of the frame that raised
    the alarm about the answers, and `camera` its camera. `frames` maps a camera to the folder of the frame that raised
    the alarm about this camera. If a frame was not kept, its folder is given as an empty text.
    """

    engine: str = ""
    answers: Answers = Answers()
    frame: str = ""
    camera: str = ""
    cameras: dict[str, Past] = {}
    frames: dict[str, str] = {}
    last: Checked = Checked()

    def without(self, gone: Collection[str]) -> History:
        """Return the history without the folders in `gone`."""
        frames = {camera: path for camera, path in self.frames.items() if path not in gone}
        return msgspec.structs.replace(self, frame="" if self.frame in gone else self.frame, frames=frames)


class DriftFiles:
    """Reads, writes and removes the files of drift checks. All of them are below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, model: str) -> History:
        """Return the history of a model; an empty history if the file is missing or cannot be read."""
        return sealed.read(self._folder(model) / _HISTORY, History, "drift histories") or History()

    def write(self, model: str, history: History) -> None:
        """Replace the history of a model. Raises OSError."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        sealed.write(self._folder(model) / _HISTORY, history, 0o600)

    def keep(self, model: str, camera: str, evidence: Path, most_mb: int, days: float) -> str:
        """Copy a frame with its answers from `evidence` into the model's folder. First remove frames older than `days`,
        then the oldest frames until the new one fits into `most_mb` MiB. Return the frame's folder; an empty text if
        the frame could not be kept."""
        try:
            files = [path for path in evidence.iterdir() if path.is_file() and not path.is_symlink()]
            size = sum(path.lstat().st_size for path in files)
            if not files or size > most_mb << 20:
                return ""
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            place = self._folder(model) / f"{stamp}-{quote(camera, safe='')[:_MOST_NAME]}"
            for folder in (self._root, place.parent):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for _ in _prune(place.parent, (most_mb << 20) - size, days, _MOST_FRAMES - 1):
                pass
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(mode=0o700)
            try:
                for path in files:
                    shutil.copyfile(path, place / path.name, follow_symlinks=False)
                    (place / path.name).chmod(0o600)
            except OSError:
                shutil.rmtree(place, ignore_errors=True)
                raise
        except OSError:  # the disk is full or read-only: the alarm is raised without a frame
            return ""
        return str(place)

    def gone(self, history: History) -> set[str]:
        """Return the folders that a history names but that no longer exist, for example because they were removed to
        make room."""
        named = {history.frame, *history.frames.values()} - {""}
        return {path for path in named if not Path(path).is_dir()}

    def tidy(self, most_mb: int, days: float) -> set[str]:
        """Remove frames of all models that are too old, too many or too large. Return their folders."""
        gone: set[str] = set()
        with contextlib.suppress(OSError):
            for folder in self._root.iterdir():
                with contextlib.suppress(OSError):  # the other folders are tidied even if this one cannot be read
                    gone.update(map(str, _prune(folder, most_mb << 20, days, _MOST_FRAMES)))
        return gone

    def sweep(self, models: Iterable[str]) -> None:
        """Remove the files about all models that are not in `models`."""
        known = {self._folder(model).name for model in models}
        with contextlib.suppress(OSError):
            for folder in self._root.iterdir():
                if folder.name not in known:
                    shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, model: str) -> Path:
        return self._root / quote(model, safe="")


def _prune(folder: Path, most_bytes: int, days: float, most: int) -> Iterator[Path]:
    """Remove the oldest frames of a model until at most `most` frames with at most `most_bytes` in total are left.
    Remove also all frames that are older than `days`. Yield the removed folders."""
    now, used = time.time(), 0
    frames = sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True)
    for count, place in enumerate(frames, 1):
        used += sum(path.stat().st_size for path in place.iterdir())
        if count > most or used > most_bytes or now - place.stat().st_mtime > days * _DAY:
            shutil.rmtree(place, ignore_errors=True)
            yield place

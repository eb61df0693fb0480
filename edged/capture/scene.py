"""Detects that a camera's picture is black, or does not change although frames arrive."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from edged.client.frames import Picture, read_picture
from edged.errors import EdgedError

_PERIOD = 1.0  # seconds between two checks
_REDUCED = 8
_DARK_MEAN, _DARK_SPREAD = 16.0, 6.0  # of 0 to 255: the noise of a covered lens is below both


class SceneMonitor:
    """Checks the camera's picture about once a second. Each checked picture is reduced to an eighth of its width and
    height. `dark_s` is the time in seconds for which the checked pictures have been black. `frozen_s` is the time in
    seconds for which the checked pictures have been bit-identical. Pictures of a working camera are never identical,
    because they contain noise."""

    def __init__(self) -> None:
        self.dark_s = self.frozen_s = 0.0
        self._looked: float | None = None
        self._dark_since: float | None = None
        self._same_since = 0.0
        self._last: npt.NDArray[np.uint8] | None = None

    def look(self, picture: Picture, now: float) -> None:
        """Check a picture that arrived at monotonic time `now`. A picture that cannot be decoded is ignored."""
        if self._looked is not None and now - self._looked < _PERIOD:
            return
        self._looked = now
        small = reduced(picture)
        if small is None:
            return
        is_dark = float(small.mean()) < _DARK_MEAN and float(small.std()) < _DARK_SPREAD
        self._dark_since = None if not is_dark else now if self._dark_since is None else self._dark_since
        self.dark_s = 0.0 if self._dark_since is None else now - self._dark_since
        if self._last is None or not np.array_equal(small, self._last):
            self._same_since = now
        self.frozen_s = now - self._same_since
        self._last = small


def reduced(picture: Picture) -> npt.NDArray[np.uint8] | None:
    """Return a picture in grey, uint8 [height / 8, width / 8]; None if it cannot be decoded."""
    if isinstance(picture, np.ndarray):
        small = picture[::_REDUCED, ::_REDUCED]
        return small.mean(axis=2).astype(np.uint8) if small.ndim == 3 else np.array(small, np.uint8)
    try:
        data = np.frombuffer(read_picture(picture), np.uint8)
    except EdgedError:
        return None
    found = cv2.imdecode(data, cv2.IMREAD_REDUCED_GRAYSCALE_8)
    return None if found is None else found.astype(np.uint8, copy=False)

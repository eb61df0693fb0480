"""Matches the detections of a camera's frame with the objects of earlier frames.

The tracker is ByteTrack, from the library `trackers`. This module adds to the library: ids are in the order of the
detections; new ids are higher than those of an earlier tracker of the camera; detections of different classes are never
matched; frames may be far apart, and the camera's clock may stand still or jump.

Only the tracker's process imports this module: the library imports OpenCV and SciPy, and takes 100 MB of memory.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import supervision
import trackers

Ids = npt.NDArray[np.int64]

MOST = 1000
"""The maximum number of detections of a frame that are followed. If a frame has more, those with the best scores are
followed. The cost of association is at least quadratic."""

_NOMINAL = 30.0  # frames per second that the library's noise constants are for; other rates are scaled to this rate
_SURE = 0.4  # detections with at least this score may begin a track; other detections can only continue a track
_LOST_SECONDS = 2.0  # after this time without a detection, an object that reappears gets a new id
_LONGEST_GAP = 60.0  # seconds: a longer gap counts as this, because all tracks are lost by then
# Boxes of one object overlap while frames are at most this many seconds apart. After a longer gap the prediction is
# uncertain, so boxes are compared with a margin around them. Measured with moving shapes at 2 to 30 frames per second:
# with a margin at all rates, neighbours are confused; without margins, objects are lost below 10 frames per second.
_SURE_GAP = 0.1
_MARGIN_PER_SECOND = 5.0  # in widths and heights of the box, on each side
_LARGEST_MARGIN = 1.0
# Each class has its own strip of the plane, so that boxes of two classes never overlap.
_STRIP = float(1 << 20)
_FARTHEST = _STRIP / 8  # pixels from the origin; farther boxes are not followed: margins and predictions need room


class ByteTracker:
    """ByteTrack for frames at any interval. An object gets its id when it is detected a second time."""

    def __init__(self, after: int = 0) -> None:
        """`after` is the highest id that the camera had before; new ids are higher."""
        self.last = self._after = after  # the highest id so far
        self._overlap = trackers.BIoU(0.0)
        self._library = trackers.ByteTrackTracker(
            lost_track_buffer=round(_LOST_SECONDS * 30),  # in thirtieths of a second
            frame_rate=_NOMINAL,
            track_activation_threshold=_SURE,
            high_conf_det_threshold=_SURE,
            iou=self._overlap,
        )
        self._clock = Clock()

    def update(
        self,
        boxes: npt.NDArray[np.float32],
        scores: npt.NDArray[np.float32],
        class_ids: npt.NDArray[np.int32],
        captured: float,
    ) -> Ids:
        """Return the ids, int64 [n], of one frame's detections, in order; -1 means no id.

        boxes: float32 [n, 4], xyxy in pixels; scores: float32 [n], best first; class_ids: int32 [n]; captured: seconds
        on the camera's clock. Ids are above 0 and not given to another object later.
        """
        gap = self._clock.advance(captured)
        self._overlap.buffer_ratio = margin(gap)
        ids: Ids = np.full(len(scores), -1, np.int64)
        rows = np.flatnonzero(_can_be_followed(boxes))[:MOST]
        apart = boxes[rows].astype(np.float64)
        apart[:, ::2] += class_ids[rows, None] * _STRIP
        # The library returns rows in another order, so each row carries its number.
        found = supervision.Detections(xyxy=apart, confidence=scores[rows], data={"row": rows})
        followed = self._library.update(found, timestamp=self._clock.now)
        if len(followed) and followed.tracker_id is not None:
            given = np.asarray(followed.tracker_id, np.int64)
            ids[np.asarray(followed.data["row"])] = np.where(given < 0, -1, given + self._after + 1)
            self.last = max(self.last, int(ids.max()))
        return ids


class Clock:
    """Derives a monotonic time from a camera's capture times, which may jump."""

    def __init__(self) -> None:
        self.now = 0.0
        self._captured = math.nan
        self._gap = 1 / _NOMINAL

    def advance(self, captured: float) -> float:
        """Return the seconds since the previous frame, at most 60; 1/30 for the first frame. If the capture time is not
        later than the previous one, return the previous result."""
        gap = captured - self._captured
        if 0 < gap < math.inf:
            self._gap = min(gap, _LONGEST_GAP)
        self._captured = captured
        self.now += self._gap
        return self._gap


def margin(gap: float) -> float:
    """Return by how much boxes are enlarged on each side before they are compared, as a multiple of their width or
    height. `gap` is the number of seconds between the two frames. After a longer gap, the predicted boxes are less
    certain, so the margin is larger."""
    return min(max(gap - _SURE_GAP, 0.0) * _MARGIN_PER_SECOND, _LARGEST_MARGIN)


def _can_be_followed(boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Return which boxes have an area and are within `_FARTHEST` pixels of the origin, bool [n]; False for NaN."""
    return (np.abs(boxes) < _FARTHEST).all(axis=1) & (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])

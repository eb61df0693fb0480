"""Keypoints as dots, and people as lines between them."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from edged.vision.image import Image
from edged.vision.strokes import DARK, Color, Style, whole

# COCO's 17 points of a person: nose; then left and right of eyes, ears, shoulders, elbows, wrists, hips, knees, ankles.
PERSON = 17
_FACE = ((0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (3, 5), (4, 6))
_BODY = ((5, 6), (5, 11), (6, 12), (11, 12))
_LIMBS = ((5, 7), (7, 9), (6, 8), (8, 10), (11, 13), (13, 15), (12, 14), (14, 16))
_BONES = (*_FACE, *_BODY, *_LIMBS)

_SURE = 0.25  # points with a lower score are hidden or guessed


def paint_keypoints(canvas: Image, keypoints: npt.NDArray[np.float32], color: Color, style: Style) -> None:
    """The keypoints of one object, [k, 3], on a BGR picture; 17 are taken for a person's."""
    seen = keypoints[:, 2] >= _SURE
    points = [(x, y) for x, y in whole(keypoints[:, :2]).tolist()]
    if len(points) == PERSON:
        for one, other in _BONES:
            if seen[one] and seen[other]:
                cv2.line(canvas, points[one], points[other], color, style.line + 1, cv2.LINE_AA)
    for point, is_seen in zip(points, seen.tolist(), strict=True):
        if is_seen:
            cv2.circle(canvas, point, style.line * 2 + 1, DARK, cv2.FILLED, cv2.LINE_AA)
            cv2.circle(canvas, point, style.line * 2, color, cv2.FILLED, cv2.LINE_AA)

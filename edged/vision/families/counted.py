"""Answers of a graph that suppressed already: so many detections, in tensors padded to a fixed length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edged.tensors import Array
from edged.vision.families.answers import ANY, line, number, picture


def counted(outputs: Mapping[str, Array], names: Sequence[str], index: int) -> tuple[Array, Array, Array]:
    """Boxes [n, 4], scores [n] and class ids [n] of picture `index`, as they are.

    `names` are the tensors of the count ([N] or [N, 1]), the boxes [N, K, 4], scores and class ids [N, K]. A count
    that is no number is zero, one beyond K is K. EngineUnusable where these are not their shapes.
    """
    count, boxes, scores, class_ids = names
    places = picture(outputs, boxes, index, ANY, 4)
    told, ids = (line(outputs, name, index, len(places)) for name in (scores, class_ids))
    said = number(outputs, count, index)
    found = int(min(max(said, 0), len(places))) if np.isfinite(said) else 0
    return places[:found], told[:found], ids[:found]

"""Answers of a graph that suppressed already: so many detections, in tensors padded to a fixed length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edged.tensors import Array


def counted(outputs: Mapping[str, Array], names: Sequence[str], index: int) -> tuple[Array, Array, Array]:
    """Boxes [n, 4], scores [n] and class ids [n] of picture `index`, as they are.

    `names` are the tensors of the count ([N] or [N, 1]), the boxes [N, K, 4], scores and class ids [N, K]. A count
    that is no number is zero, one beyond K is K.
    """
    count, boxes, scores, class_ids = (outputs[name] for name in names)
    said = float(count.reshape(-1)[index])
    found = int(min(max(said, 0), boxes.shape[1])) if np.isfinite(said) else 0
    return boxes[index][:found], scores[index].reshape(-1)[:found], class_ids[index].reshape(-1)[:found]

"""Suppression of boxes for torchvision's Python, whose compiled operators need the CUDA build of torch.

`make test-export` installs this file into the environment of the frameworks, which imports it when Python starts.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any


class _Finder(importlib.abc.MetaPathFinder):
    """Declares the operators just before torchvision is imported, which fails without them."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare()


def _declare() -> None:
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # is only declared
    library.impl("nms", suppress, "CPU")
    _Finder.library = library  # type: ignore[attr-defined]  # it ends with its object


def suppress(boxes: Any, scores: Any, most: float) -> Any:
    """Return the indices of the boxes that stay, the best first."""
    import torch

    kept, left = [], scores.argsort(descending=True)
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        corners = torch.maximum(boxes[best, :2], boxes[left, :2]), torch.minimum(boxes[best, 2:], boxes[left, 2:])
        both = (corners[1] - corners[0]).clamp(min=0).prod(1)
        areas = [(boxes[each, 2:] - boxes[each, :2]).prod(-1) for each in (best, left)]
        left = left[both / (areas[0] + areas[1] - both) <= most]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.long)


sys.meta_path.insert(0, _Finder())

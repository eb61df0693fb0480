"""The detector's loss: assigns cells to figures and measures their errors.

Cells are chosen by their current score and overlap together, so that score and box learn to agree. The target of a
score is the current overlap, so the score also measures the quality of the box.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

_CANDIDATES = 10
_SCORE_POWER, _OVERLAP_POWER = 0.5, 6.0
_BOX_WEIGHT = 5.0


def pair_iou(a: Any, b: Any) -> Any:
    """Return the IoU of xyxy boxes; leading dimensions broadcast."""
    wide_high = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    both = wide_high.prod(-1)
    return both / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - both + 1e-6)


def assign(scores: Any, boxes: Any, centres: Any, truth: Any) -> tuple[Any, Any, Any]:
    """Assign cells to figures.

    `scores` [B, A, C] in 0..1, `boxes` [B, A, 4], `centres` [A, 2], `truth` [B, M, 5] (class -1: none). Returns target
    scores [B, A, C], target boxes [B, A, 4], weights [B, A] (0: the cell has no figure).
    """
    classes, real = truth[..., 0].long().clamp(min=0), truth[..., 0] >= 0
    wanted = truth[..., 1:]
    inside = torch.cat([centres - wanted[:, :, None, :2], wanted[:, :, None, 2:] - centres], -1).amin(-1) > 0
    overlap = pair_iou(wanted[:, :, None], boxes[:, None]) * (inside & real[..., None])
    said = scores.transpose(1, 2).gather(1, classes[..., None].expand(-1, -1, scores.shape[1]))
    merit = said**_SCORE_POWER * overlap**_OVERLAP_POWER
    best, where = merit.topk(_CANDIDATES, dim=-1)
    chosen = torch.zeros_like(merit).scatter_(-1, where, (best > 1e-9).float())
    # A cell that two figures chose gets the figure that it overlaps most.
    owner = (overlap * chosen).argmax(1)
    chosen = chosen * F.one_hot(owner, chosen.shape[1]).transpose(1, 2)
    merit = merit * chosen
    scaled = merit / (merit.amax(-1, keepdim=True) + 1e-9) * (overlap * chosen).amax(-1, keepdim=True)
    weight = scaled.amax(1)
    target_boxes = wanted.gather(1, owner[..., None].expand(-1, -1, 4))
    target_scores = F.one_hot(classes.gather(1, owner), scores.shape[-1]) * weight[..., None]
    return target_scores, target_boxes, weight


def detection_loss(logits: Any, boxes: Any, centres: Any, truth: Any) -> Any:
    """Return the scalar loss of logits [B, A, C] and xyxy boxes [B, A, 4] (input pixels) against `truth` [B, M, 5]."""
    with torch.no_grad():
        target_scores, target_boxes, weight = assign(logits.sigmoid(), boxes, centres, truth)
    total = weight.sum().clamp(min=1.0)
    score_loss = F.binary_cross_entropy_with_logits(logits, target_scores, reduction="sum")
    picked = weight > 0
    got, want = boxes[picked], target_boxes[picked]
    # The distance between centres, relative to the box around both, gives a gradient even if boxes hardly overlap.
    span = torch.maximum(got[:, 2:], want[:, 2:]) - torch.minimum(got[:, :2], want[:, :2])
    apart = (got[:, :2] + got[:, 2:] - want[:, :2] - want[:, 2:]) / 2
    far = (apart**2).sum(-1) / ((span**2).sum(-1) + 1e-6)
    box_loss = ((1 - pair_iou(got, want) + far) * weight[picked]).sum()
    return (score_loss + _BOX_WEIGHT * box_loss) / total

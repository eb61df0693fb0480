"""The detector: a small anchor-free convolutional network with strides of 8, 16 and 32 pixels.

It has only plain convolutions and ReLU, since every runtime fuses these. Distances are computed with Softplus, which
unlike Exp cannot overflow in half precision.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

STRIDES = (8, 16, 32)
_NECK = 48


def conv(inside: int, outside: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> Any:
    """Return a block of convolution, normalisation and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


def light(inside: int, outside: int, kernel: int = 3, stride: int = 1) -> Any:
    """Return a depthwise and a pointwise convolution: a large receptive field with few weights."""
    return nn.Sequential(conv(inside, inside, kernel, stride, inside), conv(inside, outside, 1))


class Bottleneck(nn.Module):  # type: ignore[misc] # mypy runs without torch
    """Two plain 3x3 convolutions through half the channels, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(channels, channels // 2), conv(channels // 2, channels))

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


class Head(nn.Module):  # type: ignore[misc] # mypy runs without torch
    """Class logits [B, C, cells] and box distances [B, 4, cells], in cells, of one stride."""

    def __init__(self, classes: int, cells: int) -> None:
        super().__init__()
        self.classes, self.cells = classes, cells
        self.score = nn.Sequential(light(_NECK, _NECK), nn.Conv2d(_NECK, classes, 1))
        self.reach = nn.Sequential(light(_NECK, _NECK), nn.Conv2d(_NECK, 4, 1))
        nn.init.constant_(self.score[-1].bias, -4.6)  # most cells contain no figure: begin with low scores
        nn.init.constant_(self.reach[-1].bias, 2.0)

    def forward(self, x: Any) -> tuple[Any, Any]:
        # Training uses bfloat16, but its eight bits are too few for the edges of a box.
        with torch.autocast("cpu", enabled=False):
            x = x if x.dtype == torch.float32 else x.float()
            score, reach = self.score(x), F.softplus(self.reach(x))
        # Sizes are plain numbers: sizes read from a tensor would add a dozen nodes to the exported graph.
        return score.reshape(-1, self.classes, self.cells), reach.reshape(-1, 4, self.cells)


class Detector(nn.Module):  # type: ignore[misc] # mypy runs without torch
    """Pictures [B, 3, S, S] (RGB, 0..1) to [B, 4 + classes, A]: cx, cy, w, h in pixels, then scores 0..1."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 16, stride=2), conv(16, 32, stride=2))
        self.eighth = nn.Sequential(conv(32, 48, stride=2), Bottleneck(48), Bottleneck(48))
        self.sixteenth = nn.Sequential(conv(48, 64, stride=2), Bottleneck(64))
        self.thirtysecond = nn.Sequential(light(64, 96, 5, 2), light(96, 96, 5))
        self.from32, self.from16, self.from8 = conv(96, _NECK, 1), conv(64, _NECK, 1), conv(48, _NECK, 1)
        self.mix16, self.mix8 = light(_NECK, _NECK), light(_NECK, _NECK)
        self.heads = nn.ModuleList(Head(classes, (size // stride) ** 2) for stride in STRIDES)
        cells = [_grid(size // stride, stride) for stride in STRIDES]
        self.register_buffer("centres", torch.cat([c for c, _ in cells]), persistent=False)
        self.register_buffer("strides", torch.cat([s for _, s in cells]), persistent=False)

    def raw(self, x: Any) -> tuple[Any, Any]:
        """Return logits [B, C, A] and distances left, top, right, bottom [B, 4, A] in pixels."""
        c8 = self.eighth(self.stem(x))
        c16 = self.sixteenth(c8)
        p32 = self.from32(self.thirtysecond(c16))
        p16 = self.mix16(self.from16(c16) + F.interpolate(p32, scale_factor=2.0, mode="nearest"))
        p8 = self.mix8(self.from8(c8) + F.interpolate(p16, scale_factor=2.0, mode="nearest"))
        answers = [head(p) for head, p in zip(self.heads, (p8, p16, p32), strict=True)]
        return torch.cat([a for a, _ in answers], 2), torch.cat([b for _, b in answers], 2) * self.strides

    def corners(self, reach: Any) -> Any:
        """Convert distances [B, 4, A] to boxes x1, y1, x2, y2 as [B, A, 4]."""
        reach = reach.transpose(1, 2)
        return torch.cat([self.centres - reach[..., :2], self.centres + reach[..., 2:]], -1)

    def forward(self, x: Any) -> Any:
        logits, reach = self.raw(x)
        first, last = reach[:, :2], reach[:, 2:]
        middle = self.centres.t()[None] + (last - first) * 0.5
        return torch.cat([middle, first + last, logits.sigmoid()], 1)


def _grid(side: int, stride: int) -> tuple[Any, Any]:
    """Return the centres [side * side, 2] of cells as x, y in pixels, and the stride of each cell."""
    at = (torch.arange(side) + 0.5) * stride
    y, x = torch.meshgrid(at, at, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1), torch.full((side * side,), float(stride))

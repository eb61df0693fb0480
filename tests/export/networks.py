"""Small networks with seeded weights, some with a fault that an export must not hide. Run in the framework's Python."""

from __future__ import annotations

import os
import socket

import torch
from torch import nn


def small() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    module.edged_settings = {"family": "classification", "names": "a,b,c,d,e", "preprocess.mean": "0.5,0.5,0.5"}
    return module


class Resizing(nn.Module):
    """Enlarges with `align_corners`, which exports as another resize: `symbolic` plants a wrong one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.enlarge, self.last = nn.Conv2d(3, 4, 3, padding=1), Enlarge(), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.last(self.enlarge(self.first(pictures)))


class Enlarge(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        corners = not torch.onnx.is_in_onnx_export()  # what is exported differs from what is computed
        return nn.functional.interpolate(values, scale_factor=2, mode="bilinear", align_corners=corners)


def resizing() -> nn.Module:
    return Resizing()


class Fixed(nn.Module):
    """Its batch becomes a constant in the export."""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.mean((2, 3)).reshape(int(pictures.shape[0]), 3)


def fixed() -> nn.Module:
    return Fixed()


def online() -> nn.Module:
    socket.create_connection(("127.0.0.1", 9), timeout=1)
    return small()


def writing() -> nn.Module:
    with open(os.path.join(os.path.dirname(__file__), "written"), "w") as file:
        file.write("outside of the scratch folder")
    return small()


class TopK(nn.Module):
    """Orders its rows by score, as DETR-like detectors do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.conv, self.score, self.box = nn.Conv2d(3, 16, 8, stride=8), nn.Linear(16, 1), nn.Linear(16, 4)

    def forward(self, pictures: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = self.conv(pictures).flatten(2).transpose(1, 2)
        scores = self.score(rows)
        best = scores.squeeze(-1).topk(20, dim=1).indices
        return {"boxes": self.box(rows).gather(1, best[..., None].expand(-1, -1, 4)), "order": best}


def topk() -> nn.Module:
    return TopK()


class Branching(nn.Module):
    """Goes one way or the other; a file that follows an example goes one way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        values = self.conv(pictures)
        if values.sum() > 0:
            return values * 2
        return values - 1


def branching() -> nn.Module:
    return Branching()


def two() -> nn.Module:
    """Takes two inputs, and says nothing about them."""

    class Two(nn.Module):
        def forward(self, pictures: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            return pictures.mean() + numbers

    return Two()


def escaping() -> nn.Module:
    """Starts a process in a session of its own, which must end together with the export."""
    import subprocess

    subprocess.Popen(["sleep", "3141.5"], start_new_session=True)
    return small()

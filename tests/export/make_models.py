"""Writes models with seeded weights: `PYTHON make_models.py FUNCTION ARGUMENT...`, in the framework's Python."""

from __future__ import annotations

import os
import sys
from typing import Any


def ultralytics(description: str, path: str, picture: str = "") -> None:
    """`picture`: what it will be asked about."""
    import cv2
    import torch
    from ultralytics import YOLO

    torch.manual_seed(0)
    model = YOLO(description)
    if picture:
        # Statistics of the picture, or all places get nearly the same answer, which rounding then orders.
        network = model.model.train()
        for each in network.modules():
            if isinstance(each, torch.nn.BatchNorm2d):
                each.momentum = None
                each.reset_running_stats()
        pixels = torch.from_numpy(cv2.imread(picture)[..., ::-1].copy()).permute(2, 0, 1)[None].float() / 255
        with torch.no_grad():
            network(torch.cat([pixels, *(0.9 * pixels + 0.1 * torch.rand_like(pixels) for _ in range(3))]))
        for name, values in network.eval().named_parameters():
            if ".cv3." in name and name.endswith(".2.bias"):
                values.data.fill_(-4)
    torch.save({"model": model.model.half(), "train_args": {"imgsz": 160, "task": model.task}}, path)


def evil(path: str, place: str) -> None:
    """A checkpoint that looks like one of Ultralytics, and makes a file if it is unpickled."""
    import torch
    from ultralytics.nn.tasks import DetectionModel

    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.system, ("touch " + place,)

    torch.save({"model": Evil(), "x": DetectionModel}, path)


def timm(name: str, path: str) -> None:
    import timm as package
    import torch

    torch.manual_seed(0)
    torch.save(package.create_model(name, num_classes=7).state_dict(), path)


def torchvision(name: str, path: str) -> None:
    import torch
    import torchvision as package

    torch.manual_seed(0)
    torch.save(package.models.get_model(name, weights=None, num_classes=7).state_dict(), path)


def hugging_face(folder: str) -> None:
    import torch
    from transformers import RTDetrImageProcessor, RTDetrV2Config, RTDetrV2ForObjectDetection

    torch.manual_seed(0)
    # As many queries as places in a picture of 160x160: random weights choose the best places by noise.
    config = RTDetrV2Config(num_queries=20 * 20 + 10 * 10 + 5 * 5, decoder_layers=2)
    RTDetrV2ForObjectDetection(config).save_pretrained(folder)
    RTDetrImageProcessor(size={"height": 160, "width": 160}).save_pretrained(folder)


def rfdetr(path: str) -> None:
    import argparse

    import rfdetr as package
    import torch

    torch.manual_seed(0)
    model = package.RFDETRNano(pretrain_weights=None, num_classes=3, device="cpu")
    model.model.model.class_embed.bias.data[:] = torch.tensor([-1.0, -1, -1, -20])  # the last is no class
    torch.save({"model": model.model.model.state_dict(), "args": argparse.Namespace(num_classes=3)}, path)


def d_fine(folder: str) -> None:
    import torch
    from transformers import DFineConfig, DFineForObjectDetection, RTDetrImageProcessor

    torch.manual_seed(0)
    DFineForObjectDetection(DFineConfig(num_queries=525, decoder_layers=2)).save_pretrained(folder)
    RTDetrImageProcessor(size={"height": 160, "width": 160}).save_pretrained(folder)


def keras(path: str) -> None:
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    steps = [layers.Input((64, 64, 3)), layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")]
    steps += [layers.BatchNormalization(), layers.GlobalAveragePooling2D(), layers.Dense(5, activation="softmax")]
    model = tf.keras.Sequential(steps)
    if path.endswith(".keras"):
        model.save(path)
    else:
        model.export(path)


def paddle(folder: str) -> None:
    import paddle as package

    package.seed(0)
    nn = package.nn
    layers = [nn.Conv2D(3, 8, 3, stride=2, padding=1), nn.BatchNorm2D(8), nn.ReLU(), nn.AdaptiveAvgPool2D(1)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 5))
    model.eval()
    shape = package.static.InputSpec([None, 3, 64, 64], "float32", "pictures")
    package.jit.save(model, folder + "/inference", input_spec=[shape])


def estimator(package: str, path: str) -> None:
    import joblib
    import numpy as np

    random = np.random.default_rng(0)
    rows, labels = random.random((200, 4)).astype(np.float32), random.integers(0, 3, 200)
    if package == "xgboost":
        from xgboost import XGBClassifier

        model: Any = XGBClassifier(n_estimators=5)
    elif package == "sklearn":
        from sklearn.ensemble import RandomForestClassifier

        model = RandomForestClassifier(5, random_state=0)
    else:
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(n_estimators=5, verbose=-1)
    joblib.dump(model.fit(rows, labels), path)


if __name__ == "__main__":
    # Not this folder: a function's name must not hide the package of the same name.
    sys.path[:] = sys.path[1:]
    globals()[sys.argv[1]](*sys.argv[2:])

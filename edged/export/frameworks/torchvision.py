"""Classifiers of torchvision by name. Size, mean, deviation and classes are those of torchvision's default weights."""

from __future__ import annotations

import os

import torch
import torchvision
from edged_frameworks import torch_model
from edged_frameworks.contract import Loaded, Refused, Request
from torchvision import models


def load(request: Request) -> Loaded:
    if request.source not in models.list_models():
        near = [name for name in models.list_models() if request.source in name][:3]
        raise Refused(
            "torchvision has no model {!r}{}".format(
                request.source, ("; similar models: " + ", ".join(near)) if near else ""
            )
        )
    if models.get_model_builder(request.source).__module__.count(".") != 2:
        raise Refused(
            f"{request.source} is not a classifier of torchvision; export the model with PACKAGE.MODULE:FACTORY"
        )
    weights = models.get_model_weights(request.source).DEFAULT
    names = list(weights.meta.get("categories", ()))
    path = request.weights
    if not path:
        path = os.path.join(torch.hub.get_dir(), "checkpoints", os.path.basename(weights.url))
        if not os.path.exists(path):
            raise Refused(
                f"the weights of {request.source} are not in this user's cache, and exports have no network;"
                " give --weights FILE"
            )
    count = torch_model.classes_in(path, len(names))
    module = torch_model.fill(models.get_model(request.source, weights=None, num_classes=count), path)
    transforms = weights.transforms()
    size = transforms.crop_size[0]
    settings = {
        "family": "classification",
        "preprocess.mean": ",".join(f"{each:g}" for each in transforms.mean),
        "preprocess.std": ",".join(f"{each:g}" for each in transforms.std),
        "preprocess.fit": "center_crop",
        "preprocess.zoom": "%g" % (transforms.resize_size[0] / size),
    }
    if count == len(names):
        settings["names"] = ",".join(name.replace(",", " ") for name in names)
    return torch_model.load(
        module, request, "torchvision " + torchvision.__version__, settings, (size, size), "image", ()
    )

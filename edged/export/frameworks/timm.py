"""Classifiers of timm by name. Size, mean and deviation are those of the model's configuration (`timm.data`)."""

from __future__ import annotations

import timm
from edged_frameworks import torch_model
from edged_frameworks.contract import Loaded, Refused, Request
from timm.data import resolve_data_config


def load(request: Request) -> Loaded:
    if request.source not in timm.list_models():
        near = timm.list_models(f"*{request.source}*")[:3]
        raise Refused(
            "timm has no model {!r}{}".format(request.source, ("; similar models: " + ", ".join(near)) if near else "")
        )
    if request.weights:
        usual = timm.get_pretrained_cfg(request.source)
        count = torch_model.classes_in(request.weights, usual.num_classes if usual is not None else 1000)
        module = torch_model.fill(timm.create_model(request.source, num_classes=count), request.weights)
    else:
        try:
            module = timm.create_model(request.source, pretrained=True)
        except Exception as error:
            raise Refused(
                f"the weights of {request.source} cannot be loaded from this user's cache ({type(error).__name__}), and"
                " exports have no network; give --weights FILE"
            ) from None
    config = resolve_data_config({}, model=module)
    _, height, width = config["input_size"]
    settings = {
        "family": "classification",
        "preprocess.mean": ",".join(f"{each:g}" for each in config["mean"]),
        "preprocess.std": ",".join(f"{each:g}" for each in config["std"]),
        "preprocess.fit": "center_crop",
        "preprocess.zoom": "%g" % (1 / config["crop_pct"]),
    }
    return torch_model.load(module, request, "timm " + timm.__version__, settings, (height, width), "image", ())

"""Detectors of RF-DETR by name, such as `rfdetr:nano`, with a checkpoint. RF-DETR's own exporter writes the file. Only
tensors and arguments are loaded from the checkpoint, never code."""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import os
import shutil

import rfdetr
import torch
from edged_frameworks import torch_model
from edged_frameworks.contract import Arrays, Input, Loaded, Refused, Request


def load(request: Request) -> Loaded:
    kinds = {name[len("RFDETR") :].lower(): name for name in dir(rfdetr) if name.startswith("RFDETR") and name[6:]}
    name = kinds.get(request.source.replace("-", "").lower())
    if name is None:
        raise Refused("rfdetr has no model {!r}; its models are {}".format(request.source, ", ".join(sorted(kinds))))
    if not request.weights:
        raise Refused(f"rfdetr:{request.source} needs a checkpoint; give --weights FILE")
    if request.half:
        raise Refused("RF-DETR's exporter cannot write float16; leave out --half, and let the box choose the precision")
    torch.serialization.add_safe_globals([argparse.Namespace])
    head = torch_model.read_weights(request.weights).get("class_embed.weight")
    if head is None:
        raise Refused(
            f"{os.path.basename(request.weights)} is not a checkpoint of RF-DETR: it has no tensor class_embed.weight"
        )
    made = getattr(rfdetr, name)(pretrain_weights=request.weights, num_classes=len(head) - 1, device="cpu")
    return _Detector(made, len(head) - 1, request).loaded()


class _Detector:
    def __init__(self, made, classes: int, request: Request) -> None:
        self._made, self._classes, self._request = made, classes, request
        side = made.model.resolution
        self._size = request.imgsz or (side, side)
        self._plain = None

    def loaded(self) -> Loaded:
        names = self._made.class_names
        names = [names[key] for key in sorted(names)] if isinstance(names, dict) else list(names or ())
        is_right = len(names) == self._classes and not any("," in each for each in names)
        settings = {"names": ",".join(names)} if is_right else {}
        opened = {0: "batch"} if "batch" in self._request.dynamic else {}
        if "size" in self._request.dynamic:
            raise Refused("RF-DETR takes only one size of pictures; leave size out of --dynamic")
        inputs = {"input": Input("float32", [1, 3, *self._size], opened)}
        about = "rfdetr {}, torch {}".format(importlib.metadata.version("rfdetr"), torch.__version__)
        return Loaded(about, inputs, self.export, self.answer, settings=settings)

    def export(self, out: str, opset: int | None, way: str) -> None:
        folder = os.path.join(self._request.scratch, "rfdetr")
        made = self._made.export(
            output_dir=folder,
            opset_version=opset or 17,
            shape=self._size,
            dynamic_batch="batch" in self._request.dynamic,
            verbose=False,
        )
        shutil.move(str(made), out)

    def answer(self, inputs: Arrays) -> Arrays:
        if self._plain is None:
            self._plain = copy.deepcopy(self._made.model.model).eval()
            self._plain.export()  # the model then returns tensors, and has position embeddings for one input size
        with torch.no_grad():
            found = self._plain(torch.from_numpy(inputs["input"]))
        tensors = [each for each in found if isinstance(each, torch.Tensor)]
        return {f"output{number}": each.numpy() for number, each in enumerate(tensors)}

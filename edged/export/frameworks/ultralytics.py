"""Checkpoints of Ultralytics (`.pt`): detect, segment, pose, obb, classify. Ultralytics' own exporter writes the file,
with metadata that edged reads. The file is compared with the model as it was before the export.

Only classes that Ultralytics knows are loaded from the checkpoint (ULTRALYTICS_SAFE_LOAD), never other code.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
import ultralytics
from edged_frameworks import torch_model
from edged_frameworks.contract import Arrays, Input, Loaded, Refused, Request
from ultralytics import YOLO
from ultralytics.nn import tasks


def load(request: Request) -> Loaded:
    if not getattr(tasks, "SAFE_LOAD", False):
        raise Refused(
            f"ultralytics {ultralytics.__version__} loads checkpoints together with their code;"
            " update it to 8.4.180 or newer"
        )
    if request.weights:
        raise Refused("a checkpoint of Ultralytics already contains its weights; leave out --weights")
    if request.half:
        raise Refused(
            "Ultralytics writes float16 only on a GPU, and edged exports on the CPU; leave out --half, and set the"
            " model's precisions=fp16 on the box"
        )
    place = os.path.join(request.scratch, "model.pt")
    shutil.copyfile(request.source, place)  # the exporter writes next to the checkpoint
    try:
        model = YOLO(place)
    except Exception as error:
        raise Refused(
            "{} cannot be loaded without executing code: {}".format(
                os.path.basename(request.source), " ".join(str(error).split())[:300]
            )
        ) from None
    return _Ultralytics(model, request).loaded()


class _Ultralytics:
    def __init__(self, model: Any, request: Request) -> None:
        self._request = request
        usual = model.overrides.get("imgsz", 640)
        height, width = request.imgsz or (usual if isinstance(usual, (list, tuple)) else (usual, usual))
        self._size = (int(height), int(width))
        plain = YOLO(model.ckpt_path or os.path.join(request.scratch, "model.pt")).model.float().eval()
        self._plain = torch_model.Flat(plain, ())
        self._shapes = []  # type: List[List[int]]

    def loaded(self) -> Loaded:
        opened = {0: "batch", 2: "height", 3: "width"} if self._request.dynamic else {}
        inputs = {"images": Input("float32", [1, 3, *self._size], opened)}
        notes = [] if not self._request.dynamic else ["Ultralytics always opens batch and size together"]
        about = f"ultralytics {ultralytics.__version__}, torch {torch.__version__}"
        return Loaded(about, inputs, self.export, self.answer, notes=notes, layers=self.layers)

    def export(self, out: str, opset: int | None, way: str) -> None:
        kept = []  # type: List[Any]
        model = YOLO(os.path.join(self._request.scratch, "model.pt"))
        model.add_callback("on_export_end", kept.append)
        options = {} if opset is None else {"opset": opset}
        made = model.export(
            format="onnx",
            imgsz=list(self._size),
            dynamic=bool(self._request.dynamic),
            simplify=False,
            device="cpu",
            **options,
        )
        os.replace(made, out)
        with torch.no_grad():
            found = kept[0].model(torch.zeros(1, 3, *self._size, dtype=next(kept[0].model.parameters()).dtype))
        found = found if isinstance(found, (tuple, list)) else [found]
        self._shapes = [list(each.shape) for each in found if isinstance(each, torch.Tensor)]

    def answer(self, inputs: Arrays) -> Arrays:
        """Return one tensor of the framework for each output of the file. Both have the same shape, except for the
        batch dimension."""
        with torch.no_grad():
            found = list(self._plain(torch.from_numpy(inputs["images"]).float()))
        answers = {}
        for number, shape in enumerate(self._shapes):
            place = next((at for at, each in enumerate(found) if list(each.shape)[1:] == shape[1:]), None)
            if place is None:
                why = f"Ultralytics itself returns no tensor of shape {shape}, so the exported file cannot be checked"
                raise Refused(f"{why}; install another version of ultralytics")
            answers[f"output{number}"] = found.pop(place).numpy()
        return answers

    def layers(self, inputs: Arrays) -> Arrays:
        return torch_model.layers_of(self._plain, lambda: self.answer(inputs))

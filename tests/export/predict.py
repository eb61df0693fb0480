"""What a framework itself answers: `PYTHON predict.py FUNCTION MODEL INPUT OUT`, in the framework's Python. The answer
is JSON: `boxes` with x1, y1, x2, y2, score and class, and lists of the same length; or `scores` of classes; or
`values`."""

from __future__ import annotations

import json
import sys
from typing import Any

THRESHOLD, IOU = 0.1, 0.7


def ultralytics(model: str, picture: str) -> dict[str, Any]:
    import torch
    import torchvision
    from ultralytics import YOLO

    if not torchvision.extension._has_ops():
        torchvision.ops.nms = torch.ops.torchvision.nms  # see torchvision_operators.py
    (found,) = YOLO(model).predict(picture, imgsz=160, conf=THRESHOLD, iou=IOU, verbose=False)
    if found.probs is not None:
        return {"scores": found.probs.data.tolist()}
    if found.obb is not None:
        rows = [[*box, *rest] for box, rest in zip(found.obb.xyxy.tolist(), _rest(found.obb), strict=True)]
        return {"boxes": rows, "corners": found.obb.xyxyxyxy.tolist()}
    answer = {"boxes": [[*box, *rest] for box, rest in zip(found.boxes.xyxy.tolist(), _rest(found.boxes), strict=True)]}
    if found.keypoints is not None:
        answer["keypoints"] = found.keypoints.xy.tolist()
    if found.masks is not None:
        answer["areas"] = found.masks.data.sum((1, 2)).tolist()
    return answer


def _rest(found: Any) -> list[list[float]]:
    return [[score, number] for score, number in zip(found.conf.tolist(), found.cls.tolist(), strict=True)]


def timm(model: str, picture: str) -> dict[str, Any]:
    import timm as package
    import torch
    from PIL import Image

    name, weights = model.split("|")
    module = package.create_model(name, num_classes=7)
    module.load_state_dict(torch.load(weights, weights_only=True))
    transform = package.data.create_transform(**package.data.resolve_data_config({}, model=module))
    with torch.no_grad():
        logits = module.eval()(transform(Image.open(picture).convert("RGB"))[None])
    return {"scores": logits.softmax(-1)[0].tolist()}


def torchvision(model: str, picture: str) -> dict[str, Any]:
    import torch
    import torchvision as package
    from PIL import Image

    name, weights = model.split("|")
    module = package.models.get_model(name, weights=None, num_classes=7)
    module.load_state_dict(torch.load(weights, weights_only=True))
    transform = package.models.get_model_weights(name).DEFAULT.transforms()
    with torch.no_grad():
        logits = module.eval()(transform(Image.open(picture).convert("RGB"))[None])
    return {"scores": logits.softmax(-1)[0].tolist()}


def hugging_face(folder: str, picture: str) -> dict[str, Any]:
    import torch
    import transformers
    from PIL import Image

    image = Image.open(picture).convert("RGB")
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    model = transformers.AutoModelForObjectDetection.from_pretrained(folder).eval()
    with torch.no_grad():
        outputs = model(**processor(image, return_tensors="pt"))
    sizes = [image.size[::-1]]
    (found,) = processor.post_process_object_detection(outputs, threshold=THRESHOLD, target_sizes=sizes)
    rest = zip(found["boxes"].tolist(), found["scores"].tolist(), found["labels"].tolist(), strict=True)
    return {"boxes": [[*box, score, label] for box, score, label in rest]}


def rfdetr(weights: str, picture: str) -> dict[str, Any]:
    import rfdetr as package
    from PIL import Image

    model = package.RFDETRNano(pretrain_weights=weights, num_classes=3, device="cpu")
    found = model.predict(Image.open(picture).convert("RGB"), threshold=THRESHOLD)
    rest = zip(found.xyxy.tolist(), found.confidence.tolist(), found.class_id.tolist(), strict=True)
    return {"boxes": [[*box, score, label] for box, score, label in rest]}


def estimator(path: str, rows: str) -> dict[str, Any]:
    import joblib
    import numpy as np

    return {"values": joblib.load(path).predict_proba(np.load(rows)).ravel().tolist()}


def keras(path: str, tensor: str) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    return {"values": tf.keras.models.load_model(path).predict(np.load(tensor), verbose=0).ravel().tolist()}


def paddle(folder: str, tensor: str) -> dict[str, Any]:
    import numpy as np
    import paddle as package

    layer = package.jit.load(folder + "/inference")
    layer.eval()
    return {"values": layer(package.to_tensor(np.load(tensor))).numpy().ravel().tolist()}


if __name__ == "__main__":
    sys.path[:] = sys.path[1:]  # see make_models.py
    answer = globals()[sys.argv[1]](*sys.argv[2:4])
    with open(sys.argv[4], "w") as out:
        json.dump(answer, out)

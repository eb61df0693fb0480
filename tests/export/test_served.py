"""From a framework to answers of a real daemon, compared with the framework's own `predict`.

The networks are small and have seeded weights. Pictures have the size of the input, or are resized by both sides.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from edged.client.result import Detection, Result
from edged.shapes.scene import Scene
from tests.export.predict import IOU, THRESHOLD
from tests.export.test_export import HERE, PYTHON, export, framework_python, make
from tests.integration.daemon import Daemon

SIDE = 160  # pixels of the picture
MOST = 300  # detections
TENSORFLOW = framework_python("EDGED_EXPORT_TENSORFLOW")
PADDLE = framework_python("EDGED_EXPORT_PADDLE")
pytestmark = pytest.mark.timeout(600)
torch_only = pytest.mark.skipif(not PYTHON, reason="the frameworks are not installed: make test-export")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(listen=("unix:HOME/edged.sock",), builds=False) as found:
        yield found


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture of the size of the input, without loss."""
    return drawn(tmp_path_factory.mktemp("pictures"), SIDE)


def drawn(folder: Path, side: int) -> Path:
    place = folder / "picture.png"
    cv2.imwrite(str(place), Scene(3, side, side).frame(0)[0])
    return place


def predicted(function: str, *words: object, out: Path, python: str = "") -> dict[str, Any]:
    environment = {**os.environ, "YOLO_AUTOINSTALL": "false", "YOLO_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    command = [python or PYTHON, str(HERE / "predict.py"), function, *map(str, words), str(out / "predicted.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((out / "predicted.json").read_text())
    return found


def push(daemon: Daemon, folder: Path, name: str, *words: str) -> None:
    done = export(folder, *words, "--push", name, "--target", daemon.unix)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"model {name} serves" in done.stdout


def served(daemon: Daemon, name: str, picture: Path, score: float = THRESHOLD) -> Result:
    with daemon.client() as client:
        return client.infer(name, picture.read_bytes(), score=score, iou=IOU, max_detections=MOST)


def overlap(one: Any, other: Any) -> float:
    left, top = np.maximum(one[:2], other[:2])
    right, bottom = np.minimum(one[2:4], other[2:4])
    both = max(0.0, right - left) * max(0.0, bottom - top)
    areas = [(each[2] - each[0]) * (each[3] - each[1]) for each in (one, other)]
    return float(both / (sum(areas) - both + 1e-9))


def pairs(expected: list[list[float]], found: tuple[Detection, ...], side: int = SIDE) -> list[tuple[int, Detection]]:
    """Match boxes of equal class and place; fail unless nearly all have a partner with the same score. If there are
    more than a daemon returns, the best are matched."""
    assert len(expected) > 5, "the network finds too little to prove anything"
    if len(found) == MOST:
        expected = sorted(expected, key=lambda row: -row[4])[: MOST * 4 // 5]
    else:
        assert abs(len(expected) - len(found)) <= 0.04 * len(expected), (len(expected), len(found))
    left, matched = list(found), []
    for number, row in enumerate(expected):
        box = [*np.clip(row[:4], 0, side), *row[4:]]  # oriented boxes may reach out of the picture
        near = [d for d in left if d.class_id == int(box[5]) and overlap(box, (d.x1, d.y1, d.x2, d.y2)) > 0.95]
        partner = min(near, key=lambda d: abs(d.score - box[4]), default=None)
        if partner is not None and abs(partner.score - box[4]) < 0.01:
            left.remove(partner)
            matched.append((number, partner))
    assert len(matched) >= 0.96 * len(expected), (len(matched), len(expected))
    return matched


def same_keypoints(answer: dict[str, Any], number: int, found: Detection, result: Result) -> bool:
    mine = np.array(found.keypoints)[:, :2]
    return bool(np.abs(np.array(answer["keypoints"][number]) - mine).max() < 1.5)


def same_corners(answer: dict[str, Any], number: int, found: Detection, result: Result) -> bool:
    distances = np.linalg.norm(np.array(answer["corners"][number])[:, None] - np.array(found.corners)[None], axis=-1)
    return bool(distances.min(1).max() < 2)


def same_area(answer: dict[str, Any], number: int, found: Detection, result: Result) -> bool:
    pixels = result.mask(found)
    assert pixels is not None
    mine, theirs = int(pixels.sum()), answer["areas"][number]
    return abs(mine - theirs) <= max(20, 0.05 * theirs)


@torch_only
@pytest.mark.parametrize(
    ("suffix", "is_same"), [("", None), ("-seg", same_area), ("-pose", same_keypoints), ("-obb", same_corners)]
)
def test_ultralytics(
    daemon: Daemon, picture: Path, tmp_path: Path, suffix: str, is_same: Callable[..., bool] | None
) -> None:
    make("ultralytics", f"yolo11n{suffix}.yaml", str(tmp_path / "best.pt"), str(picture))
    answer = predicted("ultralytics", tmp_path / "best.pt", picture, out=tmp_path)
    push(daemon, tmp_path, f"yolo{suffix}", str(tmp_path / "best.pt"), "--imgsz", "160")
    result = served(daemon, f"yolo{suffix}", picture)
    matched = pairs(answer["boxes"], result.detections)
    if is_same is not None:
        same = [is_same(answer, number, found, result) for number, found in matched]
        assert sum(same) >= 0.95 * len(same), same


def same_classes(scores: list[float], result: Result, within: float) -> None:
    best = int(np.argmax(scores))
    assert result.classes[0].class_id == best
    for each in result.classes:
        assert abs(each.score - scores[each.class_id]) < within, (each, scores[each.class_id])


@torch_only
def test_ultralytics_classify(daemon: Daemon, picture: Path, tmp_path: Path) -> None:
    make("ultralytics", "yolo11n-cls.yaml", str(tmp_path / "best.pt"), str(picture))
    answer = predicted("ultralytics", tmp_path / "best.pt", picture, out=tmp_path)
    push(daemon, tmp_path, "yolo-cls", str(tmp_path / "best.pt"), "--imgsz", "160")
    same_classes(answer["scores"], served(daemon, "yolo-cls", picture, 0.0), 0.001)


@torch_only
@pytest.mark.parametrize(("package", "name"), [("timm", "mobilenetv3_small_050"), ("torchvision", "squeezenet1_1")])
def test_classifiers(daemon: Daemon, picture: Path, tmp_path: Path, package: str, name: str) -> None:
    weights = str(tmp_path / "weights.pth")
    make(package, name, weights)
    answer = predicted(package, f"{name}|{weights}", picture, out=tmp_path)
    push(daemon, tmp_path, package, f"{package}:{name}", "--weights", weights)
    # The framework resizes with Pillow, which smooths.
    same_classes(answer["scores"], served(daemon, package, picture, 0.0), 0.02)


@torch_only
@pytest.mark.parametrize("function", ["hugging_face", "d_fine"])
def test_hugging_face(daemon: Daemon, picture: Path, tmp_path: Path, function: str) -> None:
    make(function, str(tmp_path / "hf"))
    answer = predicted("hugging_face", tmp_path / "hf", picture, out=tmp_path)
    push(daemon, tmp_path, function, str(tmp_path / "hf"), "--imgsz", "160")
    pairs(answer["boxes"], served(daemon, function, picture).detections)


@torch_only
def test_rfdetr(daemon: Daemon, tmp_path: Path) -> None:
    # The size of the input: this network of random weights changes its scores by 0.1 if a resized pixel is rounded.
    picture = drawn(tmp_path, 384)
    make("rfdetr", str(tmp_path / "best.pth"))
    answer = predicted("rfdetr", tmp_path / "best.pth", picture, out=tmp_path)
    push(daemon, tmp_path, "rfdetr", "rfdetr:nano", "--weights", str(tmp_path / "best.pth"))
    pairs(answer["boxes"], served(daemon, "rfdetr", picture).detections, 384)


@torch_only
@pytest.mark.parametrize("package", ["sklearn", "lightgbm", "xgboost"])
def test_estimators(daemon: Daemon, tmp_path: Path, package: str) -> None:
    rows = np.random.default_rng(5).random((8, 4)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    make("estimator", package, str(tmp_path / "model.joblib"))
    answer = predicted("estimator", tmp_path / "model.joblib", tmp_path / "rows.npy", out=tmp_path)
    push(daemon, tmp_path, package, str(tmp_path / "model.joblib"), "--trust")
    same_values(daemon, package, rows, answer["values"])


@pytest.mark.skipif(not TENSORFLOW, reason="TensorFlow is not installed: make test-export")
@pytest.mark.parametrize("name", ["model.keras", "saved"])
def test_keras(daemon: Daemon, tmp_path: Path, name: str) -> None:
    pictures = np.random.default_rng(5).random((1, 64, 64, 3)).astype(np.float32)
    np.save(tmp_path / "pictures.npy", pictures)
    make("keras", str(tmp_path / "model.keras"), python=TENSORFLOW)
    make("keras", str(tmp_path / name), python=TENSORFLOW)
    answer = predicted("keras", tmp_path / "model.keras", tmp_path / "pictures.npy", out=tmp_path, python=TENSORFLOW)
    push(daemon, tmp_path, name, str(tmp_path / name), "--python", TENSORFLOW)
    same_values(daemon, name, pictures, answer["values"])


@pytest.mark.skipif(not PADDLE, reason="PaddlePaddle is not installed: make test-export")
def test_paddle(daemon: Daemon, tmp_path: Path) -> None:
    pictures = np.random.default_rng(5).random((1, 3, 64, 64)).astype(np.float32)
    np.save(tmp_path / "pictures.npy", pictures)
    make("paddle", str(tmp_path / "model"), python=PADDLE)
    answer = predicted("paddle", tmp_path / "model", tmp_path / "pictures.npy", out=tmp_path, python=PADDLE)
    push(daemon, tmp_path, "paddle", str(tmp_path / "model"), "--imgsz", "64", "--python", PADDLE)
    same_values(daemon, "paddle", pictures, answer["values"])


def same_values(daemon: Daemon, name: str, given: Any, expected: list[float]) -> None:
    with InferenceServerClient(daemon.unix) as client:
        model = client.get_model_metadata(name)
        asked = InferInput(model.inputs[0].name, list(given.shape), "FP32")
        asked.set_data_from_numpy(given)
        answer = client.infer(name, [asked])
        outputs = [answer.as_numpy(each.name) for each in model.outputs]
    found = next(each for each in outputs if each.size == len(expected) and each.dtype.kind == "f")
    np.testing.assert_allclose(found.ravel(), expected, atol=1e-5)

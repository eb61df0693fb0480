"""From a framework to a file that a real daemon serves. `make test-export` installs the frameworks.

Every network is small and has seeded weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.integration.daemon import Daemon


def framework_python(variable: str) -> str:
    """Return the Python of a framework, as `make test-export` names it; empty if it is not installed."""
    place = os.environ.get(variable, "")
    return place if os.access(place, os.X_OK) else ""


PYTHON = framework_python("EDGED_EXPORT_PYTHON")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="the frameworks are not installed: make test-export"),
    pytest.mark.timeout(900),
]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(listen=("unix:HOME/edged.sock",)) as found:
        yield found


def export(folder: Path, *words: str, cwd: Path = HERE) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("edged")), "export", *words]
    if "--python" not in words:
        command += ["--python", PYTHON]
    if "-o" not in words:
        command += ["-o", str(folder / "model.onnx")]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=cwd)


def exported(folder: Path, *words: str, cwd: Path = HERE) -> onnx.ModelProto:
    done = export(folder, *words, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answers as the framework on" in done.stdout
    return onnx.load(folder / "model.onnx")


def make(*words: str, python: str = PYTHON) -> None:
    """Run a function of `make_models.py` in the framework's Python."""
    environment = {**os.environ, "YOLO_AUTOINSTALL": "false", "YOLO_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    command = [python, str(HERE / "make_models.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr


def opset(model: onnx.ModelProto) -> int:
    return next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


def test_module_opset_and_batch_are_as_asked(tmp_path: Path) -> None:
    model = exported(tmp_path, "networks:small", "--imgsz", "64", "--opset", "13", "--dynamic", "batch")
    assert opset(model) == 13
    shape = model.graph.input[0].type.tensor_type.shape.dim
    assert shape[0].dim_param
    assert [each.dim_value for each in shape[1:]] == [3, 64, 64]
    assert {entry.key: entry.value for entry in model.metadata_props}["edged.names"] == "a,b,c,d,e"
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert str(HERE).encode() not in (tmp_path / "model.onnx").read_bytes()


def test_module_is_pushed_and_serves_with_its_classes(daemon: Daemon, tmp_path: Path) -> None:
    done = export(tmp_path, "networks:small", "--imgsz", "64", "--push", "small", "--target", daemon.unix, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["served"]["model"] == "small"
    with daemon.client() as client:
        result = client.infer("small", np.full((64, 64, 3), 90, np.uint8))
    assert {each.label for each in result.classes} <= set("abcde")


def test_wrong_resize_is_found_with_the_module(tmp_path: Path) -> None:
    done = export(tmp_path, "networks:resizing", "--imgsz", "64")
    assert done.returncode == 1
    assert "is not proven to give the answers of torch" in done.stderr
    assert "the first module that differs is enlarge" in done.stderr
    assert not (tmp_path / "model.onnx").exists()


def test_lost_batch_is_found(tmp_path: Path) -> None:
    done = export(tmp_path, "networks:fixed", "--imgsz", "32", "--dynamic", "batch")
    assert done.returncode == 1
    assert "the exported file takes only one size of dimension 0" in done.stderr


def test_branch_that_a_trace_would_lose_is_named(tmp_path: Path) -> None:
    done = export(tmp_path, "networks:branching", "--imgsz", "32")
    assert done.returncode != 0
    assert "networks.py:" in done.stderr
    assert "torch.where" in done.stderr


def test_module_that_takes_something_else_gets_a_hint(tmp_path: Path) -> None:
    done = export(tmp_path, "networks:two", "--imgsz", "32")
    assert done.returncode != 0
    assert "example_inputs" in done.stderr


def test_half(tmp_path: Path) -> None:
    model = exported(tmp_path, "networks:small", "--imgsz", "64", "--half")
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_rows_in_another_order_are_no_difference(tmp_path: Path) -> None:
    exported(tmp_path, "networks:topk", "--imgsz", "64")


@pytest.mark.parametrize("name", ["online", "writing"])
def test_source_can_neither_reach_the_network_nor_write(tmp_path: Path, name: str) -> None:
    done = export(tmp_path, f"networks:{name}", "--imgsz", "64")
    assert done.returncode == 1
    assert "PermissionError" in done.stderr
    assert not (HERE / "written").exists()


def test_missing_framework_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.joblib").touch()
    command = [str(Path(sys.executable).with_name("edged")), "export", str(tmp_path / "model.joblib"), "--trust"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "-m pip install scikit-learn skl2onnx onnxmltools" in done.stderr


@pytest.mark.parametrize("task", ["detect", "segment", "pose", "obb", "classify"])
def test_ultralytics(tmp_path: Path, task: str) -> None:
    suffix = {"detect": "", "segment": "-seg", "pose": "-pose", "obb": "-obb", "classify": "-cls"}[task]
    make("ultralytics", f"yolo11n{suffix}.yaml", str(tmp_path / "best.pt"))
    model = exported(tmp_path, str(tmp_path / "best.pt"), "--imgsz", "160", "--opset", "17")
    assert opset(model) == 17
    assert {entry.key: entry.value for entry in model.metadata_props}["task"] == task


def test_code_in_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    make("evil", str(tmp_path / "evil.pt"), str(tmp_path / "executed"))
    done = export(tmp_path, str(tmp_path / "evil.pt"))
    assert done.returncode == 1
    assert "without executing code" in done.stderr
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(("package", "name"), [("timm", "mobilenetv3_small_050"), ("torchvision", "squeezenet1_1")])
def test_classifiers_by_name_with_weights(tmp_path: Path, package: str, name: str) -> None:
    make(package, name, str(tmp_path / "weights.pth"))
    model = exported(tmp_path, f"{package}:{name}", "--weights", str(tmp_path / "weights.pth"))
    settings = {entry.key: entry.value for entry in model.metadata_props}
    assert settings["edged.family"] == "classification"
    assert model.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 7


def test_hugging_face_folder(tmp_path: Path) -> None:
    make("hugging_face", str(tmp_path / "hf"))
    model = exported(tmp_path, str(tmp_path / "hf"), "--imgsz", "160")
    assert [each.name for each in model.graph.output] == ["logits", "pred_boxes"]


@pytest.mark.parametrize("package", ["sklearn", "lightgbm"])
def test_estimators_only_with_trust(tmp_path: Path, package: str) -> None:
    make("estimator", package, str(tmp_path / "model.joblib"))
    done = export(tmp_path, str(tmp_path / "model.joblib"))
    assert done.returncode == 1
    assert "--trust" in done.stderr
    exported(tmp_path, str(tmp_path / "model.joblib"), "--trust", "--opset", "15")

"""`edged inspect --draw`: detections on one picture, drawn and counted, or raw outputs."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from edged.cli import sample_run
from edged.cli.app import app
from edged.shapes import CLASSES, MODEL_PATH, Scene
from edged.tensors import TensorSpec
from edged.vision import contact_sheet
from tests import ensemble_files, models
from tests.integration import onnx_files
from tests.unit.test_user_samples import choosy, npz
from tests.vision_encoders import Planted
from tests.vision_exports import EXPORTS, Export
from tests.vision_graphs import graph

pytestmark = pytest.mark.timeout(180)

PICTURE, TRUTHS = Scene(5, 960, 540).frame(3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a picture and a separate home."""
    monkeypatch.chdir(tmp_path)
    for variable in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    cv2.imwrite(str(tmp_path / "street.png"), PICTURE)
    return tmp_path


def call(*line: str | Path) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, line)])


def rows(result: Result) -> dict[str, str]:
    split = (line.split("  ", 1) for line in result.stdout.splitlines())
    return {name: rest[0].strip() if rest else "" for name, *rest in split}


def test_draw_counts_and_paints_detections(folder: Path) -> None:
    result = call(MODEL_PATH, "--draw", "street.png")
    assert (result.exit_code, result.stderr) == (0, "")
    shown = rows(result)
    assert shown["family"].startswith("ultralytics: metadata task=detect")
    assert shown["drawn"] == "street.shapes.jpg"
    painted = cv2.imread(str(folder / "street.shapes.jpg"))
    assert painted.shape == PICTURE.shape
    difference = np.abs(PICTURE.astype(int) - painted)
    for truth in TRUTHS:
        assert f"1 {CLASSES[truth.class_id]}" in shown["found"]
        box = difference[round(truth.y1) : round(truth.y2), round(truth.x1) : round(truth.x2)]
        assert box.mean() > 3, "a frame and a tint"


def test_draw_json_has_the_detections(folder: Path) -> None:
    result = call(MODEL_PATH, "--draw", "street.png", "--out", "seen.png", "--json", "--set", "thresholds.score=0.5")
    assert result.exit_code == 0
    seen = json.loads(result.stdout)["seen"]
    assert seen["drawn"] == "seen.png"
    assert seen["counts"] == {CLASSES[truth.class_id]: 1 for truth in TRUTHS}
    assert seen["found"]["image"] == {"width": 960, "height": 540}
    assert len(seen["found"]["predictions"]) == len(TRUTHS)
    assert (folder / "seen.png").exists()
    assert "seen" not in json.loads(call(MODEL_PATH, "--json").stdout)


def test_config_beside_the_file_gives_family_and_names(folder: Path) -> None:
    export = EXPORTS["transformers, detr"]
    path = graph(export, export.encode([[Planted((20, 30, 120, 90), 1, 0.9)]]), folder / "onnx" / "model.onnx")
    labels = {str(number): f"thing {number}" for number in range(5)}
    (folder / "config.json").write_text(json.dumps({"model_type": "detr", "id2label": labels}))
    result = call(path, "--draw", "street.png")
    assert rows(result)["family"] == "detr: the setting family=detr"
    assert rows(result)["found"].startswith("1 thing 1 (")
    assert "settings from config.json and preprocessor_config.json: family, names" in result.stdout
    given = call(path, "--set", "family=raw")
    assert rows(given)["family"] == "raw tensors: the setting family=raw"
    assert "config.json" not in given.stdout


# --- all families that accept a model


def six_columns(folder: Path) -> Path:
    """Write a model whose six columns may be of several families; its boxes are right as xyxy in input pixels."""
    export = EXPORTS["ultralytics, nms-free"]
    answer = export.encode([[Planted((20, 30, 120, 90), 1, 0.9)]])
    return graph(dataclasses.replace(export, metadata={}), answer, folder / "six.onnx")


def test_try_all_draws_a_tile_for_each_family(folder: Path) -> None:
    result = call(six_columns(folder), "--draw", "street.png", "--try-all")
    assert (result.exit_code, result.stderr) == (0, "")
    shown = rows(result)
    assert shown["drawn"] == "street.six.families.jpg"
    tried = [name for name in shown if name.startswith("family=")]
    assert tried[:2] == ["family=ultralytics-end2end", "family=rtdetr-ultralytics decode.scores=best"]
    assert "family=deepstream-yolo" in tried
    assert shown["family=ultralytics-end2end"].startswith("1 found: 1 90%")
    sheet = cv2.imread("street.six.families.jpg")
    assert sheet.shape[1] > 3 * contact_sheet.SIDE, "several tiles side by side"


def test_try_all_ignores_the_family_of_a_file_next_to_the_model(folder: Path) -> None:
    export = EXPORTS["transformers, detr"]
    path = graph(export, export.encode([[Planted((20, 30, 120, 90), 1, 0.9)]]), folder / "model.onnx")
    (folder / "config.json").write_text(json.dumps({"model_type": "detr", "id2label": {"1": "thing"}}))
    result = call(path, "--draw", "street.png", "--try-all")
    assert (result.exit_code, result.stderr) == (0, "")
    assert {"family=detr", "family=deformable-detr", "family=rtdetr-transformers"} <= set(rows(result))


def test_try_all_json_has_settings_counts_and_scores(folder: Path) -> None:
    result = call(six_columns(folder), "--draw", "street.png", "--try-all", "--out", "all.jpg", "--json")
    printed = json.loads(result.stdout)
    assert printed["between"] == ["ultralytics-end2end", "rtdetr-ultralytics", "deepstream-yolo"]
    first = printed["tried"]["families"][0]
    assert (first["settings"], first["count"], first["error"]) == ({"family": "ultralytics-end2end"}, 1, "")
    assert first["best"] == ["1 90%"]
    assert printed["tried"]["drawn"] == "all.jpg"
    assert Path("all.jpg").stat().st_size


def test_try_all_family_that_fails_has_its_error(folder: Path) -> None:
    export = EXPORTS["ultralytics, nms-free"]
    whole = export.encode([[Planted((20, 30, 120, 90), 1, 0.9)]])
    table = next(iter(whole))
    open_rows = (TensorSpec(table, "FP32", ("n", "rows", "columns")),)
    path = graph(dataclasses.replace(export, outputs=open_rows, metadata={}), whole, folder / "open.onnx")
    shown = rows(call(path, "--draw", "street.png", "--try-all"))
    failed = [line for name, line in shown.items() if name.startswith("family=") and " found" not in line]
    assert failed
    assert all(line and "\n" not in line for line in failed)


def test_try_all_without_an_accepting_family_says_so_in_one_line(folder: Path) -> None:
    specs = (TensorSpec("y", "FP32", (1, 7, 9, 11, 2)),)
    answer = {"y": np.zeros((1, 7, 9, 11, 2), np.float32)}
    path = graph(Export("ssd", specs, lambda _: answer), answer, folder / "five.onnx")
    result = call(path, "--draw", "street.png", "--try-all")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "no family" in rows(result)["tried"]
    assert not list(folder.glob("*.jpg"))
    assert json.loads(call(path, "--draw", "street.png", "--try-all", "--json").stdout)["tried"]["families"] == []


@pytest.mark.parametrize("name", ["transformers, owlvit", "transformers, grounding dino"])
def test_try_all_of_prompted_model_asks_for_the_prompts(folder: Path, name: str) -> None:
    export = EXPORTS[name]
    path = graph(export, export.encode([[Planted((20, 30, 120, 90), 1, 0.9)]]), folder / "prompted.onnx")
    result = call(path, "--draw", "street.png", "--try-all", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert told["tried"]["families"] == []
    assert "set prompts, for example prompts = " in json.dumps(told)
    shown = " ".join(call(path, "--draw", "street.png", "--try-all").stdout.split())
    assert "no family can be tried: " in shown
    assert "set prompts, for example" in shown.partition("no family can be tried: ")[2]


def test_draw_nothing_found_names_a_setting(folder: Path) -> None:
    cv2.imwrite("empty.png", np.full((240, 320, 3), 114, np.uint8))
    shown = rows(call(MODEL_PATH, "--draw", "empty.png"))
    assert shown["found"].startswith("nothing; for less certain detections: --set thresholds.score=")
    assert (folder / "empty.shapes.jpg").exists()


def test_draw_raw_outputs_have_shape_and_range(folder: Path) -> None:
    result = call(MODEL_PATH, "--draw", "street.png", "--set", "family=raw")
    shown = rows(result)
    assert shown["output output0"].startswith("float32[1, 9, 2100], ")
    assert " mean " in shown["output output0"]
    assert "drawn" not in shown
    assert not (folder / "street.shapes.jpg").exists()


# --- models of other tasks, with planted answers

ROWS = {
    "segment": (270, 120, 370, 220, 0.9, 1, 1.0),
    "pose": (270, 120, 370, 220, 0.9, 1, 300, 150, 0.75, 340, 200, 0.5),
    "obb": (320, 170, 100, 50, 0.9, 1, 0.5),
}
NAMES = "{0: 'ship', 1: 'plane'}"


def model_of(task: str, path: Path) -> Path:
    """Write a model of 640x360 that answers one detection of its task, as rows, to every picture."""
    rows = np.zeros((1, 9, len(ROWS[task])), np.float32)
    rows[0, 0] = ROWS[task]
    outputs = {"output0": rows}
    metadata = {"task": task, "names": NAMES, "stride": "32", "imgsz": "[360, 640]", "end2end": "True"}
    if task == "pose":
        metadata["kpt_shape"] = "[2, 3]"
    if task == "segment":
        outputs["output1"] = np.where(np.arange(160) < 80, 1, -1).astype(np.float32) * np.ones((1, 1, 90, 160), "f4")
    specs = tuple(TensorSpec(name, "FP32", array.shape) for name, array in outputs.items())
    image = (TensorSpec("images", "FP32", (1, 3, 360, 640)),)
    return graph(Export(f"ultralytics-{task}", specs, lambda _: outputs, metadata, inputs=image), outputs, path)


@pytest.mark.parametrize("task", ROWS)
def test_draw_masks_keypoints_and_oriented_boxes(folder: Path, task: str) -> None:
    plain = np.zeros((720, 1280, 3), np.uint8)  # twice the input
    cv2.imwrite("plain.png", plain)
    result = call(model_of(task, folder / "model.onnx"), "--draw", "plain.png", "--out", "seen.png", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    printed = json.loads(result.stdout)
    assert printed["family"] == f"ultralytics-{task}"
    assert printed["seen"]["counts"] == {"plane": 1}
    (found,) = printed["seen"]["found"]["predictions"]
    assert (found["x"], found["y"]) == (640, 340)
    if task == "segment":
        assert {point["x"] for point in found["points"]} == {540, 639}, "the left half of the prototypes"
    elif task == "pose":
        assert [(p["x"], p["y"], p["confidence"]) for p in found["keypoints"]] == [(600, 300, 0.75), (680, 400, 0.5)]
    else:
        middle = np.mean([(p["x"], p["y"]) for p in found["points"]], axis=0)
        assert np.allclose(middle, (640, 340), atol=1e-3)
    assert cv2.imread("seen.png").any(), "something is painted; test_vision_draw.py tests what"


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        (("--out", "x.jpg"), 2, "--out needs --draw PICTURE"),
        (("--draw", "street.png", "--out", "street.png"), 2, "is the input picture"),
        (("--draw", "street.png", "--out", "x.txt"), 2, "not the name of an image file"),
        (("--draw", "street.png", "--out", "nowhere/x.png"), 2, "cannot be written"),
        (("--try-all",), 2, "--try-all needs --draw PICTURE"),
        (("--draw", "street.png", "--try-all", "--set", "family=yolox"), 2, "leave out --set family"),
        (("--draw", "street.png", "--try-all", "--out", "x.png"), 2, "ends in .jpg"),
        (("--draw", "street.png", "--try-all", "--out", "nowhere/x.jpg"), 2, "nowhere/x.jpg"),
        (("--draw", "missing.png", "--try-all"), 2, "missing.png"),
        (("--draw", "junk.png", "--try-all"), 2, "junk.png"),
        (("--draw", "missing.png"), 1, "missing.png"),
        (("--draw", "junk.png"), 2, "not a picture"),
    ],
)
def test_draw_wrong_arguments_fail_in_one_line(folder: Path, line: tuple[str, ...], status: int, words: str) -> None:
    (folder / "junk.png").write_bytes(b"no picture")
    result = call(MODEL_PATH, *line)
    assert result.exit_code == status
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def crash(*_: object) -> None:
    """Crash the child instead of doing its work."""
    os.kill(os.getpid(), signal.SIGSEGV)


def vanish(*_: object) -> None:
    os._exit(7)


@pytest.mark.parametrize(("work", "words"), [(crash, "crashed (SIGSEGV)"), (vanish, "ended with status 7")])
def test_draw_runtime_that_crashes_fails_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, work: object, words: str
) -> None:
    monkeypatch.setattr(sample_run, "_look", work)
    result = call(MODEL_PATH, "--draw", "street.png")
    assert result.exit_code == 1
    remedy = "update onnxruntime and other installed runtimes"
    assert result.stderr == f"edged: the process that ran shapes.onnx {words}; {remedy}\n"


def test_output_range_leaves_out_nan_and_infinity() -> None:
    found = sample_run.output_range("scores", np.array([[1.0, np.nan], [3.0, np.inf]], np.float32))
    assert found == sample_run.RawOutput("scores", "float32", (2, 2), 1.0, 3.0, 2.0, 2)
    assert sample_run.output_range("x", np.full(3, np.nan)) == sample_run.RawOutput("x", "float64", (3,), not_finite=3)
    assert sample_run.output_range("x", np.array([b"a"], object)) == sample_run.RawOutput("x", "object", (1,))
    assert sample_run.output_range("x", np.empty((0, 6), np.int64)) == sample_run.RawOutput("x", "int64", (0, 6))


def test_place_for_default_or_given_name_returns_the_path() -> None:
    assert sample_run.place_for(Path("a/street.png"), Path("b/yolo.onnx"), None) == Path("street.yolo.jpg")
    assert sample_run.place_for(Path("street.png"), Path("yolo.onnx"), Path("x/y.PNG")) == Path("x/y.PNG")


def test_inspect_uses_the_given_samples(folder: Path) -> None:
    path = models.save(choosy(50, 70), folder / "choosy.onnx")
    alone = call(path, "--json")
    assert alone.exit_code == 2
    assert "--samples INPUTS.npz" in json.loads(alone.stdout)["remedy"]
    given = call(path, "--json", "--samples", npz(folder / "ask.npz", x=[50, 70]))
    assert (given.exit_code, json.loads(given.stdout)["ok"]) == (0, True)
    unfit = call(path, "--samples", folder / "ask.npz", "--samples", "street.png")
    assert unfit.exit_code == 2
    assert "this model takes no pictures" in unfit.stderr


def test_inspect_implausible_family_is_a_warning(folder: Path) -> None:
    queries = {"boxes": np.full((1, 100, 4), 40, np.float32), "logits": np.full((1, 100, 92), 7, np.float32)}
    specs = tuple(TensorSpec(name, "FP32", array.shape) for name, array in queries.items())
    image = (TensorSpec("x", "FP32", (1, 3, 64, 64)),)
    path = graph(Export("ssd", specs, lambda _: queries, inputs=image), queries, folder / "detr.onnx")
    result = call(path, "--set", "family=ssd")
    assert (result.exit_code, "family=ssd" in rows(result)["warning"]) == (0, True)
    printed = json.loads(call(path, "--set", "family=ssd", "--json").stdout)
    assert [warning["category"] for warning in printed["warnings"]] == ["implausible"]


def test_inspect_folder_of_an_ensemble_shows_its_models(folder: Path) -> None:
    for name in "ab":
        (folder / name / "1").mkdir(parents=True)
        onnx_files.scale(folder / name / "1" / "model.onnx", 2.0)
    ensemble_files.write(folder, "e", ensemble_files.config(ensemble_files.CHAIN))
    ensemble_files.write(folder, "lost", ensemble_files.config([("zz", "x=X", "y=Y")]))
    found = rows(call(folder / "e"))
    assert (found["ensemble of"], found["verdict"]) == ("a, b", "the models of the ensemble fit together")
    assert (found["inputs"], found["outputs"]) == ("X FP32[1, 4]", "Y FP32[1, 4]")
    refused = call(folder / "lost", "--json")
    assert refused.exit_code == 2
    facts = json.loads(refused.stdout)
    assert (facts["ok"], facts["parts"], facts["message"]) == (False, ["zz"], "no model 'zz'")
    assert call(folder / "a").exit_code == 2, "a folder of another model is not a file"

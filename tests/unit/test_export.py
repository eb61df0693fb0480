"""`edged export` without a framework: sources, targets, what was written, and the comparison of answers."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edged.api_types import RuntimeSupport
from edged.errors import InvalidInput, Refused, Unsupported
from edged.export import source
from edged.export.proof import Answers, first_difference, prove
from edged.export.source import find, globals_of
from edged.export.targets import Limits, intersection, unlike, versions_beyond
from edged.ipc import job_messages as jobs
from edged.jobs.exported import finish, module_of
from edged.jobs.inspect import inspect
from edged.models.inspection import Inspection
from edged.tensors import Array
from edged.verification.golden import Sample
from edged.vision.settings import from_metadata
from tests import models


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def checkpoint(path: Path, content: object) -> Path:
    """Write a file like those of torch.save."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(content, 2))
    return path


# -- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("timm:resnet18", "timm", "resnet18"),
        ("torchvision:resnet18", "torchvision", "resnet18"),
        ("my.package:make", "torch_module", "my.package:make"),
        ("my.package:Models.small", "torch_module", "my.package:Models.small"),
    ],
)
def test_find_names(text: str, kind: str, name: str) -> None:
    assert find(text)[:2] == (kind, name)


def test_find_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").touch()
    assert find(str(tmp_path / "hf")).kind == "huggingface"
    for name in ("a.pkl", "a.joblib"):
        (tmp_path / name).touch()
        assert find(str(tmp_path / name)).kind == "sklearn"


@pytest.mark.parametrize("text", ["nothing.pt", "a b:c", "/no/such", "1x:y", "model.onnx"])
def test_find_nothing(text: str) -> None:
    with pytest.raises(InvalidInput, match="neither a file nor a model"):
        find(text)


def test_find_refuses_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").touch()
    with pytest.raises(InvalidInput, match="edged models add"):
        find(str(tmp_path / "a.onnx"))
    (tmp_path / "a.pt").write_bytes(b"no zip")
    with pytest.raises(Refused, match="not a checkpoint of torch"):
        find(str(tmp_path / "a.pt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=r"has neither config\.json"):
        find(str(tmp_path / "empty"))


def test_code_in_a_checkpoint_is_named_and_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = checkpoint(tmp_path / "evil.pt", {"model": Evil()})
    assert globals_of(path) == ["posix.system"]
    with pytest.raises(Refused, match="has classes of posix, not an Ultralytics model"):
        find(str(path))
    assert not (tmp_path / "executed").exists()


def test_checkpoint_with_much_other_data_is_refused_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_LARGEST", 10)
    with zipfile.ZipFile(tmp_path / "large.pt", "w") as archive:
        archive.writestr("large/data.pkl", b"x" * 11)
    with pytest.raises(Refused, match="pkl") as refused:
        globals_of(tmp_path / "large.pt")
    assert "not a checkpoint" not in str(refused.value)


# -- targets ---------------------------------------------------------------------------------------------------------


def test_intersection_of_boxes_is_what_all_runtimes_take() -> None:
    old = [RuntimeSupport("onnxruntime", "1.18", 21, 10), RuntimeSupport("tensorrt", "8.6", 17, 64)]
    new = [RuntimeSupport("onnxruntime", "1.32", 28, 14), RuntimeSupport("openvino", problem="broken")]
    assert intersection({"new": new}) == Limits(28, 14, "onnxruntime 1.32 on new")
    assert intersection({"new": new, "old": old}) == Limits(17, 10, "tensorrt 8.6 on old")
    assert intersection({}) == Limits()
    with pytest.raises(Unsupported, match="ONNX Runtime does not work on dock"):
        intersection({"dock": [RuntimeSupport("openvino", "1", 64, 64)]})


def test_settings_in_metadata_are_those_for_pictures_only() -> None:
    metadata = {"edged.family": "yolox", "edged.threads": "8", "edged.": "x", "family": "ssd", "edged.names": "a,b"}
    assert from_metadata(metadata) == {"family": "yolox", "names": "a,b"}


# -- comparison ------------------------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(5)
OUTPUT = RANDOM.standard_normal((1, 100, 6)).astype(np.float32)


def answers(file: Array, framework: Array, moved: Array) -> list[Answers]:
    return [Answers(Sample({}, {"y": file}, "unit"), {"y": framework}, {"y": moved})]


def moved(by: float) -> Array:
    return (OUTPUT * (1 + by * RANDOM.standard_normal(OUTPUT.shape))).astype(np.float32)


def test_proof_of_elements() -> None:
    proof = prove(answers(moved(1e-6), OUTPUT, moved(1e-7)), None)
    assert (proof.by, proof.problem, proof.inputs) == ("elements", "", 1)
    assert proof.worst.allowed == pytest.approx(2e-5)


@pytest.mark.parametrize("by", [1e-3, 0.1])
def test_proof_finds_differences_that_noise_does_not_explain(by: float) -> None:
    proof = prove(answers(moved(by), OUTPUT, moved(1e-7)), None)
    assert "output 'y' for unit noise differs by" in proof.problem


def test_proof_allows_as_much_as_the_framework_moves_itself() -> None:
    assert not prove(answers(moved(1e-3), OUTPUT, moved(1e-4)), None).problem


def test_proof_of_rows_in_another_order_compares_sorted_values() -> None:
    order = RANDOM.permutation(100)
    proof = prove(answers(OUTPUT[:, order], OUTPUT, moved(1e-7)), None)
    assert (proof.by, proof.problem) == ("sorted values", "")
    wrong = OUTPUT[:, order].copy()
    wrong[..., 2] *= 1.01
    assert prove(answers(wrong, OUTPUT, moved(1e-7)), None).problem


def test_proof_with_an_input_that_proves_nothing_says_so() -> None:
    proof = prove(answers(OUTPUT, OUTPUT, moved(0.1)), None)
    assert "--samples" in proof.problem


@pytest.mark.parametrize("file", [OUTPUT[:, :50], np.full_like(OUTPUT, np.nan)])
def test_proof_of_another_shape_or_nan_fails(file: Array) -> None:
    assert prove(answers(file, OUTPUT, OUTPUT), None).problem


def test_proof_of_labels() -> None:
    labels = np.array([b"cat", b"dog"] * 50, np.object_)
    same = np.array(["cat", "dog"] * 50)
    assert not prove(answers(labels, same, same), None).problem
    assert prove(answers(labels[::-1], same, same), None).problem


@pytest.mark.parametrize(
    ("framework", "file"), [([np.nan] * 3, [np.nan] * 3), ([np.inf, 1, 1], [np.nan, 1, 1]), ([], [])]
)
def test_answers_that_prove_nothing_are_no_proof(framework: list[float], file: list[float]) -> None:
    given, found = np.array(framework, np.float32), np.array(file, np.float32)
    assert prove(answers(found, given, given), None).problem


def test_answers_that_differ_from_run_to_run_are_no_proof() -> None:
    assert "two runs" in prove([Answers(Sample({}, {}), {}, {})], None).problem


def test_first_difference_is_the_first_after_the_last_that_agrees() -> None:
    layers = {f"model.{name}|3": RANDOM.standard_normal(3).astype(np.float32) for name in ("a", "b", "c", "d")}
    file = {name: values.copy() for name, values in layers.items()}
    file["model.a|3"] *= 2  # folded into b
    file["model.c|3"] *= 1.1
    file["model.d|3"] *= 1.2
    assert first_difference(layers, layers, file) == "c"
    assert first_difference(layers, layers, layers) is None
    assert first_difference(layers, layers, {}) is None


# -- what was written ------------------------------------------------------------------------------------------------


def inspection(folder: Path, shape: list[int | str], opset: int = 17) -> Inspection:
    inputs, outputs = ([models.value(name, "FP32", shape)] for name in "xy")
    proto = models.model(models.nodes("y = Relu(x)"), inputs, outputs, opset=opset)
    return inspect(models.save(proto, folder / "m.onnx"))


def test_versions_beyond(tmp_path: Path) -> None:
    found = inspection(tmp_path, [1, 3])
    assert versions_beyond(found, 17, Limits()) == versions_beyond(found, 18, Limits()) == ""
    assert versions_beyond(found, 13, Limits()) == "opset 17 instead of 13"
    assert "tensorrt on a supports 15" in versions_beyond(found, 0, Limits(15, 0, "tensorrt on a"))
    assert "IR version" in versions_beyond(found, 0, Limits(0, 3))


@pytest.mark.parametrize(
    ("shape", "opened", "words"),
    [
        ([1, 3, 64], {}, ""),
        (["n", 3, 64], {0: "batch"}, ""),
        (["n", 3, 64], {}, ""),
        ([1, 3, 64], {0: "batch"}, "(batch) of input 'x' is fixed to 1, not open"),
        ([1, 3, 32], {}, "has size 32 instead of 64"),
        ([1, 3], {}, "has 2 dimensions instead of 3"),
    ],
)
def test_unlike(tmp_path: Path, shape: list[int | str], opened: dict[int, str], words: str) -> None:
    problem = unlike(inspection(tmp_path, shape), {"x": ("float32", (1, 3, 64), opened)})
    assert words in problem
    assert bool(problem) == bool(words)
    assert "FP32 instead of float16" in unlike(inspection(tmp_path, shape), {"x": ("float16", (1, 3, 64), {})})


# -- the file --------------------------------------------------------------------------------------------------------


def test_finish_writes_one_file_with_metadata_and_without_traces(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    inputs, outputs = ([models.value(name, "FP32", [1, 64])] for name in "xy")
    proto = models.model(models.nodes("y = MatMul(x, w)"), inputs, outputs, [weights], metadata={"own": "1"})
    trace = 'File "/home/me/net.py", line 7, in forward'
    proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    source, out = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(proto, source, save_as_external_data=True, location="a.onnx.data", size_threshold=0)
    found = finish(jobs.FinishExport(str(source), str(out), {"edged.family": "yolox"}))
    assert found.sources == {"MatMul": "/home/me/net.py:7"}
    written = onnx.load(out, load_external_data=False)
    assert {entry.key: entry.value for entry in written.metadata_props} == {"own": "1", "edged.family": "yolox"}
    assert np.array_equal(numpy_helper.to_array(written.graph.initializer[0]), np.ones((64, 64), np.float32))
    assert b"/home/me" not in out.read_bytes()


def test_weights_beyond_one_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.jobs.exported._LARGE", 1000)
    inputs, outputs = ([models.value(name, "FP32", [1, 64])] for name in "xy")
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    proto = models.model(models.nodes("y = MatMul(x, w)"), inputs, outputs, [weights])
    onnx.save(proto, tmp_path / "large.onnx", save_as_external_data=True, size_threshold=0, location="large.onnx.data")
    finish(jobs.FinishExport(str(tmp_path / "large.onnx"), str(tmp_path / "out.onnx"), {}))
    assert (tmp_path / "out.onnx.data").exists()  # which `run` refuses


@pytest.mark.parametrize(
    ("name", "scopes", "expected"),
    [
        ("/features/features.0/features.0.1/Conv", "", "features.0.1"),
        ("/model/layer1/conv/Conv", "", "model.layer1.conv"),
        ("node_conv2d", "['', 'model', 'model.first', 'conv2d']", "model.first"),
        ("plain", "", ""),
        ("plain", "not a list", ""),
    ],
)
def test_module_of_a_node(name: str, scopes: str, expected: str) -> None:
    node = onnx.NodeProto(name=name)
    if scopes:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    assert module_of(node) == expected

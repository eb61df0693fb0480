"""Refusals of TensorRT for RTX: unsupported models, other devices, and damaged plans, which never reach the runtime."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from edged.backends import registry
from edged.backends.contract import Order, Recipe, Signature
from edged.backends.trt import load
from edged.config.child_limits import AdmissionLimits
from edged.device.fingerprint import Fingerprint
from edged.engines import offline, trials
from edged.engines.builder import Builder
from edged.errors import EdgedError, InvalidInput, Superseded, Unsuitable
from edged.ipc import job_messages as jobs
from edged.models.model import Model
from edged.shapes import MODEL_PATH
from edged.store.store import Store
from tests import models
from tests.integration.tensorrt_rtx import INSTALLED, ask, builder, conv, here, make, plenty, read, store
from tests.waiting import run

__all__ = ["builder", "store"]
pytestmark = [INSTALLED, pytest.mark.long]


# -- refusals -------------------------------------------------------------------------------------------------------


def refusal(builder: Builder, model: Model, **more: str) -> EdgedError:
    with pytest.raises(EdgedError) as raised:
        make(builder, model, **more)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500
    return raised.value


def check(model: Path) -> str:
    """Return why TensorRT for RTX refuses a model; empty if it accepts it."""
    job = jobs.Check(Order(str(model), Signature((), ()), Recipe("tensorrt_rtx")), {}, 7, {}, None)
    found = run(trials.attempt(job, AdmissionLimits(), 0.0), 60)
    return found.finding.message if found.finding is not None else ""


def unknown_operators(folder: Path) -> Path:
    """Return a chain with one unknown operator twice, and another unknown one."""
    make_node = onnx.helper.make_node
    nodes = [
        make_node("Frobnicate", ["x"], ["a"], "first", domain="nowhere"),
        make_node("Relu", ["a"], ["b"], "fine"),
        make_node("Bogus", ["b"], ["c"], "second", domain="nowhere"),
        make_node("Frobnicate", ["c"], ["y"], "third", domain="nowhere"),
    ]
    edges = [models.value("x", "FP32", [1, 4])], [models.value("y", "FP32", [1, 4])]
    return models.save(models.model(nodes, *edges, domains={"nowhere": 1}), folder / "model.onnx")


def test_check_unsupported_operators_are_counted_and_named(builder: Builder, store: Store, tmp_path: Path) -> None:
    output = check(unknown_operators(tmp_path))
    assert output == (
        "TensorRT-RTX does not support 3 nodes of model.onnx: "
        "Frobnicate 2x (first, third): no such operator; Bogus (second): no such operator"
    )
    assert isinstance(refusal(builder, read(unknown_operators(tmp_path))), Unsuitable)
    assert store.records() == {}
    assert [p.name for p in (tmp_path / "cache" / "staging").iterdir() if p.is_dir()] == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "finds no output"),
        (b"garbage" * 50, "Failed to parse the ONNX model"),
        (b"\x08\x0a" * 50, "refuses model.onnx|finds no output"),
    ],
)
def test_check_invalid_file_is_refused_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    output = check(tmp_path / "model.onnx")
    assert any(word in output for word in words.split("|")), output
    assert "\n" not in output


def test_truncated_model_is_refused_or_accepted_without_a_crash(tmp_path: Path) -> None:
    whole = models.conv().SerializeToString()
    answer = ask(
        f"""
whole, path, answer = bytes.fromhex({whole.hex()!r}), Path({str(tmp_path / "cut.onnx")!r}), {{"taken": 0, "refused": 0}}
for length in range(0, len(whole), 7):
    path.write_bytes(whole[:length])
    try:
        BACKEND.check(path)
        answer["taken"] += 1
    except EngineUnusable as error:
        assert "\\n" not in str(error)
        answer["refused"] += 1
"""
    )
    assert int(str(answer["refused"])) > 40


def test_inspect_good_model_reports_that_it_passes(tmp_path: Path) -> None:
    assert check(conv(tmp_path)) == ""
    assert check(MODEL_PATH) == ""


@pytest.mark.parametrize("datatype", ["FP64", "INT16", "UINT64", "BYTES"])
def test_narrowed_or_missing_datatype_is_refused(builder: Builder, tmp_path: Path, datatype: str) -> None:
    error = refusal(builder, read(models.save(models.identity(datatype), tmp_path / "model.onnx")))
    assert isinstance(error, Unsuitable)
    assert f"does not support {datatype}, the datatype of tensor x" in str(error)


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "INT8", "UINT8", "INT32", "INT64", "BOOL"])
def test_every_other_datatype_is_accepted(builder: Builder, tmp_path: Path, datatype: str) -> None:
    make(builder, read(models.save(models.identity(datatype), tmp_path / "model.onnx")))


def test_unsupported_gpu_is_refused_with_the_supported_ones(builder: Builder, tmp_path: Path) -> None:
    error = refusal(builder, read(conv(tmp_path)), capability="9.0")
    assert isinstance(error, Unsuitable)
    assert str(error) == "TensorRT-RTX builds for compute capability 7.5, 8.0, 8.6, 8.9, 12.0, 12.1, not 9.0"


def test_dla_core_without_dla_is_refused(builder: Builder, tmp_path: Path) -> None:
    error = refusal(builder, read(conv(tmp_path), tensorrt__dla_core="0"))
    assert "no DLA cores" in str(error)


def test_too_little_workspace_names_the_setting(builder: Builder, tmp_path: Path) -> None:
    """16 MiB, the lowest setting, are enough for a small model, so the test sets a lower limit itself."""
    answer = ask(
        f"""
from edged.backends.trt import build
configure, limits = build.configure, []
def starve(trt, builder, config_, *more):
    configure(trt, builder, config_, *more)
    config_.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1024)
build.configure = starve
answer = {{"said": attempt({str(conv(tmp_path))!r}, {str(tmp_path / "out")!r})}}
"""
    )
    assert str(answer["said"]).startswith("EngineUnusable: TensorRT-RTX cannot build the engine: Myelin (")
    assert "raising tensorrt.workspace_mb may help" in str(answer["said"])


def test_unsupported_builder_option_is_reported(builder: Builder, tmp_path: Path) -> None:
    record, _, _ = make(builder, read(conv(tmp_path), tensorrt__hardware_compatible="true"))
    assert any("unsupported in TensorRT-RTX" in note for note in record.composition.notes)


def test_build_with_another_version_than_the_keys_is_refused(builder: Builder, tmp_path: Path) -> None:
    from edged.engines.builder import Task

    other = Fingerprint({**here().facts, "runtime.tensorrt_rtx": "1.2.3.4"})
    model = read(conv(tmp_path))
    (engine,) = offline.engines(model, offline.target("sm_86", other), ("fp32",))
    with pytest.raises(Superseded, match=r"not 1\.2\.3\.4"):
        run(builder.make_ahead(Task(model, engine.recipe, engine.key), "x", "8.6", lambda _: None, plenty), 60)


def test_invalid_target_is_refused() -> None:
    with pytest.raises(InvalidInput):
        offline.target("ampere", here())


# -- opening, without a GPU -----------------------------------------------------------------------------------------


def test_without_a_gpu_build_and_open_are_refused_and_build_ahead_works(tmp_path: Path) -> None:
    model, out = str(conv(tmp_path)), str(tmp_path / "out")
    answer = ask(
        f"answer = {{'build': attempt({model!r}, {out!r}, ''), 'ahead': attempt({model!r}, {out!r}), "
        f"'open': opened({model!r}, {out!r})}}"
    )
    assert str(answer["build"]).startswith("EngineUnusable: TensorRT-RTX cannot build: no CUDA device can be used here")
    assert "--for sm_86" in str(answer["build"])
    assert answer["ahead"] == ""
    assert str(answer["open"]).startswith("EngineUnusable: ")
    assert "\n" not in str(answer["open"])


def test_runtime_refusal_without_a_gpu_is_one_line(tmp_path: Path) -> None:
    model, out = str(conv(tmp_path)), str(tmp_path / "out")
    answer = ask(
        f"""
from edged.backends.trt import load
attempt({model!r}, {out!r})
data = Path({out!r}, "engine.plan").read_bytes()
answer = {{}}
for name, plan in (("whole", data), ("magic", b"x" + data[1:]), ("cut", data[:100]), ("none", b"x")):
    try:
        load.deserialise(trt, plan, "TensorRT-RTX")
    except EngineUnusable as error:
        answer[name] = str(error)
"""
    )
    start = "TensorRT-RTX cannot load the engine: "
    assert str(answer["whole"]).startswith(start + "no CUDA device can be used here (")
    assert answer["magic"] == start + "it is damaged"
    assert answer["none"] == start + "it is damaged"
    assert str(answer["cut"]).startswith(start)


def test_damaged_or_foreign_plan_never_reaches_the_runtime(tmp_path: Path) -> None:
    model, out = str(conv(tmp_path)), str(tmp_path / "out")
    answer = ask(
        f"""
attempt({model!r}, {out!r})
path = Path({out!r}, "engine.plan")
data = path.read_bytes()
def said(changed):
    path.write_bytes(changed)
    return opened({model!r}, {out!r})
cuts = {{said(data[:length]).partition(":")[0] for length in [*range(0, 200, 3), len(data) // 2, len(data) - 1]}}
answer = {{
    "cuts": sorted(cuts),
    "cut": said(data[:1000]),
    "header": said(data[:40]),
    "longer": said(data + b"x"),
    "onnx": said(Path({model!r}).read_bytes()),
    "other": said(data[:24] + bytes([1, 6, 1, 120]) + data[28:]),
    "tensorrt": said(b"ftrt" + data[4:28] + b"ftrt" + data[32:]),
    "json": said(len(b'{{"a": 1}}').to_bytes(4, "little") + b'{{"a": 1}}' + data),
}}
"""
    )
    version = registry.version("tensorrt_rtx", here().facts)
    assert answer["cuts"] == ["EngineUnusable"]
    assert str(answer["cut"]).startswith(
        "EngineUnusable: the engine is truncated: it has 1000 bytes, but its header says"
    )
    assert answer["header"] == (
        "EngineUnusable: the engine is truncated: its 40 bytes are shorter than a TensorRT-RTX header;"
        " it will be rebuilt"
    )
    assert "has extra bytes at its end" in str(answer["longer"])
    assert "is not a TensorRT plan: it begins with" in str(answer["onnx"])
    assert answer["other"] == (
        "EngineUnusable: the engine was built by TensorRT-RTX 1.6.1.120, "
        f"but {version} is installed; it will be rebuilt"
    )
    assert answer["tensorrt"] == (
        "EngineUnusable: the engine was built by TensorRT; TensorRT-RTX cannot load it, so it will be rebuilt"
    )
    assert "cuInit" in str(answer["json"]) or "CUDA" in str(answer["json"])


OLDER = os.environ.get("EDGED_OLDER_TENSORRT_RTX", "")


@pytest.mark.skipif(
    not Path(OLDER, "tensorrt_rtx_libs").is_dir(), reason="no older TensorRT for RTX; see make test-tensorrt"
)
def test_engine_of_an_older_version_is_reported_with_both_versions(tmp_path: Path) -> None:
    model, out = str(conv(tmp_path)), str(tmp_path / "out")
    built = ask(f"answer = {{'said': attempt({model!r}, {out!r}), 'version': BACKEND.version()}}", OLDER)
    version = registry.version("tensorrt_rtx", here().facts)
    assert built["said"] == ""
    assert built["version"] != version
    assert load.read_header((tmp_path / "out" / "engine.plan").read_bytes()).version == built["version"]
    answer = ask(f"answer = {{'said': opened({model!r}, {out!r})}}")
    assert answer["said"] == (
        f"EngineUnusable: the engine was built by TensorRT-RTX {built['version']}, but {version} is installed;"
        " it will be rebuilt"
    )

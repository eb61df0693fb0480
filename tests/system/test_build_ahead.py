"""`edged engines build --for`: engines for a GPU that this machine lacks, with the real builder of TensorRT for RTX."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edged.shapes import MODEL_PATH
from tests.programs import edged

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx_bindings") is None, reason="TensorRT for RTX has no wheel for this Python"
)


def build(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return edged("engines", "build", str(MODEL_PATH), "--cache", str(folder), *words)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_build_ahead_stores_unverified_engines_for_a_compute_capability(tmp_path: Path) -> None:
    done = build(tmp_path, "--for", "sm_86", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    built = lines(done)
    assert [engine["precision"] for engine in built] == ["fp16", "tf32", "fp32"]
    for engine in built:
        assert (engine["for"], engine["error"]) == ("sm_86", "")
        entry = tmp_path / "engines" / engine["key"]
        record = json.loads((entry / "record.json").read_text())
        assert record["parts"]["gpu.0.compute_capability"] == "8.6"
        assert record["parts"]["recipe.backend"] == "tensorrt_rtx"
        assert record["verdict"]["accepted"] is False
        assert record["ahead"] == "sm_86"
        assert (entry / "engine.plan").read_bytes()[:4] == b"vtrt"
    shown = edged("engines", "show", built[0]["key"], "--cache", str(tmp_path), "--state", str(tmp_path / "state"))
    assert "for sm_86, on another box" in shown.stdout
    assert "the engine is verified there before it serves" in shown.stdout
    again = lines(build(tmp_path, "--for", "8.6", "--precision", "fp16", "--json"))
    assert [engine["key"] for engine in again] == [built[0]["key"]]


@pytest.mark.long
def test_build_ahead_takes_a_box_from_its_facts(tmp_path: Path) -> None:
    own = json.loads(edged("device", "--json").stdout)["facts"]
    card = {"gpu.0.compute_capability": "8.9", "gpu.0.name": "NVIDIA GeForce RTX 4070", "gpu.0.memory_mb": "12282"}
    facts = tmp_path / "hall.json"
    facts.write_text(json.dumps({"facts": own | card | {"nvidia.driver": "580.65.06"}}))
    (engine,) = lines(build(tmp_path, "--for", str(facts), "--precision", "fp16", "--json"))
    record = json.loads((tmp_path / "engines" / engine["key"] / "record.json").read_text())
    assert engine["for"] == record["ahead"] == "NVIDIA GeForce RTX 4070"
    assert card.items() <= record["parts"].items()
    assert record["parts"]["nvidia.driver"] == "580.65.06"


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "status", "output"),
    [
        (("--for", "sm_90"), 1, "could not be built"),
        (("--for", "orin"), 2, "'orin' is neither a compute capability such as sm_86 nor a file with the output of"),
        (("--for", "sm_86", "--precision", "bf16"), 2, "no engine for sm_86 in bf16"),
        (("--for", "sm_86", "--set", "tensorrt.dla=1"), 2, "unknown setting 'tensorrt.dla'"),
    ],
)
def test_failed_build_is_one_line_and_leaves_nothing(
    tmp_path: Path, words: tuple[str, ...], status: int, output: str
) -> None:
    done = build(tmp_path, *words)
    assert done.returncode == status, done.stderr
    assert output in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.glob("engines/*")) == []
    assert [path for path in tmp_path.glob("staging/*") if path.is_dir()] == []


def test_build_ahead_unknown_model_or_invalid_device_file_is_refused(tmp_path: Path) -> None:
    nothing = edged("engines", "build", "doors", "--for", "sm_86", "--cache", str(tmp_path))
    assert "no model 'doors'" in nothing.stderr
    (tmp_path / "notes").write_text("no facts")
    done = build(tmp_path, "--for", str(tmp_path / "notes"))
    assert (done.returncode, "is not the output of `edged device --json`" in done.stderr) == (2, True)

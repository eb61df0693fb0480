"""`edged export` with a framework that stands in for a real one: the whole way of a good estimator to answers of a
daemon, and what is found out about bad ones. `tests/export` has the real frameworks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from edged.confinement import confine
from tests.export.stand_ins.joblib import Estimator
from tests.integration.daemon import Daemon
from tests.stand_in import stand_in

pytestmark = pytest.mark.heavy

CONFINED = pytest.mark.skipif(bool(confine.lacking()), reason="this kernel cannot confine the framework")
STAND_INS = Path(__file__).parents[1] / "export" / "stand_ins"


def export(folder: Path, fault: str, *words: str, source: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "model.pkl").write_text(fault)
    command = [sys.executable, "-m", "edged", "export", source or str(folder / "model.pkl"), "--trust"]
    if "-o" not in words:
        command += ["-o", str(folder / "out" / "model.onnx")]
    environment = {**os.environ, "PYTHONPATH": str(STAND_INS), "XDG_DATA_HOME": str(folder), "TMPDIR": str(folder)}
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=100, env=environment)


def refused(folder: Path, fault: str, *words: str) -> str:
    """Export, which must fail with one line and leave nothing; return the line."""
    done = export(folder, fault, *words)
    assert done.returncode != 0, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    assert not list(folder.rglob("*.onnx*")), list(folder.rglob("*.onnx*"))
    assert sorted(path.name for path in folder.iterdir() if path.name != "out") == ["model.pkl"]
    return done.stderr


def test_export_is_pushed_and_answers_as_the_framework(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).random((5, 4)).astype(np.float32)
    with Daemon(listen=("unix:HOME/edged.sock",), builds=False) as daemon:
        done = export(tmp_path, "", "--push", "rows", "--target", daemon.unix, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        said = json.loads(done.stdout)
        assert said["served"]["model"] == "rows"
        assert said["export"]["proof"]["by"] == "elements"
        assert said["export"]["memory_mb"] > 10
        with InferenceServerClient(daemon.unix) as client:
            asked = InferInput("input", list(rows.shape), "FP32")
            asked.set_data_from_numpy(rows)
            answer = client.infer("rows", [asked]).as_numpy("probabilities")
    np.testing.assert_allclose(answer, Estimator("").predict_proba(rows), atol=1e-6)


def test_other_opset_than_asked_is_converted(tmp_path: Path) -> None:
    done = export(tmp_path, "opset", "--opset", "13")
    assert done.returncode == 0, done.stderr
    assert "the exporter wrote opset 21 instead of 13" in done.stdout
    assert "edged converted the file" in done.stdout
    written = onnx.load(tmp_path / "out" / "model.onnx")
    assert [each.version for each in written.opset_import] == [13]


def test_source_may_be_a_reference(tmp_path: Path) -> None:
    with stand_in() as server:
        server.pages["/models/model.pkl"] = b"good"
        done = export(tmp_path, "", source=f"{server.address}/models/model.pkl")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model.onnx").exists()


def test_samples_of_a_folder_are_compared(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    done = export(tmp_path, "", "--samples", str(tmp_path / "rows"))
    assert done.returncode == 2
    assert "contains no pictures or tensors" in done.stderr
    np.savez(tmp_path / "rows" / "real.npz", input=np.ones((2, 4), np.float32))
    compared = [
        json.loads(export(tmp_path, "", "--json", *words).stdout)["proof"]["inputs"]
        for words in ((), ("--samples", str(tmp_path / "rows")))
    ]
    assert compared[1] == compared[0] + 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong", "output 'probabilities' for"),
        ("batch", "the exported file takes only one size of dimension 0"),
        ("external", "left_behind.data"),
        pytest.param("network", "PermissionError", marks=CONFINED),
        pytest.param("write", "PermissionError", marks=CONFINED),
        ("exit", "ended with status 3"),
        ("objects", "cannot be read"),
        ("missing", "a_package_that_is_missing"),
    ],
)
def test_fault_is_one_line_and_leaves_no_file(tmp_path: Path, fault: str, words: str) -> None:
    assert words in refused(tmp_path, fault)


def test_process_that_leaves_its_session_ends_with_the_export(tmp_path: Path) -> None:
    assert export(tmp_path, "escape").returncode == 0
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.is_dir()]
    assert b"sleep\x002718.3\x00" not in lines


@pytest.mark.parametrize("place", ["file/model.onnx", "file", "folder", "model.pt", ""])
def test_place_that_cannot_be_used_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    done = export(tmp_path, "", "-o", str(tmp_path / place) if place else "")
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("words", [("--half",), ("--imgsz", "64"), ("--dynamic", "size"), ("--replace",)])
def test_option_that_does_not_apply_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    refused(tmp_path, "", *words)


def test_framework_cannot_make_the_command_overwrite_a_file(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("unchanged")
    assert export(tmp_path, "links").returncode == 0
    assert (tmp_path / "victim").read_text() == "unchanged"


def test_code_of_the_current_folder_is_not_executed(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("from pathlib import Path; Path('executed').touch()")
    (tmp_path / "model.pkl").write_text("good")
    command = [str(Path(sys.executable).with_name("edged")), "export", "model.pkl", "--trust", "-o", "out/model.onnx"]
    environment = {**os.environ, "PYTHONPATH": str(STAND_INS)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()

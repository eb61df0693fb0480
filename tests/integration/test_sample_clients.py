"""The sample clients of docs/clients.md, each against a real daemon."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import pytest

from edged import proto
from edged.shapes import MODEL_PATH, Scene
from tests.integration.daemon import Daemon

SAMPLES = Path(__file__).parents[2] / "docs" / "samples"
_NPM_SECONDS = 90


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon("--listen", "localhost:0", builds=False) as daemon:
        shutil.copy(MODEL_PATH, daemon.models / "doors.onnx")
        daemon.ready("doors")
        yield daemon


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "hall.jpg"
    cv2.imwrite(str(path), Scene(2_000_000_001, 640, 480).frame(0)[0])
    return path


def found(command: list[str], **environment: str) -> list[list[str]]:
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_python_sample_prints_the_detections(daemon: Daemon, picture: Path) -> None:
    lines = found([sys.executable, str(SAMPLES / "detect.py"), daemon.tcp, "doors", str(picture)])
    assert lines
    assert all(len(line) == 6 and 0 < float(line[1]) <= 1 for line in lines)


def test_node_sample_prints_the_same_detections_and_an_error(daemon: Daemon, picture: Path, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("needs Node")
    shutil.copy(SAMPLES / "detect.mjs", tmp_path)
    packages = ["@grpc/grpc-js@1", "@grpc/proto-loader@0.8"]
    try:
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", *packages],
            cwd=tmp_path, capture_output=True, check=True, timeout=_NPM_SECONDS,
        )  # fmt: skip
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("needs npm's registry")
    node = ["node", str(tmp_path / "detect.mjs"), daemon.tcp]
    lines = found([*node, "doors", str(picture)], PROTOS=str(proto.FOLDER))
    python = found([sys.executable, str(SAMPLES / "detect.py"), daemon.tcp, "doors", str(picture)])
    assert [line[:2] for line in lines] == [line[:2] for line in python]
    done = subprocess.run(
        [*node, "none", str(picture)],
        env=os.environ | {"PROTOS": str(proto.FOLDER)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("5: ")

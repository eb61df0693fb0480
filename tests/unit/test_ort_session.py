"""Sessions bound to a device's memory. Here the device is the CPU; tests/gpu uses a GPU."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

from edged.backends.contract import Stoppable
from edged.backends.ort.runtime import create, session_options
from edged.backends.ort.session import DeviceSession
from edged.errors import EngineUnusable
from tests import models
from tests.integration import bounded_models


def bound(folder: Path, proto: onnx.ModelProto) -> DeviceSession:
    path = models.save(proto, folder / "model.onnx")
    return DeviceSession(create(str(path), session_options("all", 1)), models.signature(proto), "cpu", 0)


def test_infer_with_changing_shapes_is_right(tmp_path: Path) -> None:
    session = bound(tmp_path, models.dynamic())
    for size in (4, 8, 0, 8, 4):
        x = np.random.default_rng(size).standard_normal((1, 3, size, 5)).astype(np.float32)
        np.testing.assert_array_equal(session.infer({"x": x})["y"], np.maximum(x, 0))


def test_infer_after_a_failed_inference_is_right(tmp_path: Path) -> None:
    session = bound(tmp_path, models.gather())
    with pytest.raises(EngineUnusable, match="out of data bounds") as raised:
        session.infer({"index": np.array([0, 1, 99])})
    assert "\n" not in str(raised.value)
    assert session.infer({"index": np.array([0, 1, 2])})["y"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_failure_of_the_device_differs_from_a_failure_of_the_model(tmp_path: Path) -> None:
    session = bound(tmp_path, models.several())
    error = RuntimeError("x" * 900 + " CUDA failure 700: an illegal memory access was encountered ; GPU=0 ;")
    assert str(session._failure(error)).startswith("cpu:0 cannot be used: an illegal memory access")
    assert str(session._failure(RuntimeError("wrong\nshape"))) == "inference failed: wrong shape"


def test_stop_from_another_thread_ends_one_inference(tmp_path: Path) -> None:
    session = bound(tmp_path, bounded_models.endless())
    assert isinstance(session, Stoppable)
    session.infer({"x": np.float32([3])})
    stopper = threading.Timer(0.2, session.stop)
    stopper.start()
    with pytest.raises(EngineUnusable, match="terminate"):
        session.infer({"x": np.float32([1e15])})
    stopper.join()
    session.go_on()
    assert session.infer({"x": np.float32([3])})["y"] == [3]
    session.stop()  # before the inference begins
    with pytest.raises(EngineUnusable, match="terminate"):
        session.infer({"x": np.float32([1e15])})
    session.close()


_STARVED = """
import resource, sys
import numpy as np
from edged.backends.ort.runtime import create, session_options
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
session = create(sys.argv[1], session_options("all", 1))
for elements in (5e9, 1e6, 5e9, 1e6):
    try:
        session.run(None, {"x": np.float32([1e6 + elements])})
    except Exception as error:
        assert "memory" in str(error), error
        assert elements == 5e9
    else:
        assert elements == 1e6
assert np.empty(900 << 20, np.uint8).size  # the failed requests left memory for others
"""


def test_infer_that_needs_too_much_memory_leaves_it_to_others(tmp_path: Path) -> None:
    path = models.save(bounded_models.greedy(), tmp_path / "model.onnx")
    ran = subprocess.run([sys.executable, "-c", _STARVED, str(path)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr

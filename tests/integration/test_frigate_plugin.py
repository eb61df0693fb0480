"""Frigate's own ZMQ detector plugin against a real daemon. Requires the plugin's file:

EDGED_TEST_FRIGATE_PLUGIN=frigate/detectors/plugins/zmq_ipc.py python -m pytest tests/integration/test_frigate_plugin.py

Stand-ins replace what the plugin imports from Frigate and pydantic; the plugin itself is unchanged.
"""

from __future__ import annotations

import enum
import importlib.util
import os
import sys
import types
from typing import Any

import cv2
import numpy as np
import pytest

from edged.shapes import MODEL_PATH, Scene
from tests.integration.daemon import Daemon

_PLUGIN = os.environ.get("EDGED_TEST_FRIGATE_PLUGIN", "")
pytestmark = pytest.mark.skipif(
    not _PLUGIN, reason="EDGED_TEST_FRIGATE_PLUGIN does not name the file of Frigate's plugin"
)

_SIDE = 320


class _Configured:
    """The part of Frigate's detector configuration that the plugin uses."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class _Detector:
    """The part of Frigate's detector base class that the plugin uses."""

    def __init__(self, detector_config: Any) -> None:
        self.detector_config = detector_config


class _ModelType(enum.Enum):
    yologeneric = "yolo-generic"


def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    stand_ins = {
        "pydantic": {"ConfigDict": dict, "Field": lambda default=None, **_: default},
        "frigate": {},
        "frigate.detectors": {},
        "frigate.detectors.detection_api": {"DetectionApi": _Detector},
        "frigate.detectors.detector_config": {"BaseDetectorConfig": _Configured},
    }
    for name, contents in stand_ins.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("zmq_ipc", _PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_frigates_own_plugin_gets_the_boxes_of_grpc(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = plugin(monkeypatch)
    config = '[frigate]\nendpoint = "ipc://HOME/frigate"\n'
    daemon = Daemon("--model", f"shapes={MODEL_PATH}", builds=False, config=config)
    endpoint = f"ipc://{daemon.home}/frigate"
    picture = Scene(5, _SIDE, _SIDE).frame(0)[0]
    rgb = np.ascontiguousarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)[None])
    tensor = rgb if dtype == "uint8" else np.ascontiguousarray(rgb.transpose(0, 3, 1, 2)).astype(np.float32) / 255
    with daemon, daemon.client() as client:
        daemon.settled("shapes")
        wanted = sorted(client.infer("shapes", picture).detections, key=lambda found: -found.score)[:20]
        model = types.SimpleNamespace(path="/config/shapes.onnx", model_type=_ModelType.yologeneric)
        settings = module.ZmqDetectorConfig(
            type="zmq", endpoint=endpoint, request_timeout_ms=5000, linger_ms=0, model=model
        )
        detector = module.ZmqIpcDetector(settings)
        for _ in range(20):
            rows = detector.detect_raw(tensor)
            assert rows.shape == (20, 6)
            found = rows[rows[:, 1] > 0]
            assert len(found) == len(wanted) > 0
            for row, each in zip(found, wanted, strict=True):
                box = np.array((each.y1, each.x1, each.y2, each.x2)) / _SIDE
                assert row == pytest.approx([each.class_id, each.score, *box], abs=5e-3)
        del detector

"""The data of the page: the summary, cameras, models and reasons of missing engines, the device and the log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edged.api.page import view
from edged.api_types import (
    AlarmInfo,
    CameraInfo,
    DeviceLoad,
    EngineInfo,
    EngineProgress,
    ModelInfo,
    PipelineInfo,
    StatusInfo,
    Verdict,
)
from edged.events import EngineMoved, Event, ModelRead
from edged.events import EngineProgress as ProgressMade

_STATUS = StatusInfo("1.0", "e", 70.0, 1, 1, 1, 10, 0, 100, "", (), ())
_MODEL = ModelInfo("doors", "1", "d", "ready", "", "ultralytics", "k1", "onnxruntime", (), (), {}, 0)
_CAMERA = CameraInfo(
    *("hall", "doors", "grpc", "freshest", False, 1, 100, 90, 0, 0, {"rate": 10}, 10.0, 9.0, 12.34, 20.0, 640, 480),
    *("", 0.0, 0.0, True, False, "streaming"),
)
_ENGINE = EngineInfo("k1", "doors", "onnxruntime", "fp32", "serving", "", {}, 5.0, 12.0, 1, 0.0, 1.0, "cpu", None)
_PROGRESS = EngineProgress("k2", "doors", "openvino", "fp16", "cpu", "building", "", "building", 0.4, 12.0, 30.0)
_TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


def changed(struct: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(struct, **fields)


def alarm(model: str = "", camera: str = "") -> AlarmInfo:
    return AlarmInfo("slow", "it is slow; cool the box", model, "", 1.0, camera)


@pytest.mark.parametrize(
    ("status", "models", "cameras", "level", "text"),
    [
        (_STATUS, [_MODEL], [_CAMERA], "good", "Everything works: 1 camera and 1 model."),
        (_STATUS, [_MODEL], [], "good", "Everything works: 0 cameras and 1 model."),
        (_STATUS, [], [], "busy", "This box has no model yet."),
        (_STATUS, [changed(_MODEL, state="loading")], [], "busy", "Model doors is loading."),
        (changed(_STATUS, building=(_PROGRESS,)), [_MODEL], [], "busy", "1 engine is being built meanwhile."),
        (_STATUS, [_MODEL], [changed(_CAMERA, state="lost")], "bad", "Camera hall gives no frames."),
        (_STATUS, [_MODEL], [changed(_CAMERA, state="failed")] * 2, "bad", "2 cameras give no frames."),
        (_STATUS, [changed(_MODEL, state="refused")], [], "bad", "Model doors cannot be served."),
        (changed(_STATUS, alarms=(alarm("doors"),)), [_MODEL], [], "bad", "1 alarm needs attention."),
        (changed(_STATUS, alarms=(alarm(), alarm())), [_MODEL], [], "bad", "2 alarms need attention."),
    ],
)
def test_summary_is_one_sentence(status: Any, models: Any, cameras: Any, level: str, text: str) -> None:
    found = view.summary(status, models, cameras)
    assert (found.level, found.up) == (level, "1 min 10 s")
    assert text in found.text


def test_summary_alarm_of_a_lost_camera_is_not_counted_twice() -> None:
    status = changed(_STATUS, alarms=(alarm("doors", "hall"),))
    found = view.summary(status, [_MODEL], [changed(_CAMERA, state="lost")])
    assert found.text == "Camera hall gives no frames."


def test_card_has_the_state_of_a_camera() -> None:
    card = view.card(_CAMERA)
    assert (card.state, card.pictures, card.removable, card.fps, card.age_ms) == ("streaming", True, False, 9.0, 12.3)
    assert card.skipped == "rate 10%"
    off = view.card(changed(_CAMERA, state="off"))
    assert (off.pictures, off.enabled) == (False, False)
    sent = view.card(changed(_CAMERA, configured=False, state=""))
    assert (sent.state, sent.pictures, sent.enabled) == ("sending", False, True)


def test_row_has_serving_building_and_missing_engines() -> None:
    rejected = changed(
        _ENGINE, key="k3", backend="openvino", precision="int8", state="rejected", reason="wrong answers"
    )
    building = changed(_ENGINE, key="k2", state="building", reason="was built for another driver")
    (row,) = view.rows([_MODEL], [_ENGINE, rejected, building], [_PROGRESS], _TITLES, frozenset({"doors"}))
    assert (row.serves, row.speed, row.loaded, row.removable) == ("ONNX Runtime", 2.4, False, False)
    assert [(each.what, each.percent) for each in row.building] == [("OpenVINO fp16", 40)]
    assert row.stale == ("OpenVINO int8 is rejected: wrong answers",)


def test_row_links_reports_of_engines_that_were_compared() -> None:
    parts = {"recipe.optimization": "none"}
    judged = changed(_ENGINE, key="k3", precision="int8", verdict=Verdict(False, "too wrong", {}))
    reference = changed(judged, key="k4", parts=parts)
    (row,) = view.rows([_MODEL], [_ENGINE, judged, reference], [], _TITLES, frozenset())
    assert [(each.key, each.what) for each in row.reports] == [("k3", "ONNX Runtime int8")]


def test_row_speed_is_marked_if_the_box_was_busy_and_none_if_untimed() -> None:
    (busy,) = view.rows([_MODEL], [changed(_ENGINE, load=0.6)], [], _TITLES, frozenset())
    (untimed,) = view.rows([_MODEL], [changed(_ENGINE, latency_ms=None)], [], _TITLES, frozenset())
    assert (busy.loaded, untimed.speed, untimed.removable) == (True, None, True)


def test_device_is_one_line() -> None:
    load = DeviceLoad(0.25, 8_000_000_000, 5_000_000_000, {"a": 41.2, "b": 48.6}, "15W", 1)
    found = view.device(load, {"jetson.model": "Orin", "cpu.model": "ARM"}, 20_000_000_000)
    expected = "Orin · processors 25% busy · 5.0 GB of 8.0 GB memory free · 49 °C · 15W · 20.0 GB of disk free"
    assert (found.line, found.cpu, found.memory_mb) == (expected, 0.25, 3_000_000_000 >> 20)
    assert view.device(load, {"gpu.0.name": "L4", "cpu.model": "AMD"}, 0).line.startswith("L4 · ")


def test_log_line_of_a_build_step_is_none() -> None:
    def line(what: Any) -> Any:
        return view.log_line(Event(1, 2.0, "doors", "k", what))

    assert line(ModelRead("d" * 64)).text.startswith("model doors was read")
    assert line(ProgressMade("building", 0.5, 1.0, None)) is None
    assert line(EngineMoved("queued", "openvino", "")) is None
    assert line(EngineMoved("rejected", "openvino", "wrong")) is not None


def test_row_of_an_ensemble_names_its_models() -> None:
    ensemble = changed(_MODEL, engine="", backend="", family="", parts=("find", "read:2"))
    (row,) = view.rows([ensemble], [], [], _TITLES, frozenset())
    assert (row.serves, row.speed, row.stale) == ("its models: find, read:2", None, ())


def test_pipeline_is_a_row_of_the_models_with_its_steps_or_its_problem() -> None:
    info = PipelineInfo("plates", "cars", "reader", "box", 0.0, (), 8, "ready", "", 1, 0, 1, 0, 0)
    row = view.pipeline_row(info)
    assert (row.name, row.state, row.family, row.removable) == ("plates", "ready", "pipeline", False)
    assert "cars" in row.reason
    assert "reader" in row.reason
    assert view.pipeline_row(changed(info, state="loading", reason="no model 'cars'")).reason == "no model 'cars'"

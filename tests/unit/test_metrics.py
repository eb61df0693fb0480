"""Metrics without a daemon: the list and its page, the sheet, what is counted of events, and what a box tells."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edged.device.root import Root
from edged.engines.alarms import Alarm, AlarmKind
from edged.engines.readiness import Readiness, ReadyState
from edged.errors import EngineUnusable
from edged.events import AlarmRaised, EngineMoved, EventLog, HostLost, ModelRemoved
from edged.metrics import alarms, box, cameras, models, names, process, tally
from edged.metrics.sheet import Sheet
from edged.serving.camera import Cameras
from edged.serving.histogram import Histogram
from tests.integration.asking import Samples, value
from tests.unit.control_room import Clock, model, planned_model

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
_UNITS = ("_seconds", "_bytes", "_ratio", "_celsius", "_hertz")


def scraped(sheet: Sheet) -> Samples:
    text = generate_latest(sheet).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# -- the list -------------------------------------------------------------------------------------------------------


def test_the_page_lists_exactly_the_metrics_that_there_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    told = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows]
    assert told == [(metric.name, metric.kind, metric.labels, metric.help) for metric in names.ALL]


def test_names_follow_prometheus_conventions() -> None:
    for metric in names.ALL:
        assert re.fullmatch(r"(edged|process)_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith(".")
        assert not re.search(r"_(ms|mb|percent|count|sum|bucket)$", metric.name)
        if metric.kind == "histogram":
            assert metric.name.endswith(_UNITS)
    assert len({metric.name for metric in names.ALL}) == len(names.ALL)


def test_every_metric_has_its_meaning_in_a_scrape_although_nothing_is_known_yet() -> None:
    text = generate_latest(Sheet()).decode()
    for metric in names.ALL:
        assert re.search(rf"^# TYPE {metric.name} {metric.kind}$", text, re.MULTILINE), metric.name


def test_labels_that_clients_make_up_stay_in_their_place() -> None:
    sheet = Sheet()
    hostile = 'a"} 1\nedged_ready 0\n# \\'
    sheet.put(names.CAMERA_FAILED, 3, hostile, "m")
    assert scraped(sheet) == {("edged_camera_frames_failed_total", frozenset({("camera", hostile), ("model", "m")})): 3}


# -- histograms -----------------------------------------------------------------------------------------------------


def test_a_histogram_counts_each_value_once_and_a_bound_belongs_below() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 2.5, 99.0):
        histogram.add(seconds)
    assert histogram.cumulative() == [(1.0, 2), (2.0, 3), (float("inf"), 5)]
    sheet = Sheet()
    sheet.spread(names.MODEL_INFERENCE, histogram, "m")
    found = scraped(sheet)
    assert value(found, "edged_model_inference_seconds_bucket", model="m", le="1.0") == 2
    assert value(found, "edged_model_inference_seconds_bucket", model="m", le="+Inf") == 5
    assert value(found, "edged_model_inference_seconds_count", model="m") == 5
    assert value(found, "edged_model_inference_seconds_sum", model="m") == 104.5


# -- models and cameras ---------------------------------------------------------------------------------------------


def test_a_model_tells_what_became_of_its_requests_and_what_is_wrong() -> None:
    planned, sheet = planned_model(), Sheet()
    statistics = planned.slot.statistics
    statistics.executed(1, 0.0, 20.0, 0.0)
    statistics.succeeded(1, 30.0, 0.0, 0.0, 20.0, 0.0)
    statistics.failed(1.0, EngineUnusable.__name__)
    raised = (Alarm(AlarmKind.SLOW, "it is slow", "m"), Alarm(AlarmKind.SLOW, "another", "other"))
    models.collect(sheet, "m", planned, Readiness(ReadyState.FAILING, "it fails"), raised)
    found = scraped(sheet)
    assert value(found, "edged_model_ready", model="m") == 0
    assert value(found, "edged_model_state", model="m", state="failing") == 1
    assert value(found, "edged_model_state", model="m", state="ready") == 0
    assert value(found, "edged_model_degraded", model="m", reason="slow") == 1
    assert value(found, "edged_model_requests_total", model="m", outcome="success") == 1
    assert value(found, "edged_model_requests_total", model="m", outcome="engine_unusable") == 1
    assert value(found, "edged_model_request_seconds_sum", model="m") == pytest.approx(0.03)
    assert value(found, "edged_model_inference_seconds_bucket", model="m", le="0.025") == 1


def test_nan_and_infinity_are_counted_by_output_and_an_output_without_any_has_a_sample() -> None:
    planned, ready = planned_model(), Readiness(ReadyState.READY)
    planned.model = model()
    sheet = Sheet()
    models.collect(sheet, "m", planned, ready, ())
    assert value(scraped(sheet), "edged_model_not_finite_total", model="m", output="y") == 0
    planned.slot.finite.answered(("y",), 1.0)
    planned.slot.finite.answered(("y",), 1e9)
    sheet = Sheet()
    models.collect(sheet, "m", planned, ready, ())
    assert value(scraped(sheet), "edged_model_not_finite_total", model="m", output="y") == 2


def test_only_so_many_cameras_are_told_one_by_one_and_all_are_counted() -> None:
    known, sheet = Cameras(), Sheet()
    for number in range(300):
        record = known.connect(f"camera {number}", "m", "grpc")
        record.seen = float(number)
    record.receive(1e6, 0)
    record.answer(1e6, 40.0, 1, 1)
    record.skipped["overtaken"] += 2
    cameras.collect(sheet, known)
    found = scraped(sheet)
    assert value(found, "edged_cameras") == 300
    assert sum(name == "edged_camera_frames_received_total" for name, _ in found) == 256
    who = {"camera": "camera 299", "model": "m"}
    assert value(found, "edged_camera_frames_answered_total", **who) == 1
    assert value(found, "edged_camera_frames_skipped_total", reason="overtaken", **who) == 2
    assert value(found, "edged_camera_age_seconds_bucket", le="0.05", **who) == 1
    assert value(found, "edged_camera_age_seconds_bucket", le="0.025", **who) == 0


# -- what happens ---------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tally, "time", clock)
    return clock


def test_what_is_made_counts_once_with_the_time_of_all_of_it(clock: Clock) -> None:
    log = EventLog()
    counted = tally.Tally(log)
    for state, after in (("queued", 1.0), ("building", 4.0), ("verifying", 5.0), ("rejected", 0.0)):
        log.tell(EngineMoved(state, "openvino", ""), "m", "key")
        clock.now += after
    assert counted.builds == {("openvino", "rejected"): 1}
    assert counted.build_seconds["openvino"].total == 10.0


def test_an_engine_that_was_there_was_not_made(clock: Clock) -> None:
    log = EventLog()
    counted = tally.Tally(log)
    log.tell(EngineMoved("ready", "openvino", ""), "m", "key")
    assert not counted.builds


def test_engines_of_models_that_have_gone_are_forgotten(clock: Clock) -> None:
    log = EventLog()
    counted = tally.Tally(log)
    log.tell(EngineMoved("building", "openvino", ""), "m", "key")
    log.tell(ModelRemoved(), "m")
    log.tell(EngineMoved("ready", "openvino", ""), "m", "key")
    assert not counted.builds


def test_alarms_and_lost_hosts_are_counted_and_every_kind_of_alarm_is_there() -> None:
    log, sheet = EventLog(), Sheet()
    counted = tally.Tally(log)
    log.tell(AlarmRaised("slow", "it is slow"))
    log.tell(HostLost("openvino", "died"))
    alarms.collect(sheet, (Alarm(AlarmKind.FALLBACK, "not on the device", "m"),), counted)
    found = scraped(sheet)
    assert value(found, "edged_alarms_raised_total", kind="slow") == 1
    assert value(found, "edged_alarms", kind="fallback") == 1
    assert {dict(labels)["kind"] for name, labels in found if name == "edged_alarms"} == {k.value for k in AlarmKind}
    assert counted.losses == {"openvino": 1}


# -- the box --------------------------------------------------------------------------------------------------------


def write(root: Path, **files: str) -> None:
    for place, text in files.items():
        path = root / place.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_recorded_box_tells_its_temperatures_and_clocks(tmp_path: Path) -> None:
    zones, cpu = "sys/class/thermal/thermal_zone", "sys/devices/system/cpu/cpu"
    for place, text in {
        f"{zones}0/type": "cpu-thermal\n",
        f"{zones}0/temp": "48500\n",
        f"{zones}1/type": "cpu-thermal\n",
        f"{zones}1/temp": "-1000\n",
        f"{zones}2/temp": "no number\n",
        f"{zones}3/type": "off\n",
        f"{zones}3/temp": "-2147483648\n",
        f"{cpu}0/cpufreq/scaling_cur_freq": "1510400\n",
        f"{cpu}0/cpufreq/cpuinfo_max_freq": "2201600\n",
        "sys/devices/system/cpu/cpufreq/policy0": "",
    }.items():
        write(tmp_path, **{place: text})
    readings = box.Sensors(Root(tmp_path)).read()
    assert readings.temperatures == {"cpu-thermal-0": 48.5, "cpu-thermal-1": -1.0}
    assert (readings.clocks, readings.highest) == ({"0": 1510400e3}, {"0": 2201600e3})
    sheet = Sheet()
    box.collect(sheet, 0.25, "MAXN", readings)
    found = scraped(sheet)
    assert value(found, "edged_device_temperature_celsius", zone="cpu-thermal-0") == 48.5
    assert value(found, "edged_device_power_mode_info", mode="MAXN") == 1
    assert value(found, "edged_device_cpu_busy_ratio") == 0.25


def test_a_box_without_sensors_tells_none(tmp_path: Path) -> None:
    assert box.Sensors(Root(tmp_path)).read() == box.Readings()


def test_sensors_are_not_asked_again_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(box, "time", clock)
    write(tmp_path, **{"sys/class/thermal/thermal_zone0/temp": "1000"})
    sensors = box.Sensors(Root(tmp_path))
    sensors.read()
    write(tmp_path, **{"sys/class/thermal/thermal_zone0/temp": "2000"})
    assert sensors.read().temperatures == {"zone-0": 1.0}
    clock.now += 10
    assert sensors.read().temperatures == {"zone-0": 2.0}


def test_the_process_tells_of_itself() -> None:
    sheet = Sheet()
    process.collect(sheet)
    found = scraped(sheet)
    assert (value(found, "process_resident_memory_bytes") or 0) > 1 << 20
    assert (value(found, "process_open_fds") or 0) > 2
    assert process.resident_bytes(1 << 30) is None

"""Metrics without a daemon: the list and its documentation, samples, counts of events, sensors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edged.device.root import Root
from edged.engines.alarms import Alarm, AlarmKind
from edged.engines.ensembles import PlannedEnsemble
from edged.engines.readiness import Readiness, ReadyState
from edged.errors import EngineUnusable
from edged.events import AlarmRaised, EngineMoved, EventLog, HostLost, ModelRemoved
from edged.ipc.messages import Times
from edged.language.host import LanguageHost
from edged.metrics import names, scrape
from edged.metrics.scrape import Samples
from edged.metrics.sources import EventCounts, Readings, Sensors, resident_bytes
from edged.models.language import Form
from edged.serving.camera import Cameras
from edged.serving.statistics import Histogram
from tests.integration.asking import Samples as Scraped
from tests.integration.asking import value
from tests.unit.control_room import Clock, model, planned_model
from tests.unit.test_ensembles import ensemble_entry

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
_UNITS = ("_seconds", "_bytes", "_ratio", "_celsius", "_hertz")


def scraped(samples: Samples) -> Scraped:
    text = generate_latest(samples).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# -- the list -------------------------------------------------------------------------------------------------------


def test_docs_page_lists_exactly_the_metrics() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    listed = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows]
    assert listed == [(metric.name, metric.kind, metric.labels, metric.help) for metric in names.ALL]


def test_names_follow_prometheus_conventions() -> None:
    for metric in names.ALL:
        assert re.fullmatch(r"(edged|process)_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith(".")
        assert not re.search(r"_(ms|mb|percent|count|sum|bucket)$", metric.name)
        if metric.kind == "histogram":
            assert metric.name.endswith(_UNITS)
    assert len({metric.name for metric in names.ALL}) == len(names.ALL)


def test_empty_scrape_has_type_of_every_metric() -> None:
    text = generate_latest(Samples()).decode()
    for metric in names.ALL:
        assert re.search(rf"^# TYPE {metric.name} {metric.kind}$", text, re.MULTILINE), metric.name


def test_hostile_label_is_escaped() -> None:
    samples = Samples()
    hostile = 'a"} 1\nedged_ready 0\n# \\'
    samples.put(names.CAMERA_FAILED, 3, hostile, "m")
    assert scraped(samples) == {
        ("edged_camera_frames_failed_total", frozenset({("camera", hostile), ("model", "m")})): 3
    }


# -- histograms -----------------------------------------------------------------------------------------------------


def test_histogram_bound_is_inclusive() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 2.5, 99.0):
        histogram.add(seconds)
    assert histogram.cumulative() == [(1.0, 2), (2.0, 3), (float("inf"), 5)]
    samples = Samples()
    samples.put_histogram(names.MODEL_INFERENCE, histogram, "m")
    found = scraped(samples)
    assert value(found, "edged_model_inference_seconds_bucket", model="m", le="1.0") == 2
    assert value(found, "edged_model_inference_seconds_bucket", model="m", le="+Inf") == 5
    assert value(found, "edged_model_inference_seconds_count", model="m") == 5
    assert value(found, "edged_model_inference_seconds_sum", model="m") == 104.5


# -- models and cameras ---------------------------------------------------------------------------------------------


def test_model_samples_have_requests_readiness_and_alarms() -> None:
    planned, samples = planned_model(), Samples()
    statistics = planned.slot.statistics
    statistics.executed(1, [Times(infer_ms=20.0)])
    statistics.succeeded(1, 30.0, 0.0, Times(infer_ms=20.0))
    statistics.failed(1.0, EngineUnusable.__name__)
    raised = (Alarm(AlarmKind.SLOW, "it is slow", "m"), Alarm(AlarmKind.SLOW, "another", "other"))
    scrape.model(samples, "m", planned, Readiness(ReadyState.FAILING, "it fails"), raised)
    found = scraped(samples)
    assert value(found, "edged_model_ready", model="m") == 0
    assert value(found, "edged_model_state", model="m", state="failing") == 1
    assert value(found, "edged_model_state", model="m", state="ready") == 0
    assert value(found, "edged_model_degraded", model="m", reason="slow") == 1
    assert value(found, "edged_model_requests_total", model="m", outcome="success") == 1
    assert value(found, "edged_model_requests_total", model="m", outcome="engine_unusable") == 1
    assert value(found, "edged_model_request_seconds_sum", model="m") == pytest.approx(0.03)
    assert value(found, "edged_model_inference_seconds_bucket", model="m", le="0.025") == 1


def test_ensemble_samples_have_requests_and_readiness_but_no_engine() -> None:
    planned, samples = PlannedEnsemble(ensemble_entry(), lambda name, version: planned_model(name)), Samples()
    planned.statistics.succeeded(1, 30.0, 1.0, Times())
    planned.statistics.failed(1.0, "InvalidTensor")
    raised = (Alarm(AlarmKind.UNSERVED, "it cannot be served", "e"),)
    scrape.ensemble(samples, "e", planned, Readiness(ReadyState.REFUSED, "no model 'a'"), raised)
    found = scraped(samples)
    assert value(found, "edged_model_ready", model="e") == 0
    assert value(found, "edged_model_state", model="e", state="refused") == 1
    assert value(found, "edged_model_degraded", model="e", reason="unserved") == 1
    assert value(found, "edged_model_requests_total", model="e", outcome="success") == 1
    assert value(found, "edged_model_requests_total", model="e", outcome="invalid_tensor") == 1
    assert value(found, "edged_model_request_seconds_sum", model="e") == pytest.approx(0.03)
    assert not any(name.startswith("edged_model_inference") for name, _ in found)


def test_not_finite_outputs_are_counted_from_zero() -> None:
    planned = planned_model()
    planned.model = model()
    for count in range(3):
        samples = Samples()
        scrape.model(samples, "m", planned, Readiness(ReadyState.READY), ())
        assert value(scraped(samples), "edged_model_not_finite_total", model="m", output="y") == count
        planned.slot.finite.answered(("y",), 1e9 * count)


def test_cameras_over_the_limit_are_counted_but_not_listed() -> None:
    known, samples = Cameras(), Samples()
    for number in range(300):
        record = known.connect(f"camera {number}", "m", "grpc")
        record.seen = float(number)
    record.receive(1e6, 0)
    record.answer(1e6, 40.0, 1, 1)
    record.skipped["overtaken"] += 2
    scrape.cameras(samples, known)
    found = scraped(samples)
    assert value(found, "edged_cameras") == 300
    assert sum(name == "edged_camera_frames_received_total" for name, _ in found) == 256
    who = {"camera": "camera 299", "model": "m"}
    assert value(found, "edged_camera_frames_answered_total", **who) == 1
    assert value(found, "edged_camera_frames_skipped_total", reason="overtaken", **who) == 2
    assert value(found, "edged_camera_age_seconds_bucket", le="0.05", **who) == 1
    assert value(found, "edged_camera_age_seconds_bucket", le="0.025", **who) == 0


# -- events ---------------------------------------------------------------------------------------------------------


def test_event_counts_build_counts_once_with_its_whole_time() -> None:
    log, clock = EventLog(), Clock()
    counted = EventCounts(log, clock.monotonic)
    for state, after in (("queued", 1.0), ("building", 4.0), ("verifying", 5.0), ("rejected", 0.0)):
        log.emit(EngineMoved(state, "openvino", ""), "m", "key")
        clock.now += after
    assert counted.builds == {("openvino", "rejected"): 1}
    assert counted.build_seconds["openvino"].total == 10.0


@pytest.mark.parametrize("is_removed", [True, False], ids=["of a removed model", "from the store"])
def test_event_counts_engine_that_was_not_built_does_not_count(is_removed: bool) -> None:
    log = EventLog()
    counted = EventCounts(log)
    if is_removed:
        log.emit(EngineMoved("building", "openvino", ""), "m", "key")
        log.emit(ModelRemoved(), "m")
    log.emit(EngineMoved("ready", "openvino", ""), "m", "key")
    assert not counted.builds


def test_alarms_and_lost_hosts_are_counted_with_a_sample_per_kind() -> None:
    log, samples = EventLog(), Samples()
    counted = EventCounts(log)
    log.emit(AlarmRaised("slow", "it is slow"))
    log.emit(HostLost("openvino", "died"))
    scrape.alarms(samples, (Alarm(AlarmKind.FALLBACK, "not on the device", "m"),), counted)
    found = scraped(samples)
    assert value(found, "edged_alarms_raised_total", kind="slow") == 1
    assert value(found, "edged_alarms", kind="fallback") == 1
    assert {dict(labels)["kind"] for name, labels in found if name == "edged_alarms"} == {k.value for k in AlarmKind}
    assert counted.losses == {"openvino": 1}


async def test_running_language_host_is_up_after_an_earlier_one_was_lost() -> None:
    log, samples = EventLog(), Samples()
    counted = EventCounts(log)
    log.emit(HostLost("openvino_genai", "died"), "chat")
    scrape.hosts(samples, (), (LanguageHost(Form("openvino_genai", "/m"), "1.0"),), counted)
    found = scraped(samples)
    assert value(found, "edged_host_up", backend="openvino_genai") == 1
    assert value(found, "edged_host_losses_total", backend="openvino_genai") == 1


# -- the box --------------------------------------------------------------------------------------------------------


def write(root: Path, place: str, text: str) -> None:
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).write_text(text)


def test_recorded_box_has_temperatures_and_clocks(tmp_path: Path) -> None:
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
        write(tmp_path, place, text)
    readings = Sensors(Root(tmp_path)).read()
    assert readings.temperatures == {"cpu-thermal-0": 48.5, "cpu-thermal-1": -1.0}
    assert (readings.clocks, readings.highest) == ({"0": 1510400e3}, {"0": 2201600e3})
    samples = Samples()
    scrape.device(samples, 0.25, "MAXN", readings)
    found = scraped(samples)
    assert value(found, "edged_device_temperature_celsius", zone="cpu-thermal-0") == 48.5
    assert value(found, "edged_device_power_mode_info", mode="MAXN") == 1
    assert value(found, "edged_device_cpu_busy_ratio") == 0.25


def test_sensors_are_cached_for_a_moment(tmp_path: Path) -> None:
    clock = Clock()
    assert Sensors(Root(tmp_path)).read() == Readings()
    write(tmp_path, "sys/class/thermal/thermal_zone0/temp", "1000")
    sensors = Sensors(Root(tmp_path), clock.monotonic)
    sensors.read()
    write(tmp_path, "sys/class/thermal/thermal_zone0/temp", "2000")
    assert sensors.read().temperatures == {"zone-0": 1.0}
    clock.now += 10
    assert sensors.read().temperatures == {"zone-0": 2.0}


def test_process_samples_have_memory_and_descriptors() -> None:
    samples = Samples()
    scrape.process(samples)
    found = scraped(samples)
    assert (value(found, "process_resident_memory_bytes") or 0) > 1 << 20
    assert (value(found, "process_open_fds") or 0) > 2
    assert resident_bytes(1 << 30) is None

"""The load that the daemon reports: models, engine hosts, memory."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edged.api.grpc.operations import host_loads, model_load
from edged.api_types import LoadInfo
from edged.config import Health
from edged.device import system
from edged.device.root import Root
from edged.engines.alarms import Alarm, AlarmKind
from edged.errors import ModelRefused
from edged.events import EventLog, HostLost
from edged.ipc.messages import Times
from edged.message_mapper import to_struct
from edged.metrics.sources import EventCounts
from edged.proto import operations_pb2 as pb
from tests.unit.control_room import planned_model

TIMES = Times(prepare_ms=1.0, infer_ms=2.0, postprocess_ms=1.0)


def test_model_load_has_counts_and_alarms() -> None:
    planned = planned_model("m")
    planned.slot.statistics.succeeded(1, 5.0, 1.0, TIMES)
    planned.slot.statistics.succeeded(4, 5.0, 1.0, TIMES)
    planned.slot.statistics.failed(3.0)
    alarms = [
        Alarm(AlarmKind.SLOW, "slow", "m"),
        Alarm(AlarmKind.SLOW, "slow too", "m", "key"),
        Alarm(AlarmKind.FALLBACK, "another's", "other"),
    ]
    reported = model_load("m", planned, alarms, Health(), 0.0)
    assert (reported.answered, reported.failed, list(reported.degraded)) == (2, 1, ["slow"])
    assert (reported.state, reported.reason, reported.backend) == ("loading", "", "")
    assert not reported.HasField("infer_ms")


def test_model_load_of_a_refused_model_has_its_reason() -> None:
    planned = planned_model("m")
    planned.problem = ModelRefused("it has a cycle")
    reported = model_load("m", planned, (), Health(), 0.0)
    assert (reported.state, reported.reason) == ("refused", "it has a cycle")


def link(backend: str, pid: int, sessions: int = 0, memory_mb: int = 0) -> Any:
    return SimpleNamespace(backend=backend, pid=pid, sessions=set(range(sessions)), memory_mb=memory_mb)


def test_host_loads_have_the_memory_of_running_hosts() -> None:
    log = EventLog()
    counts = EventCounts(log)
    for backend in ("openvino", "openvino", "tensorrt"):
        log.emit(HostLost(backend, "died"))
    reported = list(host_loads([link("openvino", os.getpid(), 2, 100), link("onnxruntime", 1 << 30)], counts))
    assert [(each.backend, each.losses, each.sessions) for each in reported] == [
        ("onnxruntime", 0, 0),
        ("openvino", 2, 2),
        ("tensorrt", 1, 0),
    ]
    assert [each.resident_bytes > 0 for each in reported] == [False, True, False]
    assert (reported[1].limit_bytes, reported[2].pid) == (100 << 20, 0)


def test_read_memory_returns_the_kernels_figures(tmp_path: Path) -> None:
    place = tmp_path / "proc" / "meminfo"
    place.parent.mkdir()
    place.write_text("MemTotal:        8000 kB\nMemFree:  1 kB\nMemAvailable:    6000 kB\n")
    assert system.read_memory(Root(tmp_path)) == system.Memory(8000 << 10, 6000 << 10)
    place.write_text("MemTotal: many kB\nMemAvailable:\n")
    assert system.read_memory(Root(tmp_path)) == system.Memory()
    assert system.read_memory(Root(tmp_path / "none")) == system.Memory()


def test_load_info_absent_fields_are_none() -> None:
    message = pb.GetLoadResponse(models=[pb.ModelLoad(name="a"), pb.ModelLoad(name="b", infer_ms=0.0, baseline_ms=2.0)])
    first, second = to_struct(message, LoadInfo).models
    assert (first.infer_ms, first.baseline_ms) == (None, None)
    assert (second.infer_ms, second.baseline_ms) == (0.0, 2.0)

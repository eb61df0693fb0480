"""The daemon's watchdog signal and status line for systemd."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from edged.api_types import EngineProgress, StatusInfo
from edged.daemon.heartbeat import Heartbeat, headline, stalled
from edged.engines import report as report_module
from edged.engines.alarms import Alarm, AlarmKind
from edged.engines.controller import Liveness

PATIENCE = 30.0
REPORT = StatusInfo("1", "e", 1.0, 3, 2, 0, 0, 0, 0, "", (), ())
BUILD = EngineProgress("key", "door", "openvino", "fp16", "cpu", "building", "", "building", 0.4)
ALARM = Alarm(AlarmKind.UNSERVED, "model gate cannot be served: it is no model")


@pytest.mark.parametrize(
    ("liveness", "why"),
    [
        (Liveness(0.0), ""),
        (Liveness(PATIENCE), ""),
        (Liveness(PATIENCE + 1), "the control loop has not run for 31 s"),
        (Liveness(0.5, {"openvino": 0.0, "onnxruntime": PATIENCE}), ""),
        (
            Liveness(0.5, {"openvino": 0.0, "onnxruntime": PATIENCE + 1}),
            "engine host onnxruntime has been hanging for 31 s beyond its limit and is not replaced",
        ),
        (Liveness(99.0, {"openvino": 99.0}), "the control loop has not run for 99 s"),
    ],
)
def test_stalled_liveness_returns_reason(liveness: Liveness, why: str) -> None:
    assert stalled(liveness, PATIENCE) == why


@pytest.mark.parametrize(
    ("report", "problem", "line"),
    [
        (msgspec.structs.replace(REPORT, models=0), "", "no models yet"),
        (REPORT, "", "2 of 3 models answer"),
        (
            msgspec.structs.replace(REPORT, building=(BUILD, BUILD)),
            "",
            "2 of 3 models answer; engine openvino/fp16 of door: building 40% and 1 more",
        ),
        (
            msgspec.structs.replace(REPORT, alarms=(ALARM, ALARM, ALARM)),
            "configuration refused: x",
            f"2 of 3 models answer; configuration refused: x; alarm: {ALARM.message} and 2 more",
        ),
    ],
)
def test_headline_describes_the_daemon_in_one_line(report: StatusInfo, problem: str, line: str) -> None:
    assert headline(report, problem) == line


@dataclass
class Manager:
    """Stands for systemd: records status lines and watchdog signals."""

    is_usable: bool = True
    lines: list[str] = field(default_factory=list)
    beats: int = 0

    def status(self, line: str) -> None:
        self.lines.append(line)

    def alive(self) -> None:
        self.beats += 1


@dataclass
class Controller:
    """A controller whose liveness the test sets."""

    idle_s: float = 0.0

    def liveness(self) -> Liveness:
        return Liveness(self.idle_s)


@dataclass
class Reloader:
    problem: str = ""


async def _beat(manager: Manager, controller: Controller, watchdog: float | None, seconds: float) -> None:
    made: Any = Heartbeat
    beating = asyncio.create_task(made(manager, watchdog, controller, Reloader()).run())
    await asyncio.sleep(seconds)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "status", lambda controller: REPORT)


def test_heartbeat_signals_in_time_without_repeating_the_status() -> None:
    manager = Manager()
    asyncio.run(_beat(manager, Controller(), 0.1, 0.35))
    assert manager.beats >= 4
    assert manager.lines == ["2 of 3 models answer"]


def test_heartbeat_without_progress_sends_status_only(caplog: pytest.LogCaptureFixture) -> None:
    manager = Manager()
    asyncio.run(_beat(manager, Controller(idle_s=5.0), 0.1, 0.35))
    assert (manager.beats, len(manager.lines)) == (0, 1)
    assert [r.message for r in caplog.records] == [
        "the daemon no longer reports to the watchdog: the control loop has not run for 5 s; systemd restarts it if"
        " this continues"
    ]


def test_heartbeat_without_a_watchdog_sends_status_only() -> None:
    manager = Manager()
    asyncio.run(_beat(manager, Controller(idle_s=5.0), None, 0.05))
    assert (manager.beats, len(manager.lines)) == (0, 1)


def test_heartbeat_without_systemd_sends_nothing() -> None:
    manager = Manager(is_usable=False)
    asyncio.run(_beat(manager, Controller(), 0.1, 0.1))
    assert (manager.beats, manager.lines) == (0, [])

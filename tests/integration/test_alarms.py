"""An engine that becomes slow while it serves is told of, everywhere where somebody may look, and when it is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from edged.shapes import MODEL_PATH
from tests.integration.daemon import Daemon, wait_for
from tests.integration.test_engine_life import Cameras

_STOPPED, _RUNNING = 0.04, 0.004  # seconds: more than ten times as long as it takes by itself


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    daemon = Daemon("--model", f"shapes={MODEL_PATH}")
    (daemon.home / "edged.toml").write_text("[engines]\nregression_factor = 3.0\nregression_seconds = 2.0\n")
    daemon._arguments = (*daemon._arguments, "--config", str(daemon.home / "edged.toml"))
    with daemon:
        yield daemon


class Throttled:
    """Processes that get a tenth of the time, as on a processor that is too hot."""

    def __init__(self, pids: list[int]) -> None:
        self._pids, self._over = pids, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            self._all(signal.SIGSTOP)
            self._over.wait(_STOPPED)
            self._all(signal.SIGCONT)
            self._over.wait(_RUNNING)
        self._all(signal.SIGCONT)

    def _all(self, number: signal.Signals) -> None:
        for pid in self._pids:
            os.kill(pid, number)

    def __enter__(self) -> Throttled:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def status(daemon: Daemon) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edged", "status", "--target", daemon.unix]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_an_engine_that_becomes_slow_raises_an_alarm_until_it_is_fast_again(daemon: Daemon) -> None:
    daemon.settled("shapes")
    assert status(daemon).returncode == 0
    with daemon.client() as client, Cameras(daemon, 1):

        def slow() -> list[str]:
            return [alarm.message for alarm in client.status().alarms if alarm.kind == "slow"]

        with Throttled(daemon.hosts()):
            (message,) = wait_for("an alarm is raised", slow, 40)
            shown = status(daemon)
            assert shown.returncode == 1
            assert "instead of" in shown.stdout
            assert [alarm.kind for model in client.models() for alarm in model.alarms] == ["slow"]
        wait_for("it is cleared", lambda: not slow(), 60)
        kinds = [event.kind for event in client.events()]
    assert message.startswith("model shapes: inference takes ")
    assert kinds.index("alarm_raised") < kinds.index("alarm_cleared")
    assert message in daemon.log.read_text()
    assert status(daemon).returncode == 0

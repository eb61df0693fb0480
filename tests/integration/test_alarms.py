"""A serving engine that becomes slow raises an alarm, visible in status, events and metrics, until it is fast again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.integration.daemon import Daemon, wait_for
from tests.integration.test_engine_life import Cameras

_STOPPED, _RUNNING = 0.04, 0.004  # seconds: the engine takes over ten times as long


@pytest.fixture
def daemon(stored: Daemon) -> Iterator[Daemon]:
    daemon = stored
    (daemon.home / "edged.toml").write_text("[engines]\nregression_factor = 3.0\nregression_seconds = 2.0\n")
    daemon._arguments = (*daemon._arguments, "--config", str(daemon.home / "edged.toml"))
    with daemon:
        yield daemon


class Throttled:
    """Gives a daemon's hosts a tenth of the processor time, as on an overheated processor.

    The hosts are looked up every second: after a new measurement, an engine in another host may serve.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon, self._over = daemon, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        pids, looked = self._daemon.hosts(), time.monotonic()
        while not self._over.is_set():
            if time.monotonic() - looked > 1:
                pids, looked = self._daemon.hosts(), time.monotonic()
            self._all(pids, signal.SIGSTOP)
            self._over.wait(_STOPPED)
            self._all(pids, signal.SIGCONT)
            self._over.wait(_RUNNING)

    @staticmethod
    def _all(pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
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


@pytest.mark.long
def test_engine_that_becomes_slow_raises_an_alarm_until_it_is_fast_again(daemon: Daemon) -> None:
    daemon.settled("shapes")
    assert status(daemon).returncode == 0
    with daemon.client() as client, Cameras(daemon, 1):

        def slow() -> list[str]:
            return [alarm.message for alarm in client.status().alarms if alarm.kind == "slow"]

        wait_for("the baseline is known", lambda: client.load().models[0].baseline_ms, 30)
        with Throttled(daemon):
            (message,) = wait_for("an alarm is raised", slow, 90)
            shown = status(daemon)
            assert shown.returncode == 1
            assert "instead of" in shown.stdout
            assert [alarm.kind for model in client.models() for alarm in model.alarms] == ["slow"]
        wait_for("the alarm is cleared", lambda: not slow(), 60)
        kinds = [event.kind for event in client.events()]
    assert message.startswith("model shapes: inference takes ")
    assert kinds.index("alarm_raised") < kinds.index("alarm_cleared")
    assert message in daemon.log.read_text()
    assert status(daemon).returncode == 0

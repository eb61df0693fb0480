"""Models that exceed their bounds, in a real daemon with real runtimes: they get errors, and no request of another
model fails."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from edged.proto import open_inference_pb2 as pb
from edged.serving.memory import used_mb
from tests import models
from tests.integration import bounded_models as bounded
from tests.integration.bounded_models import EDGE, place
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import Calls, infer, refusal, request
from tests.waiting import is_running

_ENDLESS = 1e15
_MARK_MB = 400


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    daemon = Daemon(config="[hosts]\nmemory_mb = 1500\noutput_mb = 64\n")
    place(daemon.models, "good", models.conv())
    place(daemon.models, "endless", bounded.endless(), limits__seconds="0.4")
    place(daemon.models, "patient", bounded.endless(), limits__seconds="60")
    place(daemon.models, "large", bounded.large())
    place(daemon.models, "larger", bounded.large(), limits__output_mb="100")
    place(daemon.models, "greedy", bounded.greedy())
    place(daemon.models, "counted", bounded.logarithm())
    place(daemon.models, "refused", bounded.logarithm(), outputs__finite="refuse")
    place(daemon.models, "ignored", bounded.logarithm(), outputs__finite="ignore")
    with daemon:
        for name in ("good", "endless", "patient", "large", "larger", "greedy", "counted", "refused", "ignored"):
            daemon.ready(name)
        yield daemon


class Neighbour:
    """Sends requests to a good model all the time; use it in a `with`."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon, self._stop = daemon, threading.Event()
        self.answers = 0
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        picture = np.zeros((1, 3, 8, 8), np.float32)
        with Calls(self._daemon.unix) as calls:
            while not self._stop.is_set():
                try:
                    calls.infer(request("good", picture))
                    self.answers += 1
                except grpc.RpcError as error:
                    self.errors.append(f"{error.code()} {error.details()}")

    def __enter__(self) -> Neighbour:
        self._thread.start()
        wait_for("the neighbour is served", lambda: self.answers or self.errors)
        return self

    def __exit__(self, *_: object) -> None:
        before = self.answers
        wait_for("the neighbour is served to the end", lambda: self.answers > before or self.errors)
        self._stop.set()
        self._thread.join(60)
        assert self.errors == []


def ask(daemon: Daemon, model: str, x: float, timeout: float = 60) -> pb.ModelInferResponse:
    with grpc.insecure_channel(daemon.unix, (("grpc.max_receive_message_length", -1),)) as channel:
        return infer(channel, request(model, np.array([x], np.float32)), timeout)


def floats(answer: pb.ModelInferResponse, index: int = 0) -> list[float]:
    return [float(each) for each in np.frombuffer(answer.raw_output_contents[index], np.float32)]


def test_request_is_stopped_at_its_limit_and_its_session_continues(daemon: Daemon) -> None:
    hosts = daemon.hosts()
    with Neighbour(daemon):
        for _ in range(2):
            code, line = refusal(ask, daemon, "endless", _ENDLESS)
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "'endless'" in line
            assert "0.4 s" in line
            assert "limits.seconds" in line
            assert floats(ask(daemon, "endless", 5)) == [5]
    assert daemon.hosts() == hosts


def test_abandoned_request_is_stopped_before_its_limit(daemon: Daemon) -> None:
    hosts = daemon.hosts()
    code, _ = refusal(ask, daemon, "patient", _ENDLESS, timeout=0.5)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert floats(ask(daemon, "patient", 5, timeout=20)) == [5]
    assert daemon.hosts() == hosts


def test_output_beyond_its_limit_fails_its_request_and_never_reaches_the_daemon(daemon: Daemon) -> None:
    def peak() -> int:
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) >> 10

    before = peak()
    with Neighbour(daemon):
        code, line = refusal(ask, daemon, "large", EDGE + (80 << 20) / 4)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "'large' are larger than 64 MiB" in line
    assert "limits.output_mb" in line
    assert peak() - before < 60
    size = 70 << 20  # a little more or less, by the rounding of a float32
    answer = ask(daemon, "larger", EDGE + size / 4)
    assert len(answer.raw_output_contents[0]) == pytest.approx(size, rel=1e-3)


def test_allocation_beyond_the_memory_fails_one_request_only(daemon: Daemon) -> None:
    hosts = daemon.hosts()
    with Neighbour(daemon):
        for _ in range(3):
            code, line = refusal(ask, daemon, "greedy", EDGE + 1e10 / 4)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "memory" in line
            assert floats(ask(daemon, "greedy", 5)) == [5]
    assert daemon.hosts() == hosts


def test_outputs_that_are_not_finite_are_counted_refused_or_ignored(daemon: Daemon) -> None:
    def alarms(model: str) -> list[str]:
        with daemon.client() as client:
            return [a.message for a in client.status().alarms if a.kind == "not_finite" and a.model == model]

    for model in ("counted", "ignored", "refused"):
        assert floats(ask(daemon, model, 1)) == [0]
    assert np.isnan(floats(ask(daemon, "counted", -1)))
    assert np.isnan(floats(ask(daemon, "ignored", -1)))
    code, line = refusal(ask, daemon, "refused", 0)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "output 'y' of model 'refused' holds NaN or infinity" in line
    for model in ("counted", "refused"):
        (alarm,) = wait_for(f"the alarm of {model}", lambda model=model: alarms(model), 10)
        assert "output 'y' in 1 of 1 answers" in alarm
    assert alarms("ignored") == []


class Crasher:
    """Crashes every host whose memory shows that it runs the marked model, as a faulty runtime would."""

    def __init__(self, daemon: Daemon, mark_mb: int) -> None:
        self._daemon, self._mark_mb, self._stop = daemon, mark_mb, threading.Event()
        self.deaths = 0
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            for pid in self._daemon.hosts():
                if used_mb(pid) > self._mark_mb:
                    os.kill(pid, signal.SIGSEGV)
                    self.deaths += 1
                    wait_for("the crashed host has exited", lambda pid=pid: not is_running(pid))

    def __enter__(self) -> Crasher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


def _until_quarantined(daemon: Daemon, model: str) -> str:
    """Send requests until the model is quarantined; return the error message."""
    for _ in range(10):
        code, line = refusal(ask, daemon, model, _ENDLESS, timeout=90)
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            return line
        assert code is grpc.StatusCode.UNAVAILABLE, line
    raise AssertionError("the model was never quarantined")


@pytest.mark.long
def test_model_that_crashes_its_host_is_quarantined_alone_and_across_a_restart() -> None:
    with Daemon() as daemon:
        place(daemon.models, "good", models.conv())
        place(daemon.models, "killer", bounded.endless(_MARK_MB))
        for name in ("good", "killer"):
            daemon.settled(name)
        with Neighbour(daemon), Crasher(daemon, _MARK_MB) as crasher:
            line = _until_quarantined(daemon, "killer")
        assert 3 <= crasher.deaths <= 6  # three of one engine, two of the other, and one that hit several engines
        assert "model 'killer' is quarantined" in line
        assert "edged engines rebuild killer" in line
        with daemon.client() as client:
            wait_for(
                "the alarm",
                lambda: any(a.kind == "quarantined" and a.model == "killer" for a in client.status().alarms),
            )
        daemon.stop()
        daemon.start()
        daemon.ready("good")
        wait_for(
            "the model is still quarantined",
            lambda: refusal(ask, daemon, "killer", 5)[0] is grpc.StatusCode.FAILED_PRECONDITION,
        )
        with daemon.client() as client:
            list(client.rebuild("killer"))
        daemon.ready("killer")
        assert floats(ask(daemon, "killer", 5)) == [5]

"""Health of a real daemon and of models that load, answer, cannot be served, hang and are removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edged import events
from tests import models
from tests.integration.asking import Status, check, infer, model_ready, put
from tests.integration.daemon import Daemon, wait_for


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon that probes every second; an engine has two seconds for an answer."""
    with Daemon(config="[health]\nprobe_seconds = 1.0\n[hosts]\njob_seconds = 2.0\n") as daemon:
        yield daemon


_TRITON = """
import sys, tritonclient.grpc
from tritonclient.utils import InferenceServerException
try:
    print(tritonclient.grpc.InferenceServerClient(sys.argv[1]).is_model_ready(sys.argv[2]))
except InferenceServerException as error:
    print(error.status())
"""


def triton(daemon: Daemon, model: str) -> str:
    """Return the answer of NVIDIA's client for ModelReady, or the status that it raises.

    Runs in a child process, because its messages cannot be loaded together with edged's.
    """
    command = [sys.executable, "-c", _TRITON, daemon.tcp, model]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


class Watcher:
    """Collects the statuses that a Watch of one service reports, in order."""

    def __init__(self, channel: grpc.Channel, service: str) -> None:
        self.reported: list[int] = []
        self._call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for answer in self._call:
                self.reported.append(answer.status)
        except grpc.RpcError:
            return

    def until(self, what: str, *reported: int) -> None:
        wait_for(f"the watch reports {what}", lambda: tuple(self.reported[-len(reported) :]) == reported)

    def stop(self) -> None:
        self._call.cancel()
        self._thread.join(10)


def test_health_follows_a_model_from_addition_to_removal(daemon: Daemon, channel: grpc.Channel) -> None:
    assert check(channel, "add") == Status.SERVICE_UNKNOWN
    watcher = Watcher(channel, "add")
    try:
        watcher.until("an unknown model", Status.SERVICE_UNKNOWN)
        put(daemon, "add", models.matmul())
        watcher.until("a serving model", Status.SERVING)
        assert Status.NOT_SERVING in watcher.reported, "the model existed before it served"
        assert check(channel, "add") == Status.SERVING
        assert model_ready(channel, "add") is True
        assert triton(daemon, "add") == "True"
        shutil.rmtree(daemon.models / "add")
        watcher.until("the model's removal", Status.SERVICE_UNKNOWN)
        assert check(channel, "add") == Status.SERVICE_UNKNOWN
    finally:
        watcher.stop()


def test_health_of_the_daemon_ignores_a_model_that_cannot_be_served(daemon: Daemon, channel: grpc.Channel) -> None:
    place = daemon.models / "broken" / "1" / "model.onnx"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"this is no model")
    with daemon.client() as client:
        wait_for("a refusal", lambda: any(m.name == "broken" and m.state == "refused" for m in client.models()))
    assert check(channel, "broken") == Status.NOT_SERVING
    assert check(channel, "") == Status.SERVING
    answer = model_ready(channel, "broken")
    assert isinstance(answer, tuple)
    assert answer[0] is grpc.StatusCode.UNAVAILABLE
    assert "cannot be served" in answer[1]
    assert triton(daemon, "broken") == "StatusCode.UNAVAILABLE"
    assert triton(daemon, "nobody") == "False"
    shutil.rmtree(daemon.models / "broken")


def test_model_ready_for_an_unknown_model_is_false(channel: grpc.Channel) -> None:
    assert model_ready(channel, "nobody") is False


def test_refused_requests_do_not_count_as_health_failures(daemon: Daemon, channel: grpc.Channel) -> None:
    put(daemon, "picky", models.gather())
    daemon.ready("picky")
    for _ in range(8):
        assert infer(channel, "picky", "index", "INT64", np.array([0, 1, 99])) is grpc.StatusCode.INVALID_ARGUMENT
    with daemon.client() as client:
        for _ in range(30):  # the daemon probes it because of the errors
            assert next(m.state for m in client.models() if m.name == "picky") == "ready"
            assert check(channel, "picky") == Status.SERVING
            time.sleep(0.1)
    assert infer(channel, "picky", "index", "INT64", np.array([0, 1, 2])) is grpc.StatusCode.OK
    shutil.rmtree(daemon.models / "picky")


# After SIGUSR2, a host's ONNX Runtime fails as long as the process lives, as after an error of a CUDA context.
_FAILING_HOST = """
import signal

def fail(*_):
    import onnxruntime

    def run(*arguments, **named):
        raise RuntimeError("an illegal memory access was encountered")

    onnxruntime.InferenceSession.run = run

signal.signal(signal.SIGUSR2, fail)
"""


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_host_in_which_an_engine_no_longer_answers_is_replaced(tmp_path: Path, is_busy: bool) -> None:
    (tmp_path / "sitecustomize.py").write_text(_FAILING_HOST)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    config = "[health]\nprobe_seconds = 1.0\n"
    with Daemon(builds=False, config=config, environment=environment) as daemon:
        put(daemon, "add", models.matmul())
        daemon.ready("add")
        (host,) = daemon.hosts()
        with grpc.insecure_channel(daemon.unix) as channel, daemon.client() as client:
            ask = partial(infer, channel, "add", "x", "FP32", np.ones((1, 4), np.float32))
            assert ask() is grpc.StatusCode.OK
            os.kill(host, signal.SIGUSR2)
            if is_busy:
                wait_for("a failed request", lambda: ask() is not grpc.StatusCode.OK)
            wait_for("another host", lambda: (not is_busy or ask()) and daemon.hosts() not in ([host], []))
            wait_for("an answer", lambda: ask() is grpc.StatusCode.OK)
            (lost,) = (event.what for event in client.events() if isinstance(event.what, events.HostLost))
            assert "illegal memory access" in lost.reason


def test_hung_host_is_noticed_without_requests(daemon: Daemon, channel: grpc.Channel) -> None:
    with daemon.client() as client:  # served by the reference alone: nothing is built
        client.add_model("idle", models.save(models.matmul(), daemon.home / "idle.onnx"), {"backends": "tensorrt"})
    daemon.ready("idle")
    before = set(daemon.hosts())
    watcher = Watcher(channel, "idle")
    try:
        watcher.until("a serving model", Status.SERVING)
        with daemon.client() as client:
            nodes = [engine.composition.nodes for engine in client.engines("idle")]
        # ONNX Runtime before 1.24 does not name operators.
        places = [{provider: counts or {"MatMul": 1} for provider, counts in each.items()} for each in nodes]
        assert {"CPUExecutionProvider": {"MatMul": 1}} in places, "the reference has a composition too"
        for pid in before:
            os.kill(pid, signal.SIGSTOP)
        watcher.until("a failure and the recovery", Status.NOT_SERVING, Status.SERVING)
        assert set(daemon.hosts()) - before, "a new host answers"
    finally:
        watcher.stop()
        with daemon.client() as client:
            client.remove_model("idle")

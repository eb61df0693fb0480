"""Hostile or broken clients: floods, partial handshakes, resets, garbage. Connected cameras continue, and the daemon's
memory and descriptors return to their values from before."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from edged.api.grpc.listener import most_connections
from edged.proto import cameras_pb2 as pb
from edged.proto import open_inference_pb2 as inference
from tests.fuzz import goods, http2
from tests.fuzz.live import FuzzedDaemon
from tests.fuzz.tally import Figures
from tests.integration.daemon import wait_for
from tests.integration.inference_calls import refusal

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_LIVE = "/inference.GRPCInferenceService/ServerLive"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_DESCRIPTORS = 512
_MOST = most_connections(_DESCRIPTORS)


@pytest.fixture(scope="module")
def daemon() -> Iterator[FuzzedDaemon]:
    """A daemon with few descriptors, so that a small flood of connections suffices."""
    found = FuzzedDaemon()
    found.run_by(f"ulimit -n {_DESCRIPTORS}")
    with found:
        for name in (goods.NUMBERS, goods.SHAPES):
            found.ready(name)
        assert found.truth()
        yield found


@pytest.fixture(autouse=True)
def is_as_before(daemon: FuzzedDaemon) -> Iterator[None]:
    """After each test, an inference is right and the daemon has released the test's resources."""
    before = Figures.of(daemon.pid)
    yield
    wait_for("an inference has the right answer", lambda: _answers(daemon), 30)
    wait_for("the descriptors are released", lambda: Figures.of(daemon.pid).descriptors <= before.descriptors + 6, 30)
    wait_for("the memory is released", lambda: Figures.of(daemon.pid).resident <= before.resident + 100, 30)
    log = daemon.log.read_text(errors="replace")
    assert "unexpected error" not in log


class Camera:
    """A well-behaved camera on its own connection. It counts its answers and sends the next frame after each."""

    def __init__(self, daemon: FuzzedDaemon) -> None:
        self._daemon, self.answers, self._is_done = daemon, 0, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Camera:
        self._thread.start()
        wait_for("the camera is answered", lambda: self.answers > 0)
        return self

    def __exit__(self, *error: object) -> None:
        self._is_done.set()
        self._thread.join(30)

    def goes_on(self) -> None:
        """Check that five more answers arrive on the same connection."""
        seen = self.answers
        wait_for("the camera gets more answers", lambda: self.answers >= seen + 5)

    def _run(self) -> None:
        room = threading.Semaphore(2)

        def frames() -> Iterator[bytes]:
            while not self._is_done.is_set():
                if room.acquire(timeout=0.1):
                    frame = pb.Frame(camera="polite", model=goods.SHAPES, encoded=goods.PICTURE)
                    yield frame.SerializeToString()

        with self._daemon.channel() as channel, contextlib.suppress(grpc.RpcError):
            for data in channel.stream_stream("/edged.v1.Cameras/Detect")(frames(), timeout=110):
                self.answers += not pb.Result.FromString(data).HasField("error")
                room.release()


@pytest.fixture
def camera(daemon: FuzzedDaemon) -> Iterator[Camera]:
    with Camera(daemon) as found:
        yield found
        found.goes_on()


@pytest.mark.parametrize("path", [_INFER, _STREAM])
def test_message_that_is_costly_to_parse_is_refused_at_once(daemon: FuzzedDaemon, camera: Camera, path: str) -> None:
    hollow = b"\x2a\x00" * (15 << 20)
    with daemon.channel() as channel:
        if path == _STREAM:
            (answer,) = channel.stream_stream(path)(iter([hollow]), timeout=30)
            assert inference.ModelStreamInferResponse.FromString(answer).error_message
        else:
            code, _ = refusal(channel.unary_unary(path), hollow, timeout=30)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
    camera.goes_on()


# -- floods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_flood_of_connections_is_refused_and_open_ones_continue(daemon: FuzzedDaemon, camera: Camera, way: str) -> None:
    address = daemon.unix if way == "unix" else daemon.tcp
    with contextlib.ExitStack() as ends:
        for _ in range(_DESCRIPTORS + 100):
            with contextlib.suppress(OSError):
                ends.enter_context(http2.greeted(address, seconds=2))
        camera.goes_on()
        wait_for("some descriptors are left", lambda: Figures.of(daemon.pid).descriptors < _DESCRIPTORS - 20, 10)
    wait_for("new connections are served", lambda: _answers(daemon))


@pytest.mark.long
def test_flood_of_every_listener_at_once_leaves_a_daemon_that_answers(daemon: FuzzedDaemon, camera: Camera) -> None:
    """Except ZeroMQ's: it has no connection limit, and libzmq aborts the process if it gets no descriptor."""
    listeners = [daemon.unix, daemon.tcp, f"unix:{daemon.http}", f"unix:{daemon.metrics}"]
    with contextlib.ExitStack() as ends:
        for address in listeners * 150:
            with contextlib.suppress(OSError):
                ends.enter_context(http2.connect(address, 0.5))
        camera.goes_on()
        held = Figures.of(daemon.pid)
    print(f"all listeners flooded: {held}")
    wait_for("new connections are served", lambda: _answers(daemon))


# -- memory ---------------------------------------------------------------------------------------------------------

# Requests for large answers on many streams, from a client whose flow control windows stay shut: no answer can leave.
_ANSWERS = 8  # MiB each
_STREAMS = 16


@pytest.mark.long
def test_client_that_reads_no_answers_takes_bounded_memory(daemon: FuzzedDaemon, camera: Camera) -> None:
    before = Figures.of(daemon.pid)
    body = _large().SerializeToString()
    peak = 0
    with contextlib.ExitStack() as ends:
        for _ in range(4):  # each sends as much as flow control allows
            connection = ends.enter_context(http2.connect(daemon.unix))
            sender = threading.Thread(target=_send_deaf, args=(connection, body))
            sender.start()
            ends.callback(sender.join, 30)
            ends.callback(connection.shutdown, socket.SHUT_RDWR)
        for _ in range(20):
            peak = max(peak, Figures.of(daemon.pid).resident)
            time.sleep(0.1)
        camera.goes_on()
        held = Figures.of(daemon.pid)
    print(f"unread answers: {before} before, {held} with them, {peak} MiB at most")
    assert peak < before.resident + 900


_LARGE_UPLOADS = """
import sys, time
import grpc

target, path, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
channels = [grpc.insecure_channel(target, options) for _ in range(count)]

def parts():
    yield bytes(size)
    time.sleep(60)

calls = [channel.stream_stream(path)(parts()) for channel in channels]
print("sends", flush=True)
time.sleep(60)
"""


@pytest.mark.long
@pytest.mark.parametrize("path", ["/edged.v1.Cameras/Detect", _STREAM, _INFER])
def test_memory_of_largest_messages_is_bounded(daemon: FuzzedDaemon, camera: Camera, path: str) -> None:
    before, peak = Figures.of(daemon.pid), 0
    command = [sys.executable, "-c", _LARGE_UPLOADS, daemon.unix, path, "8", str(30 << 20)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "sends\n"
        for _ in range(20):
            peak = max(peak, Figures.of(daemon.pid).resident)
            time.sleep(0.1)
        camera.goes_on()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    print(f"{path}: {before} before, {peak} MiB at most")
    assert peak < before.resident + 900  # 240 MiB of messages, plus copies in transit


def _large() -> inference.ModelInferRequest:
    request = goods.truth()
    rows = (_ANSWERS << 20) // 16
    request.inputs[0].shape[:] = [rows, 4]
    request.raw_input_contents[0] = np.zeros(4 * rows, np.float32).tobytes()
    return request


def _send_deaf(connection: socket.socket, body: bytes) -> None:
    """Send requests on streams whose window is zero, so that no answer can be sent."""
    with contextlib.suppress(OSError):
        connection.settimeout(20)
        connection.sendall(http2.PREFACE + http2.settings(s4=0))
        threading.Thread(target=lambda: list(http2.frames(connection)), daemon=True).start()
        for stream in range(1, 2 * _STREAMS, 2):
            connection.sendall(http2.call(stream, _INFER) + http2.message(stream, body))


def _answers(daemon: FuzzedDaemon, address: str = "") -> bool:
    with contextlib.suppress(grpc.RpcError):
        return daemon.truth(address=address)
    return False

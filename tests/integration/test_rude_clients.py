"""Clients that die, do not read, or stop for a while: other clients are not affected, and no resources stay."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import cv2
import grpc
import pytest

from edged.proto import cameras_pb2 as pb
from edged.shapes import Scene
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import method
from tests.overload import resident_kb

_JPEG = cv2.imencode(".jpg", Scene(3).frame(0)[0])[1].tobytes()

# Sends frames as fast as it can and reads no answer.
_DEAF = """
import sys, time
import grpc
from edged.proto import cameras_pb2 as pb

target, camera, jpeg = sys.argv[1], sys.argv[2], open(sys.argv[3], "rb").read()
channel = grpc.insecure_channel(target)
detect = channel.stream_stream(
    "/edged.v1.Cameras/Detect", request_serializer=pb.Frame.SerializeToString, response_deserializer=lambda data: data
)

def frames():
    for sequence in range(1 << 60):
        yield pb.Frame(camera=camera, model="shapes", sequence=sequence, encoded=jpeg)
        time.sleep(0.002)

call = detect(frames())
print("sends", flush=True)
time.sleep(600)
"""


@pytest.fixture
def deaf(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    picture = tmp_path_factory.mktemp("deaf") / "picture.jpg"
    picture.write_bytes(_JPEG)
    process = subprocess.Popen(
        [sys.executable, "-c", _DEAF, daemon.unix, "deaf", str(picture)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "sends\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def answers(daemon: Daemon, camera: str, count: int) -> int:
    """Return how many frames of a well-behaved camera are answered without an error; it sends one at a time."""
    with daemon.client() as client:
        frames = (_JPEG for _ in range(count))
        return sum(result.error is None for result in client.stream("shapes", frames, camera=camera, lossless=True))


def listed(daemon: Daemon, camera: str) -> int:
    """Return the number of a camera's connections."""
    with daemon.client() as client:
        return sum(each.connections for each in client.cameras() if each.camera == camera)


def test_client_that_does_not_read_delays_no_other(daemon: Daemon, deaf: subprocess.Popen[str]) -> None:
    wait_for("the deaf camera is known", lambda: listed(daemon, "deaf"))
    before = resident_kb(daemon.pid)
    assert answers(daemon, "polite", 40) == 40
    assert resident_kb(daemon.pid) < before + 50_000
    with daemon.client() as client:
        (report,) = [each for each in client.cameras() if each.camera == "deaf"]
    assert report.received > report.answered


def test_killed_client_leaves_nothing(daemon: Daemon, deaf: subprocess.Popen[str]) -> None:
    wait_for("the deaf camera is known", lambda: listed(daemon, "deaf"))
    counts = []
    thread = threading.Thread(target=lambda: counts.append(answers(daemon, "polite", 60)))
    thread.start()
    time.sleep(0.2)
    deaf.send_signal(signal.SIGKILL)
    thread.join(60)
    assert counts == [60]
    wait_for("its connection is closed", lambda: listed(daemon, "deaf") == 0)
    with daemon.client() as client:
        (report,) = [each for each in client.cameras() if each.camera == "deaf"]
    assert report.received == report.answered + report.failed + report.dropped + sum(report.skipped.values())


def test_client_that_pauses_gets_the_newest_frame_afterwards(daemon: Daemon) -> None:
    pause = threading.Event()

    def frames() -> Iterator[pb.Frame]:
        for sequence in range(60):
            yield pb.Frame(camera="pausing", model="shapes", sequence=sequence, encoded=_JPEG)
            time.sleep(0.02)
        pause.wait(30)

    with grpc.insecure_channel(daemon.unix) as channel:
        results = method(channel, "Detect")(frames(), timeout=60)
        got = [next(results)]
        time.sleep(1.5)
        pause.set()
        got += list(results)
    answered = [result for result in got if not result.only_skips]
    assert answered[-1].sequence == 59
    assert len(answered) + sum(result.skipped for result in got) == 60

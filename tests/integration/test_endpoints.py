"""The local endpoints of a real daemon: ZeroMQ and shared memory give the same results as gRPC, and publish them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import grpc
import numpy as np
import pytest
import zmq

from edged.client.shared import SharedRing
from edged.errors import EdgedError
from edged.proto import cameras_pb2 as pb
from edged.shapes import MODEL_PATH, Scene
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import method

pytestmark = pytest.mark.timeout(300)  # the first test waits until every engine is built

_SCENE = Scene(7)
_PICTURES = [_SCENE.frame(index)[0] for index in range(10)]


class EndpointDaemon(Daemon):
    """A daemon with the ZeroMQ endpoints open."""

    def __init__(self) -> None:
        config = '[zmq]\nframes = "ipc://HOME/zmq/frames"\npublish = "ipc://HOME/zmq/publish"\n'
        super().__init__("--model", f"shapes={MODEL_PATH}", builds=False, config=config)
        self.frames, self.publish = f"ipc://{self.home}/zmq/frames", f"ipc://{self.home}/zmq/publish"


@pytest.fixture(scope="module")
def daemon() -> Iterator[EndpointDaemon]:
    with EndpointDaemon() as daemon:
        daemon.settled("shapes", 200)
        yield daemon


Connect = Callable[[int, str], "zmq.Socket[bytes]"]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A function that opens sockets; they are closed after the test."""
    context: zmq.Context[Any] = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []

    def made(kind: int, address: str) -> zmq.Socket[bytes]:
        sockets.append(context.socket(kind))
        sockets[-1].linger, sockets[-1].rcvtimeo = 0, 30_000
        sockets[-1].connect(address)
        return sockets[-1]

    yield made
    for socket in sockets:
        socket.close()
    context.term()


def ask(socket: zmq.Socket[bytes], header: dict[str, Any], *data: bytes) -> dict[str, Any]:
    socket.send_multipart([json.dumps(header).encode(), *data])
    reported: dict[str, Any] = json.loads(socket.recv_multipart()[0])
    return reported


def same(reported: dict[str, Any], wanted: Any) -> None:
    """Check that a result over ZeroMQ equals a result of the client library."""
    assert "error" not in reported, reported
    assert reported["image"] == {"width": wanted.width, "height": wanted.height}
    assert len(reported["predictions"]) == len(wanted.detections) > 0
    for one, other in zip(reported["predictions"], wanted.detections, strict=True):
        assert (one["class"], one["class_id"]) == (other.label, other.class_id)
        centre = ((other.x1 + other.x2) / 2, (other.y1 + other.y2) / 2)
        assert (one["x"], one["y"], one["confidence"]) == pytest.approx((*centre, other.score), abs=0.05)


def test_every_endpoint_answers_a_picture_as_grpc_does(daemon: EndpointDaemon, connect: Connect) -> None:
    image = _PICTURES[0]
    jpeg, raw = cv2.imencode(".jpg", image)[1].tobytes(), image.tobytes()
    geometry = {"format": "bgr", "width": image.shape[1], "height": image.shape[0]}
    with daemon.client() as client, SharedRing(4, len(raw)) as ring:
        socket = connect(zmq.REQ, daemon.frames)
        same(ask(socket, {}, jpeg), client.infer("shapes", jpeg))
        same(ask(socket, geometry, raw), client.infer("shapes", image))
        place = ring.put(image)
        shared = {"segment": place.segment, "offset": place.offset, "stamp": place.stamp, "size": place.size}
        same(ask(socket, {**geometry, "shared": shared}), client.infer("shapes", image))
        place = ring.put(jpeg)
        shared = {"segment": place.segment, "offset": place.offset, "stamp": place.stamp, "size": place.size}
        same(ask(socket, {"shared": shared}), client.infer("shapes", jpeg))


def test_region_rotation_and_thresholds_apply(daemon: EndpointDaemon, connect: Connect) -> None:
    jpeg = cv2.imencode(".jpg", _PICTURES[0])[1].tobytes()
    with daemon.client() as client:
        socket = connect(zmq.REQ, daemon.frames)
        header = {"region": {"x": 100, "y": 50, "width": 400, "height": 400}, "rotation": 90}
        limits = {"score": 0.5, "max_detections": 2}
        wanted = client.infer("shapes", jpeg, region=(100, 50, 400, 400), rotation=90, score=0.5, max_detections=2)
        same(ask(socket, {**header, "thresholds": limits}, jpeg), wanted)


def test_raw_outputs_follow_their_description(daemon: EndpointDaemon, connect: Connect) -> None:
    """A model of no family takes a picture and answers with its tensors."""
    onnx_files.convolutions(daemon.models / "plain.onnx")
    daemon.ready("plain")
    socket = connect(zmq.REQ, daemon.frames)
    picture = np.zeros((64, 64, 3), np.uint8)
    header = {"model": "plain", "format": "bgr", "width": 64, "height": 64}
    socket.send_multipart([json.dumps(header).encode(), picture.tobytes()])
    text, data = socket.recv_multipart()
    assert json.loads(text)["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 8, 64, 64]}]
    assert len(data) == 8 * 64 * 64 * 4
    # Other tests omit the model's name, so only one model may exist.
    (daemon.models / "plain.onnx").unlink()
    with daemon.client() as client:
        wait_for("the model is removed", lambda: [model.name for model in client.models()] == ["shapes"])


def test_results_and_events_are_published(daemon: EndpointDaemon, connect: Connect) -> None:
    listener = connect(zmq.SUB, daemon.publish)
    listener.subscribe(b"results/shapes/yard")
    listener.subscribe(b"events/commanded")
    socket = connect(zmq.REQ, daemon.frames)
    jpeg = cv2.imencode(".jpg", _PICTURES[0])[1].tobytes()

    def received() -> bool:
        ask(socket, {"camera": "elsewhere"}, jpeg)
        ask(socket, {"camera": "yard", "sequence": 5}, jpeg)
        return bool(listener.poll(100))

    wait_for("the subscription has arrived", received)
    topic, payload = listener.recv_multipart()
    assert topic == b"results/shapes/yard"
    reported = json.loads(payload)
    assert (reported["camera"], reported["sequence"]) == ("yard", 5)
    assert reported["predictions"]
    with daemon.client() as client:
        wait_for("an engine is in the store", lambda: any(each.created_unix_s for each in client.engines("shapes")))
        client.pin("shapes")
        client.unpin("shapes")
    while topic != b"events/commanded":
        topic, payload = listener.recv_multipart()
    assert json.loads(payload)["commanded"] == {"verb": "pin"}


# -- shared memory through gRPC ---------------------------------------------------------------------------------------


def test_results_over_grpc_are_published_too(daemon: EndpointDaemon, connect: Connect) -> None:
    listener = connect(zmq.SUB, daemon.publish)
    listener.rcvtimeo = 200
    listener.subscribe(b"results/shapes/gate")

    def reported() -> dict[str, Any] | None:
        with daemon.client() as client:
            client.infer("shapes", _PICTURES[0], camera="yard")
            (wanted,) = client.stream("shapes", _PICTURES[:1], camera="gate")
            try:
                topic, payload = listener.recv_multipart()
            except zmq.Again:  # the subscription has not arrived yet
                return None
            assert topic == b"results/shapes/gate"
            found: dict[str, Any] = json.loads(payload)
            same(found, wanted)
            return found

    assert wait_for("a result is published", reported)["camera"] == "gate"


def test_stream_of_arrays_through_shared_memory_gives_the_same_results(daemon: EndpointDaemon) -> None:
    with daemon.client() as client:
        options: dict[str, Any] = {"lossless": True}
        through = list(client.stream("shapes", iter(_PICTURES), shared=True, **options))
        beside = list(client.stream("shapes", iter(_PICTURES), shared=False, **options))
    assert [result.error for result in through] == [None] * len(_PICTURES)
    for one, other in zip(through, beside, strict=True):
        assert (one.width, one.height) == (other.width, other.height)
        assert [d.class_id for d in one.detections] == [d.class_id for d in other.detections]
        assert [d.x1 for d in one.detections] == pytest.approx([d.x1 for d in other.detections], abs=0.05)


def detect(target: str, frames: list[pb.Frame]) -> list[pb.Result]:
    with grpc.insecure_channel(target) as channel:
        return list(method(channel, "Detect")(iter(frames), timeout=60))


def test_stream_invalid_shared_image_gets_an_error_and_the_stream_continues(daemon: EndpointDaemon) -> None:
    image = _PICTURES[0]
    with SharedRing(2, image.nbytes) as ring:
        place = ring.put(image)

        def shared(**changes: Any) -> pb.Frame:
            fields: dict[str, Any] = {
                "segment": place.segment,
                "offset": place.offset,
                "stamp": place.stamp,
                "size": place.size,
                "format": pb.BGR,
                "width": image.shape[1],
                "height": image.shape[0],
            }
            every = pb.StreamOptions(mode=pb.StreamOptions.EVERY_FRAME)
            return pb.Frame(model="shapes", options=every, shared=pb.SharedImage(**{**fields, **changes}))

        wrong = [shared(segment="/edged-none"), shared(offset=1 << 40), shared(format=77), shared(width=100_000)]
        results = detect(daemon.unix, [*wrong, shared()])
        codes = [result.error.code for result in results]
        assert all(codes[: len(wrong)])
        assert codes[-1] == 0
        assert results[-1].detections
        reported = detect(daemon.unix, [shared(stamp=place.stamp + 1), shared()])
        assert [(run.reason, run.count) for result in reported for run in result.skips] == [("overwritten", 1)]


_CLIENT = """
import sys, time, edged
from edged.shapes import Scene
scene = Scene(7)
def frames():
    index = 0
    while True:
        yield scene.frame(index % 10)[0]
        index += 1
        time.sleep(0.01)
with edged.Client(sys.argv[1]) as client:
    for result in client.stream("shapes", frames(), shared=True):
        print(result.error, flush=True)
"""


def test_killed_client_leaves_no_open_segment_in_the_daemon(daemon: EndpointDaemon) -> None:
    def held() -> list[str]:
        """Return the client's segments that the daemon has open."""
        links = []
        for name in os.listdir(f"/proc/{daemon.pid}/fd"):
            try:
                links.append(os.readlink(f"/proc/{daemon.pid}/fd/{name}"))
            except OSError:
                continue
        return [link for link in links if link.startswith(f"/dev/shm/edged-{client.pid}-")]

    client = subprocess.Popen([sys.executable, "-c", _CLIENT, daemon.unix], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert [client.stdout.readline() for _ in range(5)] == ["None\n"] * 5
    client.send_signal(signal.SIGKILL)
    client.wait(10)
    client.stdout.close()
    left = [name for name in os.listdir("/dev/shm") if name.startswith(f"edged-{client.pid}-")]
    assert left, "the killed client cannot have removed its segment"
    wait_for("the daemon closes the segment", lambda: not held())
    SharedRing(2, 100).close()
    assert not [name for name in os.listdir("/dev/shm") if name in left]


def test_stream_survives_truncated_segments(daemon: EndpointDaemon) -> None:
    pid, image = daemon.pid, _PICTURES[0]

    def frames() -> Iterator[np.ndarray]:
        for index in range(30):
            yield image
            if index == 10:
                for name in os.listdir("/dev/shm"):
                    if name.startswith(f"edged-{os.getpid()}-"):
                        os.truncate(f"/dev/shm/{name}", 100)

    with daemon.client() as client:
        try:
            results = list(client.stream("shapes", frames(), lossless=True))
        except EdgedError as error:
            raise AssertionError("the stream ended") from error
        assert len(results) == 30
        failed = [result for result in results if result.error is not None]
        assert len(failed) <= 1, "afterwards pictures travel as bytes, or in a new ring"
        assert client.infer("shapes", image).detections
    assert daemon.pid == pid
    assert os.path.exists(f"/proc/{pid}")

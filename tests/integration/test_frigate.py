"""Frigate's ZMQ detector against a real daemon, with a client that behaves like Frigate's plugin."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import zmq

from edged.shapes import MODEL_PATH, Scene
from tests.frigate_client import FrigateDetector, Rows
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.overload import slow_model
from tests.waiting import together

pytestmark = pytest.mark.timeout(300)  # the first test waits until every engine is built

_SIDE = 320
_PATIENT_MS = 20_000


class FrigateDaemon(Daemon):
    """A daemon with an endpoint for Frigate; `settings` are lines of its [frigate] table."""

    def __init__(self, *arguments: str, settings: str = "", endpoint: str = "") -> None:
        place = endpoint or "ipc://HOME/frigate/detector"
        super().__init__(*arguments, builds=False, config=f'[frigate]\nendpoint = "{place}"\n{settings}\n')
        self.endpoint = place.replace("HOME", str(self.home))

    def output(self, words: str) -> bool:
        return words in self.log.read_text()


def picture(number: int = 0, side: int = _SIDE) -> np.ndarray:
    """Return a picture, BGR [side, side, 3]."""
    return cv2.resize(Scene(3).frame(number)[0], (side, side))


def as_bytes(image: np.ndarray) -> np.ndarray:
    """Convert to Frigate's default form: [1, height, width, 3] in RGB."""
    return np.ascontiguousarray(image[None, :, :, ::-1])


def finds(detector: FrigateDetector, tensor: np.ndarray) -> Rows:
    """Return the first answer with detections; until a model is ready the answers are empty."""
    return wait_for("Frigate finds something", lambda: (rows := detector.detect(tensor)).any() and [rows])[0]


@pytest.fixture(scope="module")
def daemon() -> Iterator[FrigateDaemon]:
    with FrigateDaemon("--model", f"shapes={MODEL_PATH}", settings="timeout_ms = 10000\nscore = 0.3") as daemon:
        daemon.settled("shapes", 200)
        yield daemon


@pytest.fixture
def detector(daemon: FrigateDaemon) -> Iterator[FrigateDetector]:
    with FrigateDetector(daemon.endpoint, timeout_ms=_PATIENT_MS) as detector:
        assert detector.is_ready
        yield detector


def test_frigate_gets_the_boxes_of_grpc(daemon: FrigateDaemon, detector: FrigateDetector) -> None:
    with daemon.client() as client:
        for number in range(3):
            image = picture(number)
            rows = detector.detect(as_bytes(image))
            wanted = client.infer("shapes", image, score=0.3).detections
            assert wanted
            found = rows[rows[:, 1] > 0]
            assert len(found) == min(20, len(wanted))
            for row, one in zip(found, wanted, strict=False):
                assert row[0] == one.class_id
                assert row[1] == pytest.approx(one.score, abs=0.01)
                box = np.array((one.y1, one.x1, one.y2, one.x2)) / _SIDE
                assert row[2:] == pytest.approx(box, abs=0.01)
            assert (np.diff(found[:, 1]) <= 0).all()
            assert not rows[len(found) :].any()
    assert detector.timeouts == 0


def test_every_form_of_the_same_picture_gives_the_same_objects(detector: FrigateDetector) -> None:
    packed = as_bytes(picture())
    planar = np.ascontiguousarray(packed.transpose(0, 3, 1, 2))
    forms = {
        "int nchw": planar,
        "float nhwc": packed.astype(np.float32) / 255,
        "float nchw": planar.astype(np.float32) / 255,
    }
    wanted = detector.detect(packed)
    assert wanted.any()
    for name, tensor in forms.items():
        assert detector.detect(tensor) == pytest.approx(wanted, abs=0.02), name


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_picture_of_another_size_is_fitted_to_the_model(detector: FrigateDetector, dtype: str) -> None:
    large = as_bytes(picture(side=640))
    rows = detector.detect(large if dtype == "uint8" else large.astype(np.float32) / 255)
    small = detector.detect(as_bytes(picture()))
    assert rows[:3, 0].tolist() == small[:3, 0].tolist()
    assert rows[:3, 2:] == pytest.approx(small[:3, 2:], abs=0.03)


@pytest.mark.parametrize("name", ["shapes.onnx", "yolov9-t-320.onnx", "/config/model_cache/other", "..", ""])
def test_frigate_gets_the_only_model_by_any_name(daemon: FrigateDaemon, name: str) -> None:
    with FrigateDetector(daemon.endpoint, name, timeout_ms=_PATIENT_MS) as detector:
        assert detector.is_ready
        assert detector.detect(as_bytes(picture())).any()


@pytest.mark.long
def test_many_detectors_are_answered_each_with_its_own(daemon: FrigateDaemon) -> None:
    with FrigateDetector(daemon.endpoint, timeout_ms=_PATIENT_MS) as one:
        wanted = {number: one.detect(as_bytes(picture(number))) for number in range(6)}
    wrong: list[int] = []

    def run(number: int) -> None:
        with FrigateDetector(daemon.endpoint, timeout_ms=_PATIENT_MS) as detector:
            for _ in range(15):
                if not np.allclose(detector.detect(as_bytes(picture(number))), wanted[number], atol=0.01):
                    wrong.append(number)

    together(run, len(wanted))
    assert not wrong


def test_garbage_gets_no_detections_and_delays_no_other_client(
    daemon: FrigateDaemon, detector: FrigateDetector
) -> None:
    image = as_bytes(picture())
    header = {"shape": list(image.shape), "dtype": "uint8", "model_type": "yologeneric"}
    good = json.dumps(header).encode()
    garbage: list[tuple[bytes, ...]] = [
        (b"",),
        (b"\xff",),
        (b"{}",),
        (good,),
        (good, b""),
        (good, image.tobytes()[:-1]),
        (good, image.tobytes(), b"more"),
        (json.dumps({**header, "dtype": "float64"}).encode(), image.tobytes()),
        (json.dumps({**header, "shape": [1 << 40, 1 << 40, 3, 1]}).encode(), image.tobytes()),
        (json.dumps({**header, "shape": [1, 2, 3, 50]}).encode(), bytes(300)),
        (b"x" * 100_000, b""),
        tuple(b"a" for _ in range(500)),
        (b'{"model_data": true, "model_name": "x"}', b"not a model"),
    ]
    for frames in garbage:
        try:
            (reply,) = detector.ask(*frames)
        except zmq.Again:
            what = f"{[frame[:40] for frame in frames[:3]]} was not answered"
            pytest.fail(f"{what}; the daemon says:\n{daemon.log.read_text()[-3000:]}")
        assert len(reply) == 480 or json.loads(reply) == {"model_saved": False, "model_loaded": False}
        assert not np.frombuffer(reply, np.float32).any() if len(reply) == 480 else True
    context = zmq.Context()
    with context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(daemon.endpoint)
        for frames in garbage:
            dealer.send_multipart(frames)  # without the empty part that a REQ socket sends
            dealer.send_multipart((b"", *frames))
        assert detector.detect(image).any()
    context.term()
    assert detector.detect(image).any()
    assert not daemon.output("Traceback")


def test_clients_that_go_away_leave_nothing(daemon: FrigateDaemon, detector: FrigateDetector) -> None:
    image = as_bytes(picture())
    detector.detect(image)

    def held() -> int:
        return len(os.listdir(f"/proc/{daemon.pid}/fd"))

    before = held()
    for _ in range(20):
        with FrigateDetector(daemon.endpoint, timeout_ms=1) as gone:
            gone.detect(image)  # closed without waiting for the answer
    wait_for("the sockets of closed clients are closed", lambda: held() <= before)
    # A slow box may still be busy with their pictures.
    wait_for("the detector answers", lambda: bool(detector.detect(image).any()))


def test_message_over_the_limit_closes_its_connection_only(daemon: FrigateDaemon, detector: FrigateDetector) -> None:
    context = zmq.Context()
    with context.socket(zmq.REQ) as huge:
        huge.linger = 0
        huge.rcvtimeo = 500
        huge.connect(daemon.endpoint)
        huge.send_multipart([b"{}", bytes(80 << 20)])
        with pytest.raises(zmq.Again):
            huge.recv()
    context.term()
    assert detector.detect(as_bytes(picture())).any()


def test_frigate_without_a_handshake_gets_the_only_model(daemon: FrigateDaemon) -> None:
    """The plugin does not notice a restart of the daemon between two requests, so it does not repeat the handshake."""
    image = as_bytes(picture())
    context = zmq.Context()
    with context.socket(zmq.REQ) as old:
        old.linger, old.rcvtimeo = 0, _PATIENT_MS
        old.connect(daemon.endpoint)
        header = {"shape": list(image.shape), "dtype": "uint8", "model_type": "yologeneric"}
        old.send_multipart([json.dumps(header).encode(), image.tobytes()])
        assert np.frombuffer(old.recv(), np.float32).any()
    context.term()


# -- separate daemons -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_frigate_gets_detections_at_once_and_after_a_restart() -> None:
    image = as_bytes(picture())
    daemon = FrigateDaemon("--model", f"shapes={MODEL_PATH}", settings="timeout_ms = 400")
    with daemon, FrigateDetector(daemon.endpoint, timeout_ms=1000) as detector:
        assert detector.is_ready, "the model is known before any engine is built"
        assert detector.handshakes == 1
        finds(detector, image)
        daemon.kill()
        threading.Timer(0.5, daemon.start).start()
        assert not detector.detect(image).any(), "the request times out; the detector then repeats the handshake"
        finds(detector, image)
        handshakes = detector.handshakes
        assert handshakes > 1
        assert daemon.stop() == 0
        assert not Path(daemon.endpoint.removeprefix("ipc://")).exists()
        daemon.start()
        finds(detector, image)


@pytest.mark.long
def test_slow_model_gives_no_detections_instead_of_a_timeout(tmp_path: Path) -> None:
    model = slow_model(tmp_path / "slow.onnx", 3000)
    with FrigateDaemon("--model", f"slow={model}", settings="timeout_ms = 40") as daemon:
        daemon.ready("slow")
        with FrigateDetector(daemon.endpoint, "slow.onnx", timeout_ms=5000) as detector:
            for _ in range(5):
                assert not detector.detect(as_bytes(picture())).any()
            assert (detector.timeouts, detector.handshakes) == (0, 1)
        wait_for("the log reports it", lambda: daemon.output("did not answer within [frigate] timeout_ms = 40"))
        lines = daemon.log.read_text().count("got no detections (late)")
        assert lines <= 4


def test_unknown_model_is_not_found_and_the_log_names_the_remedy() -> None:
    with FrigateDaemon(settings="timeout_ms = 10000") as daemon:
        for _ in range(3):
            with FrigateDetector(daemon.endpoint, "absent.onnx", file=b"model") as detector:
                assert not detector.is_ready
        log = daemon.log.read_text()
        assert log.count("then restart Frigate") == 1
        assert "'absent.onnx'" in log
        assert "set [frigate] uploads = true" in log
        assert not list(daemon.models.iterdir())
        # Once the model exists, a newly started detector finds it.
        onnx_files.convolutions(daemon.models / "absent.onnx")
        with daemon.client() as client:
            wait_for("the daemon knows the model", lambda: [each.name for each in client.models()])
        with FrigateDetector(daemon.endpoint, "absent.onnx") as detector:
            assert detector.is_ready


@pytest.mark.long
def test_frigate_gets_the_requested_one_of_several_models(tmp_path: Path) -> None:
    other = onnx_files.convolutions(tmp_path / "other.onnx")
    arguments = ("--model", f"shapes={MODEL_PATH}", "--model", f"other={other}")
    image = as_bytes(picture())
    with FrigateDaemon(*arguments, settings="timeout_ms = 400") as daemon:
        daemon.ready("shapes")
        with FrigateDetector(daemon.endpoint, "unknown.onnx") as neither:
            assert not neither.is_ready
        with FrigateDetector(daemon.endpoint, "shapes.onnx", timeout_ms=1500) as detector:
            finds(detector, image)
            daemon.stop()
            daemon.start()
            # The restarted daemon does not know the detector's model. It does not reply, so the detector asks again.
            finds(detector, image)
        assert not daemon.output("Traceback")


@pytest.mark.long
def test_frigate_model_is_the_configured_one(tmp_path: Path) -> None:
    other = onnx_files.convolutions(tmp_path / "other.onnx")
    arguments = ("--model", f"shapes={MODEL_PATH}", "--model", f"other={other}")
    with FrigateDaemon(*arguments, settings='timeout_ms = 10000\nmodel = "shapes"') as daemon:
        daemon.ready("shapes")
        with FrigateDetector(daemon.endpoint, "other.onnx", timeout_ms=_PATIENT_MS) as detector:
            assert finds(detector, as_bytes(picture())).any()


@pytest.mark.long
def test_upload_is_accepted_if_configured() -> None:
    with FrigateDaemon(settings="timeout_ms = 400\nuploads = true") as daemon:
        with FrigateDetector(daemon.endpoint, "sent.onnx", file=MODEL_PATH.read_bytes(), timeout_ms=1500) as detector:
            assert detector.is_ready
            finds(detector, as_bytes(picture()))
        with daemon.client() as client:
            assert [model.name for model in client.models()] == ["sent"]
        with FrigateDetector(daemon.endpoint, "broken.onnx", file=b"this is no model") as detector:
            assert detector.is_ready, "the only model serves"
        assert (daemon.models / "sent" / "1" / "model.onnx").read_bytes() == MODEL_PATH.read_bytes()


@pytest.mark.long
def test_upload_of_an_invalid_model_is_refused() -> None:
    with FrigateDaemon(settings="uploads = true") as daemon:
        with FrigateDetector(daemon.endpoint, "../../broken.onnx", file=b"this is no model") as detector:
            assert not detector.is_ready
        assert daemon.output("broken.onnx' was refused")
        assert not [path for path in daemon.models.iterdir() if not path.name.startswith(".")]


@pytest.mark.long
def test_frigate_over_tcp_is_served() -> None:
    with FrigateDaemon("--model", f"shapes={MODEL_PATH}", endpoint="tcp://localhost:0") as daemon:
        line = wait_for("the log names the port", lambda: [x for x in daemon.log.read_text().split() if "tcp://" in x])
        with FrigateDetector(line[0].rstrip(","), timeout_ms=_PATIENT_MS) as detector:
            assert detector.is_ready
            started = time.monotonic()
            finds(detector, as_bytes(picture()))
            assert time.monotonic() - started < 60

"""The client's unary calls: pictures, results, errors, operations and addresses."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import grpc
import numpy as np
import pytest

from edged.client import Client
from edged.client.address import resolve
from edged.client.result import to_array
from edged.client.status import code_name, to_edged
from edged.client.upload import Package
from edged.errors import (
    AlreadyExists,
    DaemonUnavailable,
    DeadlineExceeded,
    EdgedError,
    Forbidden,
    InvalidInput,
    ModelRefused,
    NotFound,
    NotReady,
    Overloaded,
    Refused,
    TooLarge,
    Unsupported,
)
from edged.proto import cameras_pb2 as cam
from edged.vision.image import PixelFormat, from_raw
from tests import models
from tests.unit.client_daemon import TENSORS, Running, encode

pytestmark = pytest.mark.timeout(60)


def picture(height: int = 6, width: int = 8) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


# --- pictures -------------------------------------------------------------------------------------------------------


def test_infer_encoded_picture_is_sent_unchanged(client: Client, running: Running, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    assert cv2.imwrite(str(path), picture())
    encoded = path.read_bytes()
    for image in (path, str(path), encoded, bytearray(encoded), memoryview(encoded)):
        client.infer("shapes", image)
    assert {frame.encoded for frame in running.daemon.frames} == {encoded}
    assert {frame.captured_unix_ns for frame in running.daemon.frames} == {0}


@pytest.mark.parametrize(
    "image",
    [picture(), picture()[:, ::-1], picture()[::2, 1:4], picture()[..., 0], picture()[..., :1], np.zeros((1, 1), "u1")],
)
def test_infer_array_is_sent_as_pixels(client: Client, running: Running, image: np.ndarray) -> None:
    result = client.infer("shapes", image, camera="door", score=0.1, iou=0.2)
    (frame,) = running.daemon.frames
    raw = frame.raw
    layout = {cam.BGR: PixelFormat.BGR, cam.GRAY: PixelFormat.GRAY}[raw.format]
    seen = from_raw(raw.data, layout, raw.width, raw.height, raw.stride)
    expected = image if image.ndim == 3 and image.shape[2] == 3 else cv2.cvtColor(image.copy(), cv2.COLOR_GRAY2BGR)
    np.testing.assert_array_equal(seen, expected)
    assert (result.width, result.height) == (image.shape[1], image.shape[0])
    assert frame.camera == "door"
    assert (frame.thresholds.score, frame.thresholds.iou) == pytest.approx((0.1, 0.2))


@pytest.mark.parametrize(
    ("image", "kind", "words"),
    [
        (b"", InvalidInput, "empty"),
        ("none.jpg", NotFound, "none.jpg"),
        (Path("/"), InvalidInput, "cannot be read"),
        (np.zeros((4, 4, 4), np.uint8), InvalidInput, "shape"),
        (np.zeros((0, 4, 3), np.uint8), InvalidInput, "shape"),
        (np.zeros((4, 4, 3)), InvalidInput, "float64"),
        (17, InvalidInput, "int is not a picture"),
    ],
)
def test_infer_invalid_picture_raises(client: Client, running: Running, image: object, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        client.infer("shapes", image)
    assert running.daemon.frames == []


def test_infer_picture_beyond_grpc_default_limit_is_sent(client: Client, running: Running) -> None:
    big = np.zeros((2000, 3000, 3), np.uint8)
    assert client.infer("shapes", big).width == 3000
    assert len(running.daemon.frames[0].raw.data) == big.nbytes


# --- results --------------------------------------------------------------------------------------------------------


def test_result_fields_hold_the_daemons_values(client: Client) -> None:
    result = client.infer("shapes", b"x", camera="door")
    first = result.detections[0]
    assert (first.x1, first.y1, first.x2, first.y2) == (10, 20, 30, 60)
    assert (first.score, first.class_id, first.label) == (0.75, 3, "a [red] dot")
    assert (result.camera, result.model, result.engine, result.backend) == ("door", "shapes", "abc", "null")
    assert (result.age_ms, result.timings.infer_ms, result.timings.total_ms) == (12.5, 1.5, 3.5)
    assert result.error is None


def test_result_json_is_roboflows_format(client: Client) -> None:
    json = client.infer("shapes", b"x").json()
    assert json["image"] == {"width": 640, "height": 480}
    first, second = json["predictions"]
    assert len(first.pop("detection_id")) == 36
    assert first == {
        "x": 20, "y": 40, "width": 20, "height": 40, "confidence": 0.75, "class": "a [red] dot", "class_id": 3,
    }  # fmt: skip
    assert (second["class"], second["class_id"]) == ("square", 0)
    assert client.infer("empty", b"x").json()["predictions"] == []


def test_result_labels_large_class_id_stay_small(client: Client) -> None:
    labels = client.infer("shapes", b"x").labels()
    assert list(labels) == labels[:] == ["square", "1", "2", "a [red] dot"]
    with pytest.raises(IndexError):
        labels[4]


def test_result_supervision_missing_library_raises_unsupported(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(Unsupported, match="-m pip install supervision"):
        client.infer("shapes", b"x").supervision()


def test_result_tensors_of_every_datatype_become_arrays(client: Client) -> None:
    outputs = client.infer("tensors", b"x").outputs
    assert list(outputs) == list(TENSORS)
    for name, expected in TENSORS.items():
        assert outputs[name].dtype == expected.dtype, name
        assert outputs[name].shape == expected.shape, name
        np.testing.assert_array_equal(outputs[name], expected)
        assert not outputs[name].flags.writeable


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "error"),
    [
        ("FP32", [2], b"1234567", EdgedError),
        ("FP32", [-1], b"1234", EdgedError),
        ("BYTES", [1], b"\x05\0\0\0abc", EdgedError),
        ("BYTES", [2], encode(np.array([b"one"], object)), EdgedError),
        ("BYTES", [1], b"\1\0", EdgedError),
        ("FP8", [1], b"1", Unsupported),
    ],
)
def test_to_array_torn_or_unknown_tensor_raises(datatype: str, shape: list[int], data: bytes, error: type) -> None:
    with pytest.raises(error, match="tensor 't'"):
        to_array(cam.Tensor(name="t", datatype=datatype, shape=shape, data=data))


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "image", "error", "words"),
    [
        ("missing", b"x", NotFound, "no model 'missing'"),
        ("shapes", b"bad", InvalidInput, "damaged"),
        ("building", b"x", NotReady, "has no engine yet"),
        ("hung", b"x", DeadlineExceeded, "in time"),
    ],
)
def test_infer_failed_call_raises_matching_error(
    running: Running, model: str, image: bytes, error: type, words: str
) -> None:
    with Client(running.target, timeout=0.5) as client, pytest.raises(error, match=words):
        client.infer(model, image)


@pytest.mark.parametrize(
    ("code", "details", "kind", "words"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: x", DaemonUnavailable, "edged serve"),
        ("UNAVAILABLE", "failed to connect to all addresses; Permission denied", DaemonUnavailable, "group"),
        ("UNAVAILABLE", "DNS resolution failed for nowhere", DaemonUnavailable, "no such host"),
        ("UNAVAILABLE", "Socket closed", DaemonUnavailable, "went away"),
        ("UNIMPLEMENTED", "Method not found!", Unsupported, "not an edged daemon"),
        ("RESOURCE_EXHAUSTED", "SERVER: Received message larger than max (5 vs. 4)", TooLarge, "smaller picture"),
        ("RESOURCE_EXHAUSTED", "the queue is full", Overloaded, "queue"),
        ("FAILED_PRECONDITION", "it serves", Refused, "it serves"),
        ("INTERNAL", "two\nlines", EdgedError, "two lines"),
        ("PERMISSION_DENIED", None, Forbidden, "PERMISSION_DENIED without a reason"),
    ],
)
def test_to_edged_every_status_gives_one_line(code: str, details: str | None, kind: type, words: str) -> None:
    error = to_edged(grpc.StatusCode[code], details, "unix:/x")
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize("details", ["failed to connect to all addresses", "Socket closed"])
def test_to_edged_suggests_starting_a_daemon_only_for_this_machine(details: str) -> None:
    for target, is_here in (("unix:/x", True), ("tls:127.0.0.1:8001", True), ("tls:dock1.example:8001", False)):
        assert ("start" in str(to_edged(grpc.StatusCode.UNAVAILABLE, details, target))) is is_here


def test_code_name_of_known_and_unknown_codes() -> None:
    assert (code_name(14), code_name(0), code_name(99)) == ("UNAVAILABLE", "OK", "99")


# --- operations -----------------------------------------------------------------------------------------------------


def test_client_operations_return_values(client: Client, running: Running) -> None:
    (model,) = client.models()
    assert (model.name, model.state, model.swaps, model.settings) == ("shapes", "ready", 2, {"family": "yolo"})
    assert model.inputs[0].shape == (-1, 3, 64, 64)
    assert client.explain("shapes")[0].changes[0].json() == {"part": "driver", "old": "1", "new": "2"}
    assert client.device().facts == {"cpu.model": "x"}
    client.remove_model("shapes")
    assert running.daemon.removed == ["shapes"]
    full, bare = client.engines()
    assert [engine.key for engine in client.engines("other")] == ["def"]
    assert (bare.latency_ms, bare.build_s, bare.verdict) == (None, None, None)
    assert full.json()["verdict"] == {"accepted": True, "reason": "", "figures": {"cosine": 0.999}}


def test_add_model_uploads_model_and_external_data(client: Client, running: Running, tmp_path: Path) -> None:
    path = models.external(tmp_path)
    info = client.add_model("new", path, {"threads": "1"})
    assert (info.name, info.state, info.settings) == ("new", "loading", {"threads": "1"})
    ((_, files),) = running.daemon.uploads
    assert files == {name: (tmp_path / name).read_bytes() for name in ("model.onnx", "weights.bin")}
    with pytest.raises(AlreadyExists):
        client.add_model("taken", path)


def test_add_model_incomplete_model_is_not_uploaded(client: Client, running: Running, tmp_path: Path) -> None:
    with pytest.raises(ModelRefused):
        client.add_model("new", tmp_path / "none.onnx")
    path = models.external(tmp_path)
    package = Package.of("new", path, None)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelRefused):
        client.add_model("new", path)
    with pytest.raises(InvalidInput, match=r"weights\.bin"):  # raised while uploading, which aborts the upload
        client.upload(package)
    assert running.daemon.uploads == []


# --- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("unix:///run/x.sock", "unix:/run/x.sock"),
        ("/run/x.sock", "unix:/run/x.sock"),
        (Path("/run/x.sock"), "unix:/run/x.sock"),
        ("localhost:8001", "localhost:8001"),
        (":9000", "localhost:9000"),
        ("box", "box:8001"),
        ("10.0.0.7:80", "10.0.0.7:80"),
        ("[::1]", "[::1]:8001"),
        ("[::1]:5", "[::1]:5"),
        ("tls:box", "tls:box:8001"),
        ("tls:[::1]:9", "tls:[::1]:9"),
        ("grpcs://box:9000", "tls:box:9000"),
        ("grpcs://box/", "tls:box:8001"),
    ],
)
def test_resolve_valid_targets(text: str, target: str) -> None:
    assert resolve(text) == target == resolve(target)


def test_resolve_relative_socket_is_below_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("./x.sock") == resolve("unix:x.sock") == f"unix:{tmp_path}/x.sock"


@pytest.mark.parametrize(
    "text",
    [
        *("http://box:1", "box:", "box:0", "box:99999", "::1:5", "unix:", "/" + "x" * 200),
        *("tls:", "tls::8001", "tls:8001", "tls:/run/x", "grpcs://", "grpcs:///x", "tls:a:0"),
    ],
)
def test_resolve_invalid_target_raises(text: str) -> None:
    with pytest.raises(InvalidInput):
        resolve(text)


def test_resolve_no_target_gives_default_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/mine")
    monkeypatch.delenv("EDGED_TARGET", raising=False)
    assert resolve() == resolve("") == "unix:/run/mine/edged.sock"
    monkeypatch.setenv("EDGED_TARGET", "box:1")
    assert resolve() == "box:1"

"""A real daemon's HTTP API gives the same as gRPC: tensors, pictures, models, errors. Clients: curl, as the page about
HTTP shows, and NVIDIA's client."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import jsonschema
import numpy as np
import pytest

from edged.errors import ErrorCode
from edged.shapes import MODEL_PATH, Scene
from edged.tensors import numpy_dtype, to_bytes
from tests.integration import onnx_files
from tests.integration.daemon import Daemon
from tests.integration.web import ask

_ROOT = Path(__file__).parents[2]
_PICTURE = Scene(7).frame(0)[0]
_JPEG = cv2.imencode(".jpg", _PICTURE)[1].tobytes()


class HttpDaemon(Daemon):
    """A daemon that also listens for HTTP."""

    def __init__(self, listen: str, *arguments: str) -> None:
        super().__init__(*arguments, builds=False, config=f'[http]\nlisten = "{listen}"\nbody_mb = 4\n', endpoints=1)

    @property
    def web(self) -> str:
        return self.addresses[2]


def reported(daemon: HttpDaemon, method: str, path: str, output: Any = None) -> Any:
    status, _, body = ask(daemon.web, method, path, None if output is None else json.dumps(output).encode())
    assert status == 200, body
    return json.loads(body)


@pytest.fixture(scope="module")
def daemon() -> Iterator[HttpDaemon]:
    daemon = HttpDaemon("127.0.0.1:0", "--model", f"shapes={MODEL_PATH}")
    for datatype in onnx_files.DTYPES:
        onnx_files.identity(daemon.models / f"id_{datatype}.onnx", datatype)
    with daemon:
        for name in ("shapes", *(f"id_{datatype}" for datatype in onnx_files.DTYPES)):
            daemon.ready(name)
        yield daemon


def values_of(datatype: str) -> Any:
    random, dtype = np.random.default_rng(5), numpy_dtype(datatype)
    if datatype == "BOOL":
        return random.integers(0, 2, (3, 4)).astype(bool)
    if dtype.kind == "f":
        return random.standard_normal((3, 4)).astype(dtype)
    bounds = np.iinfo(dtype.name)
    return random.integers(bounds.min, bounds.max, (3, 4), dtype=dtype, endpoint=True)


@pytest.mark.parametrize("datatype", onnx_files.DTYPES)
def test_binary_tensors_return_unchanged(daemon: HttpDaemon, datatype: str) -> None:
    elements = [b"", "ß\0".encode(), b"x" * 300, b"a"]
    data = bytes(to_bytes(np.array(elements, np.object_)) if datatype == "BYTES" else values_of(datatype).tobytes())
    shape = [1, 4] if datatype == "BYTES" else [3, 4]
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    status, reported_headers, body = ask(daemon.web, "POST", f"/v2/models/id_{datatype}/infer", text + data, headers)
    assert status == 200, body
    length = int(reported_headers["inference-header-content-length"])
    assert json.loads(body[:length])["outputs"][0]["parameters"] == {"binary_data_size": len(data)}
    assert body[length:] == data


def test_strings_travel_as_json(daemon: HttpDaemon) -> None:
    texts = ["", "a", "Größe", "\n\0"]
    tensor = {"name": "x", "datatype": "BYTES", "shape": [1, 4], "data": texts}
    assert reported(daemon, "POST", "/v2/models/id_BYTES/infer", {"inputs": [tensor]})["outputs"][0]["data"] == texts


def test_metadata_readiness_and_statistics_of_models_and_the_server(daemon: HttpDaemon) -> None:
    assert reported(daemon, "GET", "/v2")["name"] == "edged"
    assert reported(daemon, "GET", "/v2/models/shapes/versions/1") == reported(daemon, "GET", "/v2/models/shapes")
    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/shapes/ready",
        "/v2/models/shapes/versions/1/ready",
    ):
        assert ask(daemon.web, "GET", path)[0::2] == (200, b"")
    metadata = reported(daemon, "GET", "/v2/models/shapes")
    assert metadata["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [1, 3, 320, 320]}]
    assert reported(daemon, "GET", "/v2/models/shapes/config")["input"][0]["dims"] == [1, 3, 320, 320]
    before = reported(daemon, "GET", "/v2/models/id_INT8/stats")["model_stats"][0]
    tensor = {"name": "x", "datatype": "INT8", "shape": [1, 4], "data": [1, 2, 3, 4]}
    reported(daemon, "POST", "/v2/models/id_INT8/infer", {"inputs": [tensor]})
    after = reported(daemon, "GET", "/v2/models/id_INT8/stats")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert {each["name"] for each in reported(daemon, "GET", "/v2/models/stats")["model_stats"]} >= {
        "shapes",
        "id_INT8",
    }
    index = reported(daemon, "POST", "/v2/repository/index", {"ready": True})
    assert {"name": "shapes", "version": "1", "state": "READY"} in index


def test_log_and_trace_settings_are_read_and_changed(daemon: HttpDaemon) -> None:
    assert reported(daemon, "GET", "/v2/trace/setting")["trace_level"] == ["OFF"]
    assert reported(daemon, "POST", "/v2/models/shapes/trace/setting", {"trace_rate": "500"})["trace_rate"] == "500"
    assert reported(daemon, "POST", "/v2/models/shapes/trace/setting", {"trace_rate": None})["trace_rate"] == "1000"
    assert reported(daemon, "POST", "/v2/logging", {"log_verbose_level": 1})["log_verbose_level"] == 1
    assert reported(daemon, "POST", "/v2/logging", {"log_verbose_level": 0}) == reported(daemon, "GET", "/v2/logging")


def _one(datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": "x", "datatype": datatype, "shape": shape, "data": [1] * 4}


@pytest.mark.parametrize(
    ("path", "output", "status", "words"),
    [
        ("/v2/models/nobody/infer", {"inputs": []}, 404, "nobody"),
        ("/v2/models/id_FP32/versions/9/infer", {"inputs": []}, 404, "9"),
        ("/v2/models/id_FP32/infer", {"inputs": []}, 400, "'x'"),
        ("/v2/models/id_FP32/infer", {"inputs": [_one("FP32", [4])]}, 400, "'x'"),
        ("/v2/models/id_FP32/infer", {"inputs": [_one("INT32", [1, 4])]}, 400, "INT32"),
        ("/v2/models/id_FP16/infer", {"inputs": [_one("FP16", [1, 4])]}, 400, "binary"),
        ("/v2/models/id_FP32/infer", {"inputs": [], "parameters": {"triton_x": 1}}, 400, "triton_x"),
        ("/v2/systemsharedmemory/region/r/register", {"key": "/r", "byte_size": 4}, 409, "unix socket"),
        ("/v2/cudasharedmemory/region/r/register", {"raw_handle": {"b64": ""}, "byte_size": 4}, 501, "CUDA"),
        ("/v2/systemsharedmemory/region/r/register", {"key": "/r", "byte_size": -4}, 400, "byte_size"),
        ("/v2/logging", {"log_everything": True}, 400, "log_everything"),
        ("/edged/v1/detect/nobody", "picture", 404, "nobody"),
    ],
)  # fmt: skip
def test_errors_have_the_status_and_message_of_grpc(
    daemon: HttpDaemon, path: str, output: Any, status: int, words: str
) -> None:
    got, _, body = ask(daemon.web, "POST", path, json.dumps(output).encode())
    assert got == status, body
    assert words in json.loads(body)["error"]
    assert "\n" not in json.loads(body)["error"]
    assert json.loads(body)["code"] in ErrorCode.__members__


def test_picture_gets_the_same_result_as_over_grpc(daemon: HttpDaemon) -> None:
    with daemon.client() as client:
        for query, options in (("", {}), ("?score=0.5&region=100,50,400,400&rotation=90&max_detections=2", {
            "score": 0.5, "region": (100, 50, 400, 400), "rotation": 90, "max_detections": 2,
        })):  # fmt: skip
            wanted = client.infer("shapes", _JPEG, **options)
            answer = json.loads(ask(daemon.web, "POST", f"/edged/v1/detect/shapes{query}", _JPEG)[2])
            assert answer["image"] == {"width": wanted.width, "height": wanted.height}
            assert len(answer["predictions"]) == len(wanted.detections) > 0
            for one, other in zip(answer["predictions"], wanted.detections, strict=True):
                assert one["class"] == other.label
                centre = ((other.x1 + other.x2) / 2, (other.y1 + other.y2) / 2)
                assert (one["x"], one["y"], one["confidence"]) == pytest.approx((*centre, other.score), abs=0.05)


def test_answers_fit_the_openapi_document(daemon: HttpDaemon) -> None:
    document = reported(daemon, "GET", "/openapi.json")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2.5, -3, 0]}
    asked: dict[str, Any] = {"/v2/models/{model}/infer": {"inputs": [tensor], "id": "7"}, "/v2/repository/index": None}
    for path, operations in document["paths"].items():
        is_language = (
            path == "/v1/models/{model}"
        )  # no language model here; tests/integration/test_language.py has some
        if ("get" not in operations and path not in asked) or "sharedmemory" in path or is_language:
            continue
        method = "get" if "get" in operations else "post"
        actual = path.replace("{model}", "id_FP32").replace("{version}", "1")
        status, _, body = ask(daemon.web, method.upper(), actual, json.dumps(asked.get(path) or {}).encode())
        assert status == 200, (path, body)
        fits(document, operations[method]["responses"]["200"], body)
    detected = document["paths"]["/edged/v1/detect/{model}"]["post"]["responses"]["200"]
    fits(document, detected, ask(daemon.web, "POST", "/edged/v1/detect/shapes", _JPEG)[2])
    fits(document, document["components"]["responses"]["Error"], ask(daemon.web, "GET", "/v2/models/none")[2])


def fits(document: Any, response: Any, body: bytes) -> None:
    """Check that the body has the schema of the response; without a schema it must be empty."""
    if "content" not in response:
        assert body == b""
        return
    schema = response["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(json.loads(body))


def test_commands_of_the_http_page_work(daemon: HttpDaemon, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (tmp_path / "street.jpg").write_bytes(_JPEG)
    shutil.copy(MODEL_PATH, daemon.models / "doors.onnx")
    onnx_files.identity(daemon.models / "scale.onnx", "FP32")
    for name in ("doors", "scale"):
        daemon.ready(name)
    text = (_ROOT / "docs" / "http.md").read_text().replace("\\\n", "")
    lines = re.findall(r"^    ((?:curl|head) .*)$", text, re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        command = line.replace("http://localhost:8000", daemon.web)
        words = shlex.split(command) if command.startswith("curl") else ["sh", "-c", command]
        if words[0] == "curl":
            words[1:1] = ["--silent", "--show-error", "--fail"]
        done = subprocess.run(words, capture_output=True, cwd=tmp_path, timeout=60)
        assert done.returncode == 0, (line, done.stderr)
        if "detect" in line:
            assert json.loads(done.stdout)["predictions"], line
    answer = (tmp_path / "answer.bin").read_bytes()
    assert answer.endswith(bytes(16))


def test_http_shared_memory_over_a_unix_socket_works_in_both_directions() -> None:
    with HttpDaemon("unix:HOME/http.sock") as daemon:
        onnx_files.identity(daemon.models / "id.onnx", "FP32")
        daemon.ready("id")
        path = daemon.web.removeprefix("http+unix:")
        assert os.stat(path).st_mode & 0o777 == 0o660

        def send(method: str, target: str, output: Any = None) -> tuple[int, Any]:
            status, _, body = ask(daemon.web, method, target, json.dumps(output or {}).encode())
            return status, json.loads(body or b"null")

        segment = Path("/dev/shm") / f"edt-{os.getpid()}"
        values = np.arange(4, dtype=np.float32)
        segment.write_bytes(values.tobytes() + bytes(16))
        try:
            region = {"key": f"/{segment.name}", "byte_size": 32}
            assert send("POST", "/v2/systemsharedmemory/region/r/register", region) == (200, None)
            assert send("GET", "/v2/systemsharedmemory/region/r/status") == (
                200,
                [{"name": "r", "offset": 0, **region}],
            )
            place = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
            request = {
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": place}],
                "outputs": [{"name": "y", "parameters": {**place, "shared_memory_offset": 16}}],
            }
            status, answer = send("POST", "/v2/models/id/infer", request)
            assert status == 200, answer
            assert answer["outputs"][0]["parameters"]["shared_memory_offset"] == 16
            assert segment.read_bytes()[16:] == values.tobytes()
            assert send("POST", "/v2/systemsharedmemory/unregister") == (200, None)
            assert send("GET", "/v2/systemsharedmemory/status") == (200, [])
        finally:
            segment.unlink()
        assert daemon.stop() == 0
        assert not Path(path).exists()


def test_daemon_without_http_imports_no_http_library(daemon: HttpDaemon) -> None:
    """The imports of the daemon's main module contain neither uvicorn nor h11."""
    code = "import sys, edged.daemon.main; print(sorted({'uvicorn', 'h11'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.fixture(scope="module")
def seen(daemon: HttpDaemon) -> Any:
    if importlib.util.find_spec("geventhttpclient") is None:
        pytest.skip("tritonclient[http] is not installed")
    datatypes = [name for name in onnx_files.DTYPES if name != "BF16"]
    command = [sys.executable, "-m", "tests.integration.http_peer", daemon.web.removeprefix("http://"), *datatypes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=_ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nvidias_client_reads_everything(seen: Any) -> None:
    assert (seen["live"], seen["ready"], seen["unready"], seen["server"]) == (True, True, False, "edged")
    assert seen["metadata"] == [{"name": "images", "datatype": "FP32", "shape": [1, 3, 320, 320]}]
    assert (seen["config"], seen["trace"], seen["log"]) == ("TYPE_FP32", ["OFF"], 0)
    assert "shapes" in seen["index"]
    assert seen["refusal"][0] == "404"
    assert "nobody" in seen["refusal"][1]
    assert seen["statistics"] > 0


def test_nvidias_client_gets_its_tensors_back_unchanged(seen: Any) -> None:
    assert all(seen["binary"].values()), seen["binary"]
    assert all(seen["json"].values()), seen["json"]
    assert seen["packed"]

"""The command of the KServe runtime, as its manifest has it: a folder that is only read, and calls without TLS."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from tritonclient.grpc import InferenceServerClient, InferInput

from edged.shapes import MODEL_PATH
from tests.integration.daemon import Daemon, wait_for

RUNTIME = Path(__file__).parents[2] / "deploy" / "kserve" / "clusterservingruntime.yaml"
NAME = "doors"


class Pod:
    """The runtime's container: its command line and environment, with free ports."""

    def __init__(self, home: Path, models: Path) -> None:
        (container,) = yaml.safe_load(RUNTIME.read_text())["spec"]["containers"]
        self.container, self.ports = container, {}
        for each in container["ports"]:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.ports[each["containerPort"]] = free.getsockname()[1]
        self.arguments = [self._placed(each, models) for each in container["args"]]
        self.environment = {
            **os.environ,
            **{each["name"]: self._placed(each["value"], models) for each in container["env"]},
            **{name: str(home / name) for name in ("STATE_DIRECTORY", "CACHE_DIRECTORY", "RUNTIME_DIRECTORY")},
            "EDGED_ENGINES_BUILD": "command",
        }

    def _placed(self, text: str, models: Path) -> str:
        text = text.replace("{{.Name}}", NAME).replace("/mnt/models", str(models))
        return re.sub(r"(?<=:)\d+\b", lambda found: str(self.ports.get(int(found[0]), found[0])), text)

    def get(self, path: str, port: int) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=10)
        try:
            connection.request("GET", path, headers={"Host": f"{NAME}.default.example"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()


@contextmanager
def running(models: Path) -> Iterator[Pod]:
    with tempfile.TemporaryDirectory(prefix="edt-") as home:
        pod = Pod(Path(home), models)
        command = [sys.executable, "-m", "edged", *pod.arguments]
        process = subprocess.Popen(command, env=pod.environment, stdout=subprocess.DEVNULL)
        try:
            probe = pod.container["readinessProbe"]["httpGet"]
            path = probe["path"].replace("{{.Name}}", NAME)
            wait_for("the pod is ready", lambda: pod.get(path, probe["port"])[0] == 200, 120)
            yield pod
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.parametrize("place", ["model.onnx", "1/model.onnx", "doors/3/model.onnx", "yolo.onnx"])
def test_folder_of_a_model_is_found_and_not_written(tmp_path: Path, place: str) -> None:
    models = tmp_path / "models"
    (models / place).parent.mkdir(parents=True)
    shutil.copy(MODEL_PATH, models / place)
    before = sorted(models.rglob("*"))
    with Daemon("--model", f"{NAME}={models}", builds=False) as daemon:
        daemon.ready(NAME)
        with daemon.client() as client:
            client.infer(NAME, np.zeros((240, 320, 3), np.uint8))
    assert sorted(models.rglob("*")) == before


def test_folder_without_a_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    with Daemon("--model", f"{NAME}={tmp_path}", builds=False) as daemon, daemon.client() as client:
        wait_for("it is refused", lambda: any("name the .onnx file" in each.reason for each in client.models()))


def test_container_answers_as_kserve_calls_it(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(MODEL_PATH, models / "model.onnx")
    models.chmod(0o555)
    with running(models) as pod:
        assert pod.get("/v2/health/live", 8080)[0] == 200
        assert b'"name":"doors"' in pod.get("/v2/models/doors", 8080)[1]
        assert pod.get("/v2/models/other/ready", 8080)[0] != 200
        annotations = yaml.safe_load(RUNTIME.read_text())["spec"]["annotations"]
        scraped = pod.get(annotations["prometheus.kserve.io/path"], int(annotations["prometheus.kserve.io/port"]))
        assert b"edged_" in scraped[1]
        with InferenceServerClient(f"127.0.0.1:{pod.ports[9000]}") as client:
            assert client.is_model_ready(NAME)
            (about,) = client.get_model_metadata(NAME).inputs
            shape = [each if each > 0 else 1 for each in about.shape]
            asked = InferInput(about.name, shape, about.datatype)
            asked.set_data_from_numpy(np.zeros(shape, np.float32))
            client.infer(NAME, [asked])
            with pytest.raises(Exception, match=r"needs the role operate|needs a token"):
                client.unload_model(NAME)

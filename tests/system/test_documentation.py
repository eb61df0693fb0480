"""Every command, program and TOML file in README.md and docs/ works, or is listed in `NOT_RUN` with a reason.

New documentation is tested automatically; an example that cannot run here needs an entry. All examples share one daemon
and one folder, with models and files named as in the documentation.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from edged.cli import inventory
from edged.cli.app import app
from edged.config import reading
from edged.errors import EdgedError
from edged.models import settings
from edged.shapes import MODEL_PATH, Scene
from tests.integration.daemon import Daemon
from tests.system.snippets import Snippet, of_file

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "jetson" / "README.md")
SNIPPETS = tuple(snippet for file in FILES for snippet in of_file(file, ROOT))

# Examples that are not run: a pattern of their beginning, and the reason.
NOT_RUN = {
    r"(sudo )?(systemctl|make install)|journalctl|sudo (adduser|rm|jetson|apt|mv|cp)": "needs root and a service",
    r" cameras? ─|<Protobuf": "a picture of the parts, a line of a project file of C#",
    r"make (deb|image)": "takes minutes; tests/system/test_deb.py and test_image.py do it",
    r"jetson/|docker|rsync|cp -r|chown": "needs a Jetson, a container or another machine",
    r"edged up|edged cameras set (camera|gate)": "runs until Ctrl-C; tests/system/test_up.py runs it",
    r"npm|node|python docs/samples": "tests/integration/test_sample_clients.py runs them",
    r"pip install|protoc": "needs the network; tests/unit/test_package.py and test_packages.py look at it",
    r"edged serve$": "the daemon of this test is one",
    r"edged doctor": "takes a minute; tests/integration/test_doctor.py runs it",
    r"edged export": "needs a training framework; tests/export runs it",
    r"edged models add \S+ https": "needs a server; tests/integration/test_references.py has one",
    r"kubectl": "needs a cluster; tests/unit/test_deploy.py checks the manifests",
    r"(sudo )?edged fleet": "needs a shared store; tests/integration/test_fleet.py has one",
    r"edged report": "takes a minute; tests/integration/test_box_report.py runs it",
    r"make verified": "needs a report; tests/unit/test_box_report.py makes some",
    r"edged self-check": "takes some seconds; tests/integration/test_self_check.py runs it",
    r"edged engines report": "needs a built engine; tests/integration/test_frame_judgement.py makes one",
    r"edged engines build": "needs TensorRT for RTX; tests/integration/test_tensorrt_rtx.py runs it",
    r"edged [\w ]*.*(--inventory|tls:dock)": "needs other boxes; tests/integration/test_remote.py has some",
    r"edged reload|sudo edged reload": "needs a daemon with a file; tests/integration/test_reload.py runs it",
    r"edged config check edged.toml": "shows what is wrong; tests/unit/test_config_command.py runs it",
    r"edged models (add|set) owl": "needs weights; tests/integration/test_prompted_models.py runs it",
    r"edged (models add|chat) (qwen|small)|curl localhost:8000/v1/|genai:|.*(\.chat\(|import OpenAI)": (
        "needs a language model; tests/integration/test_language.py has one"
    ),
    r"edged models add faces": "the model exists; tests/integration/test_gallery.py adds it",
    r"edged models add yolo|edged models add street": "shows a refusal; tests/integration/test_repairs.py runs it",
    r"edged \d|cpu \d|making |[A-Z]{4}|doors  |front|openvino  |open  |\{\"time": "output",
    r"edged (infer|stream) vad|.*\bmicrophone\b": "needs a sound; tests/integration/test_sound.py has some",
    r"(# )?models/read_plate/": "files of Triton's repository; tests/integration/test_ensembles.py writes some",
    r"# (Frigate|prometheus)": "a file of another program",
    r"\[project": "a file of another package; tests/integration/test_third_party_families.py writes one",
    r".*--mqtt": "needs a broker; tests/unit/test_sink_mqtt.py has one",
    r"from edged.client import Client\nfrom edged.client.credentials": "needs another box",
    r"from edged.client import Client, open_source\n.*Preview\(8090\)": "takes a port that another test may have",
    r"socket = zmq.Context.instance\(\).socket\(zmq.SUB\)": "never ends; tests/integration/test_endpoints.py has it",
}
# Replacements for what tests lack: cameras, sockets of a service, ports, keys of engines.
STAND_INS = (
    (r"^sudo (-u edged )?edged", "edged"),
    (r"rtsp://\S+?(?=[\"')\s]|$)|/dev/video0|csi://0", "hall.mp4"),
    (r"--preview 8090", "--preview 0"),
    (r"/etc/edged/", ""),
    (r"/run/edged/", "{home}/"),
    (r"localhost:8000", "localhost:{http}"),
    (r"localhost:8001", "{tcp}"),
    (r"\"yolo\"", '"doors"'),
    (r"--(engine) 1a27f9\b", "--engine {key}"),
    (r"\b1a27f9d6\b", "{key}"),
    (r"model\.onnx", "doors.onnx"),
    (r" \| jq .*$", ""),
    (r"models add doors? .*$", r"\g<0> --set backends=onnxruntime"),  # one engine is enough to show a build
)
ENDLESS = re.compile(r"edged events --follow")


class House:
    """The daemon, the folder in which examples run, and the values of the replacements."""

    def __init__(self, daemon: Daemon, http: int) -> None:
        self.daemon, self.place = daemon, daemon.home / "reader"
        self._known = {"home": str(daemon.home), "http": str(http), "tcp": daemon.tcp}
        self.environment = {"EDGED_TARGET": daemon.unix, "EDGED_STATE": str(daemon.state)}
        self.environment |= {"EDGED_CACHE": str(daemon.cache), "COLUMNS": "120"}

    def key(self) -> str:
        """Return the key of an engine of the documentation's first model, if possible of a stored one."""
        with self.daemon.client() as client:
            return max(client.engines("doors"), key=lambda engine: (engine.bytes > 0, engine.state == "ready")).key[:12]

    def stand_in(self, text: str) -> str:
        for pattern, instead in STAND_INS:
            text = re.sub(pattern, instead, text)
        known = self._known | ({"key": self.key()} if "{key}" in text else {})
        for name, value in known.items():
            text = text.replace(f"{{{name}}}", value)
        return text


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    config, port = tmp_path_factory.mktemp("configuration") / "edged.toml", free_port()
    daemon = Daemon("--config", str(config), builds=False)
    http, zmq = f'[http]\nlisten = "127.0.0.1:{port}"\n', f'[zmq]\nframes = "ipc://{daemon.home}/frames.zmq"\n'
    config.write_text(http + zmq + '[pipelines.plates]\ndetect = "doors"\nthen = "doors"\n')
    place = daemon.home / "reader"
    place.mkdir()
    fill(place)
    for name in ("scale", "doors", "faces"):
        (daemon.models / name / "1").mkdir(parents=True)
        shutil.copy(place / f"{name}.onnx", daemon.models / name / "1" / "model.onnx")
        # One engine is enough to show a build.
        (daemon.models / name / "edged.toml").write_text('backends = ["onnxruntime"]\n')
    with daemon:
        for name in ("scale", "doors", "faces"):
            daemon.ready(name)
        yield House(daemon, port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fill(place: Path) -> None:
    """Write the files that the documentation names."""
    scene = Scene(2_000_000_001, 640, 480)
    pictures = [scene.frame(number)[0] for number in range(10)]
    for name in ("hall.jpg", "street.jpg", "ada.jpg", "ada-2.jpg", "bert.jpg"):
        cv2.imwrite(str(place / name), pictures[0])
    video = cv2.VideoWriter(str(place / "hall.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (640, 480))
    for picture in pictures:
        video.write(picture)
    video.release()
    for name in ("doors.onnx", "door.onnx"):
        shutil.copy(MODEL_PATH, place / name)
    data = helper.make_tensor_value_info("data", TensorProto.FLOAT, ["n", 3, 112, 112])
    embedding = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", 12])
    nodes = [
        helper.make_node("AveragePool", ["data"], ["pooled"], kernel_shape=[56, 56], strides=[56, 56]),
        helper.make_node("Flatten", ["pooled"], ["embedding"]),
    ]
    faces = helper.make_graph(nodes, "faces", [data], [embedding])
    onnx.save(helper.make_model(faces, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), place / "faces.onnx")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "scale", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), place / "scale.onnx")


def why_not(snippet: Snippet) -> str:
    return next((why for begin, why in NOT_RUN.items() if re.match(begin, snippet.text, re.DOTALL)), "")


def run_command(house: House, text: str) -> str:
    """Run a command; return what went wrong, or ""."""
    if ENDLESS.match(text):
        return _interrupted(house, text)
    line, _, file = house.stand_in(text).partition(" > ")
    words = shlex.split(line)
    if words[0] != "edged":
        done = subprocess.run(
            ["sh", "-c", house.stand_in(text)], capture_output=True, text=True, timeout=30, check=False
        )
        failed = '"error"' in done.stdout
        return done.stderr + done.stdout if done.returncode or failed else ""
    result = CliRunner().invoke(app, words[1:], env=house.environment)
    if file:
        Path(file).write_text(result.stdout)
    return "" if result.exit_code == 0 else f"status {result.exit_code}: {result.output[-500:]} {result.exception!r}"


def _interrupted(house: House, text: str) -> str:
    """Run a command until it prints a line, then send Ctrl-C; return what went wrong, or ""."""
    command = [sys.executable, "-m", *shlex.split(house.stand_in(text))]
    environment = os.environ | house.environment
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    return "" if first and process.returncode in (0, 130) else f"status {process.returncode}: {err}"


def read_toml(text: str, place: Path) -> str:
    """Return why TOML is invalid as configuration of a daemon, a model and a client; "" if one of them accepts it."""
    file = place / "snippet.toml"
    file.write_text(text)
    problems = [str(problem) for problem in reading.read(file, {}).problems[:1]]
    for read in (lambda: settings.validate(settings.read_toml(text.encode())), lambda: inventory.load(file)):
        if not problems:
            return ""
        try:
            read()
        except EdgedError as error:
            problems.append(str(error))
        else:
            return ""
    return "; ".join(problems)


_PROGRAMS = """
import json, sys, traceback
import numpy, numpy as np
from tritonclient import grpc
import tritonclient.grpc
pictures = [open("hall.jpg", "rb").read()]
pixels = np.zeros((720, 1280, 3), np.uint8)
failed = {}
for place, text in json.load(sys.stdin).items():
    try:
        exec(compile(text, place, "exec"), dict(globals()))
    except BaseException:
        failed[place] = traceback.format_exc(limit=-3)
print("\\n" + json.dumps(failed))
"""


def run_programs(house: House, programs: dict[str, str]) -> dict[str, str]:
    """Run all programs in one process; return what went wrong, by place."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAMS],
        input=json.dumps({place: house.stand_in(text) for place, text in programs.items()}),
        capture_output=True,
        text=True,
        cwd=house.place,
        env=os.environ | house.environment,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    failed: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return failed


@pytest.mark.long
@pytest.mark.timeout(300)  # a busy box takes long to build and verify
def test_documentation_every_example_works(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(house.place)
    failed: dict[str, str] = {}
    programs: dict[str, str] = {}
    for snippet in SNIPPETS:
        if why_not(snippet):
            continue
        if snippet.kind == "python":
            programs[snippet.place] = snippet.text
        elif snippet.kind == "toml":
            if wrong := read_toml(snippet.text, house.place):
                failed[f"{snippet.place}: {snippet.text}"] = wrong
        elif snippet.kind == "other":
            failed[f"{snippet.place}: {snippet.text}"] = "neither a command nor a program nor TOML; see NOT_RUN"
        elif snippet.kind == "command":
            if wrong := run_command(house, snippet.text):
                failed[f"{snippet.place}: {snippet.text}"] = wrong
            if snippet.text.startswith("edged models add doors "):
                house.daemon.ready("doors")
    failed |= run_programs(house, programs)
    assert not failed, "\n\n".join(f"{place}\n{wrong}" for place, wrong in failed.items())


@pytest.mark.long
def test_documentation_exceptions_are_still_needed() -> None:
    texts = [snippet.text for snippet in SNIPPETS]
    assert [begin for begin in NOT_RUN if not any(re.match(begin, text, re.DOTALL) for text in texts)] == []

"""The whole command line in child processes: every failure is one line, and output is complete."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tests import models, programs

pytestmark = pytest.mark.timeout(120)

NOWHERE = "/proc/nowhere"  # not even root can create a folder here
COMMANDS = [
    *(
        "up",
        "demo",
        "serve",
        "config",
        "models",
        "export",
        "family",
        "inspect",
        "infer",
        "chat",
        "stream",
        "pipelines",
        "cameras",
    ),
    *("gallery", "samples", "status", "top", "page", "engines", "events", "logs", "fleet", "inventory", "device"),
    *("doctor", "self-check", "report", "reload", "tokens", "tls"),
]


class Shell:
    """Runs `edged` in a scratch folder, with its own models and engines and without a daemon."""

    def __init__(self, home: Path) -> None:
        self.home = home
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("EDGED_", "XDG_"))}
        self.environment = inherited | {
            "HOME": str(home),
            "EDGED_STATE": str(home / "state"),
            "EDGED_CACHE": str(home / "cache"),
            "RUNTIME_DIRECTORY": str(home / "run"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return programs.edged(*words, environment=self.environment | environment, folder=self.home)


@pytest.fixture
def edged(tmp_path: Path) -> Shell:
    models.save(models.conv(), tmp_path / "good.onnx")
    return Shell(tmp_path)


def test_help_lists_commands_in_order(edged: Shell) -> None:
    lines = edged("--help").stdout.partition("Commands:")[2].splitlines()
    assert [line.split()[0] for line in lines if line.strip()] == COMMANDS


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["models", "add", "m", "good.onnx", "--state", NOWHERE], 1, f"cannot use {NOWHERE}: "),
        (["engines", "list", "--cache", NOWHERE], 1, f"cannot use {NOWHERE}: "),
        (["engines", "why", "m", "--cache", NOWHERE], 1, f"cannot use {NOWHERE}: "),
        (["engines", "show", "abcdef", "--cache", NOWHERE], 1, f"cannot use {NOWHERE}: "),
        (["engines", "show", "abcdef"], 1, "no engine has a key"),
        (["engines", "list", "--state", "s", "--target", "localhost:1"], 2, "a daemon has its own folders"),
        (["engines", "rebuild"], 2, "nothing selected to rebuild"),
        (["engines", "evict", "--all"], 1, "no edged daemon answers"),
        (["status"], 1, "no edged daemon answers"),
        (["events", "--after", "yesterday"], 2, "not an event number"),
        (["serve", "--listen", "localhost:99999"], 2, "from 0 to 65535"),
        (["serve", "--listen", "localhost.evil.com:80"], 2, "reachable from other machines"),
        (["serve", "--listen", f"unix:{NOWHERE}/s.sock"], 2, f"cannot listen on {NOWHERE}/s.sock: "),
        (["inspect", "none.onnx"], 2, "file none.onnx does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_command_failure_is_one_line(edged: Shell, words: list[str], status: int, message: str) -> None:
    ended = edged(*words)
    assert (ended.returncode, ended.stdout) == (status, "")
    lines = [line for line in ended.stderr.splitlines() if not line.startswith(("E0", "E1", "I0", "W0"))]  # gRPC's
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("edged: ")
    assert message in lines[0]


def test_inspect_needs_no_cache(edged: Shell) -> None:
    ended = edged("inspect", "good.onnx", EDGED_CACHE=NOWHERE)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert "can be served here" in ended.stdout


def test_inspect_reports_every_problem_of_a_model(edged: Shell) -> None:
    proto = models.identity()
    proto.graph.node[0].CopyFrom(helper.make_node("SequenceConstruct", ["x"], ["many"]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_sequence_value_info("many", TensorProto.FLOAT, [1]))
    models.save(proto, edged.home / "bad.onnx")
    whole, ended = edged("inspect", "good.onnx", "--json"), edged("inspect", "bad.onnx", "--json")
    assert (whole.returncode, ended.returncode) == (0, 2)
    good, bad = json.loads(whole.stdout), json.loads(ended.stdout)
    assert list(bad) == list(good)
    assert bad["ok"] is False
    assert (bad["stage"], bad["category"], bad["node"]) == ("graph", "unservable_type", "many")
    assert bad["message"] == "'many' is a sequence: only tensors can be served"
    assert bad["remedy"] == "remove the node that produces it"
    assert bad["opsets"] == {"ai.onnx": models.OPSET}
    assert bad["operators"] == {"SequenceConstruct": 1}
    assert bad["inputs"][0]["name"] == "x"
    assert bad["outputs"][0]["datatype"] == "SEQUENCE"
    assert set(bad["backends"]) == set(good["backends"])
    assert not any(backend["ok"] for backend in bad["backends"].values())
    table = edged("inspect", "bad.onnx")
    assert table.returncode == 2
    verdict, stage, remedy = (line.split(maxsplit=1)[1] for line in table.stdout.splitlines()[-3:])
    assert verdict == f"cannot be served here: {bad['message']}"
    assert (stage, remedy) == ("graph: unservable type", bad["remedy"])


def test_inspect_missing_external_data_is_listed(edged: Shell) -> None:
    models.external(edged.home / "m", write=False)
    ended = edged("inspect", "m/model.onnx", "--json")
    assert ended.returncode == 2
    found = json.loads(ended.stdout)
    why, remedy = "external data 'weights.bin' is missing", "put it into the model's folder"
    assert (found["category"], found["message"], found["remedy"]) == ("external_missing", why, remedy)
    assert found["external"] == [{"path": "weights.bin", "size": 0, "problem": f"{why}; {remedy}"}]


def test_named_folder_overrides_the_environment(edged: Shell) -> None:
    away = {"EDGED_TARGET": "localhost:1"}
    assert edged("models", "add", "mine", "good.onnx", "--state", "s", **away).returncode == 0
    listed = edged("models", "list", "--state", "s", "--json", **away)
    assert [model["name"] for model in json.loads(listed.stdout)["models"]] == ["mine"]
    assert "no edged daemon answers" in edged("models", "list", **away).stderr


def test_engines_show_listed_engine(edged: Shell) -> None:
    assert edged("models", "add", "mine", "good.onnx").returncode == 0
    first, *_ = json.loads(edged("engines", "list", "--json").stdout)["engines"]
    shown = json.loads(edged("engines", "show", first["key"][:10], "--json").stdout)
    assert shown == {**first, "models": ["mine"]}
    lines = edged("engines", "show", first["key"]).stdout.splitlines()
    assert lines[0].split() == ["key", first["key"]]
    assert all(any(line.startswith(f"part {part} ") for line in lines) for part in first["parts"])


def test_device_in_a_pipe_prints_whole_lines(edged: Shell) -> None:
    facts = json.loads(edged("device", "--json").stdout)
    lines = edged("device", COLUMNS="40").stdout.splitlines()
    assert lines[-1].split() == ["digest", facts["digest"]]
    assert len(lines) == len(facts["facts"]) + len(facts["devices"]) + 1
    assert all(line == line.rstrip() for line in lines)

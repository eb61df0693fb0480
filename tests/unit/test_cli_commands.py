"""Operators' commands: their output, the stream it goes to, and the exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from edged import formatting
from edged.api_types import AlarmInfo, DriftInfo, ModelInfo
from edged.cli.app import app
from edged.cli.events import position
from edged.client.client import Client
from edged.errors import InvalidInput
from edged.proto import operations_pb2 as ops
from tests.programs import program
from tests.terminal import Terminal
from tests.unit.client_commands import KEYS
from tests.unit.client_daemon import Running

pytestmark = pytest.mark.timeout(60)

REBUILD = ("engines", "rebuild", "--follow")
FIRST, SECOND = "doors aaaaaa111111 openvino/fp32", "doors bbbbbb222222 openvino/fp32"


def call(running: Running | str, *line: str) -> Result:
    target = running if isinstance(running, str) else running.target
    return CliRunner().invoke(app, [*line, "--target", target])


# --- rebuild and verify ---------------------------------------------------------------------------------------------


def test_rebuild_returns_at_once(running: Running) -> None:
    result = call(running, "engines", "rebuild", "doors", "--force")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [f"{FIRST}: waiting", f"{SECOND}: waiting"]
    assert running.daemon.commands.given == [ops.RebuildRequest(selector={"model": "doors"}, force=True)]


@pytest.mark.parametrize("command", [("rebuild", "--follow"), ("verify",)])
def test_rebuild_followed_prints_each_step(running: Running, command: tuple[str, ...]) -> None:
    result = call(running, "engines", *command, "doors")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{FIRST}: waiting",
        f"{SECOND}: waiting",
        f"{FIRST}: building 0%, 0.0 s of about 30 s",
        f"{FIRST}: ready",
        f"{SECOND}: ready",
    ]


@pytest.mark.parametrize(("command", "done"), [("rebuild", "rebuilt"), ("verify", "verified")])
def test_rebuild_failed_engine_is_named_and_sets_the_status(running: Running, command: str, done: str) -> None:
    result = call(running, "engines", command, "bad", "--follow")
    line = "bad bbbbbb222222 openvino/fp32: rejected: its answers are wrong"
    assert (result.exit_code, line in result.stdout) == (1, True)
    assert result.stderr == f"edged: 1 of 2 engines could not be {done}: {line}\n"


def test_rebuild_json_is_one_object_for_every_change(running: Running) -> None:
    result = call(running, "engines", "rebuild", "--all", "--follow", "--json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(found) == 7
    assert " ".join(found[0]) == (
        "key model backend precision device state reason phase fraction elapsed_s estimate_s done succeeded"
    )
    assert (found[0]["fraction"], found[0]["estimate_s"]) == (None, None)
    assert (found[3]["key"], found[3]["phase"], found[3]["fraction"]) == (KEYS[0], "building", 0.25)
    assert all(line["succeeded"] for line in found[-2:])
    for verb in (("rebuild",), ("verify", "--no-follow")):
        started = call(running, "engines", *verb, "--all", "--json").stdout.splitlines()
        assert [json.loads(line)["key"] for line in started] == list(KEYS)


def test_rebuild_without_missing_engines_says_so(running: Running) -> None:
    for follow in ((), ("--follow",)):
        result = call(running, "engines", "rebuild", "nothing", *follow)
        assert (result.exit_code, "--force" in result.stdout) == (0, True)
    assert call(running, "engines", "rebuild", "nothing", "--follow", "--json").stdout == ""


def test_rebuild_on_a_terminal_draws_bars_and_prints_outcomes(running: Running) -> None:
    with Terminal(*REBUILD, "doors", "-t", running.target, columns=160, stdout=subprocess.PIPE) as terminal:
        assert terminal.ended() == 0
        assert terminal.process.stdout is not None
        with terminal.process.stdout as printed:
            assert printed.read().decode().splitlines() == [f"{FIRST}: ready", f"{SECOND}: ready"]
        assert FIRST in terminal.text
        assert "100%" in terminal.text


def test_rebuild_interrupted_says_that_the_daemon_continues(running: Running) -> None:
    process = program(*REBUILD, "endless", "-t", running.target)
    assert process.stdout is not None
    assert "waiting" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == "the daemon continues this work; see: edged status; to stop the work: edged engines cancel\n"


# --- all commands ---------------------------------------------------------------------------------------------------

VERBS = ("rebuild", "verify", "cancel", "pin", "unpin", "evict")


@pytest.mark.parametrize("verb", VERBS)
def test_command_without_selection_is_refused(running: Running, verb: str) -> None:
    result = call(running, "engines", verb)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"edged: nothing selected to {verb}; give MODEL, --engine KEY, or --all")
    both = call(running, "engines", verb, "doors", "--all")
    assert (both.exit_code, "--all cannot be used" in both.stderr) == (2, True)
    assert running.daemon.commands.given == []


@pytest.mark.parametrize(
    ("verb", "done"), [("cancel", "cancelled"), ("pin", "pinned"), ("unpin", "unpinned"), ("evict", "evicted")]
)
def test_command_prints_the_selected_keys(running: Running, verb: str, done: str) -> None:
    result = call(running, "engines", verb, "--engine", "aaaaaa")
    assert result.stdout.splitlines() == [f"{done} {key}" for key in KEYS]
    assert running.daemon.commands.given == [ops.SelectEngines(selector={"engine": "aaaaaa"})]
    assert json.loads(call(running, "engines", verb, "--all", "--json").stdout) == {"engines": list(KEYS)}
    assert call(running, "engines", verb, "nothing").stdout.startswith(f"nothing to {verb}")


# --- status ---------------------------------------------------------------------------------------------------------


def test_status_without_alarms_is_zero(running: Running) -> None:
    result = call(running, "status")
    assert result.exit_code == 0
    assert [line.split(maxsplit=1) for line in result.stdout.splitlines()] == [
        ["edged", "0.1.0, up 1 h 2 min"],
        ["models", "2 of 3 serve"],
        ["engines", "5, 12.3 MB of 2.0 GB; 4.5 GB free on the disk"],
        ["making", f"{FIRST}: building 25%, 12 s of about 30 s"],
        ["alarms", "none"],
    ]


def test_status_with_alarms_is_one(running: Running) -> None:
    slow = ops.Alarm(kind="slow", message="takes 4 times as long", model="doors", engine=KEYS[0], since_unix_s=1.6e9)
    paused = ops.Alarm(kind="builds_paused", message="the disk is full", since_unix_s=1.6e9)
    running.daemon.commands.alarms = [slow, paused]
    result = call(running, "status")
    assert (result.exit_code, result.stderr) == (1, "")
    first, second = result.stdout.splitlines()[-2:]
    assert first.startswith(f"alarms   slow since {formatting.moment(1.6e9)}: doors {KEYS[0]}: takes 4 times as long")
    assert second.strip() == f"builds_paused since {formatting.moment(1.6e9)}: the disk is full"
    plain = call(running, "status", "--json")
    assert plain.exit_code == 1
    assert [alarm["kind"] for alarm in json.loads(plain.stdout)["alarms"]] == ["slow", "builds_paused"]


def model(name: str, **more: Any) -> ModelInfo:
    fields = dict.fromkeys(("version", "digest", "reason", "family", "engine", "backend"), "")
    return ModelInfo(
        **{"name": name, "state": "ready", "inputs": (), "outputs": (), "settings": {}, "swaps": 0} | fields | more
    )


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[ModelInfo]:
    """The models that the daemon at box:1 lists."""
    models: list[ModelInfo] = []
    monkeypatch.setattr(Client, "models", lambda _: models)
    return models


def test_models_list_has_a_column_for_alarms_only_if_any_is_raised(found: list[ModelInfo]) -> None:
    found.append(model("doors"))
    assert "alarms" not in call("box:1", "models", "list").stdout
    found.append(model("cars", alarms=(AlarmInfo("slow", "takes 4 times as long", "cars", "", 1.6e9),)))
    titles, _, row = call("box:1", "models", "list").stdout.splitlines()
    assert titles.split()[-1] == "alarms"
    assert row.endswith("takes 4 times as long")
    assert json.loads(call("box:1", "models", "list", "--json").stdout)["models"][1]["alarms"][0]["kind"] == "slow"


def test_models_ensemble_is_shown_with_its_models(found: list[ModelInfo]) -> None:
    found.append(model("doors", parts=("find", "read:2")))
    assert "ensemble of find, read:2" in call("box:1", "models", "list").stdout
    shown = call("box:1", "models", "show", "doors").stdout
    assert [line.split() for line in shown.splitlines()[3:5]] == [["ensemble", "of", "find"], ["read:2"]]
    assert "engine" not in shown
    assert json.loads(call("box:1", "models", "show", "doors", "--json").stdout)["parts"] == ["find", "read:2"]


def test_models_show_has_the_checks_of_live_answers(found: list[ModelInfo]) -> None:
    found.append(model("doors"))
    assert "drift" not in call("box:1", "models", "show", "doors").stdout
    drift = DriftInfo(12, 1, 2, 600.0, 0.985, 1.6e9, "hall", "differed", "boxes 0.5 is below 0.999", "the box is busy")
    found[0] = msgspec.structs.replace(found[0], drift=drift)
    shown = " ".join(call("box:1", "models", "show", "doors").stdout.split())
    assert "12 checks, 1 differed, 2 failed; agreement 98.5%; every 10 min 0 s" in shown
    assert "camera hall, differed: boxes 0.5 is below 0.999" in shown
    assert "waiting: the box is busy" in shown
    assert json.loads(call("box:1", "models", "show", "doors", "--json").stdout)["drift"]["checks"] == 12


def test_models_notes_are_counted_in_the_list_and_shown_for_one(found: list[ModelInfo]) -> None:
    notes = ("config.pbtxt: line 3: frobnicate: unknown to edged", "config.pbtxt: optimization.cuda.graphs: not used")
    found.append(model("m:2", version="2", settings={"versions": "all"}))
    assert "notes" not in call("box:1", "models", "list").stdout
    assert "notes" not in call("box:1", "models", "show", "m:2").stdout
    found[0] = msgspec.structs.replace(found[0], notes=notes)
    assert "2: edged models show m:2" in call("box:1", "models", "list").stdout
    shown = call("box:1", "models", "show", "m:2").stdout
    assert "versions = all" in shown
    assert all(note in shown for note in notes)
    assert json.loads(call("box:1", "models", "show", "m:2", "--json").stdout)["notes"] == list(notes)
    assert call("box:1", "models", "show", "m").exit_code != 0


def test_models_refusal_has_stage_and_category(found: list[ModelInfo]) -> None:
    alarm = AlarmInfo("unserved", "model m cannot be served: w.bin is truncated", "m", "", 1.0)
    refusal = {"state": "refused", "reason": "w.bin is truncated", "stage": "external_data"}
    found.append(model("m", **refusal, category="external_truncated", alarms=(alarm,)))
    assert "external data: external truncated" in call("box:1", "models", "show", "m").stdout
    assert call("box:1", "models", "list").stdout.count("w.bin is truncated") == 1
    (listed,) = json.loads(call("box:1", "models", "list", "--json").stdout)["models"]
    assert (listed["stage"], listed["category"]) == ("external_data", "external_truncated")


# --- events ---------------------------------------------------------------------------------------------------------


def test_events_are_readable_lines(running: Running) -> None:
    result = call(running, "events")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"1  {formatting.clock(1.6e9)}  model doors was read, digest dddddddddddd",
        f"2  {formatting.clock(1.6e9)}  engine kkkkkkkkkkkk was evicted to make room, 5 bytes",
        f"3  {formatting.clock(1.6e9)}  event unknown to this version of edged",
    ]


def test_events_after_position_resumes(running: Running) -> None:
    first = json.loads(call(running, "events", "--json").stdout.splitlines()[0])
    rest = call(running, "events", "--json", "--after", f"{first['epoch']}:{first['sequence']}")
    assert [json.loads(line)["sequence"] for line in rest.stdout.splitlines()] == [2, 3]
    assert running.daemon.commands.given[-1] == ops.WatchEventsRequest(after=1, epoch="e1")


@pytest.mark.parametrize(
    ("text", "expected"), [("0", ("", 0)), (" 17 ", ("", 17)), ("e1:17", ("e1", 17)), ("a:b:3", ("a:b", 3))]
)
def test_position_valid(text: str, expected: tuple[str, int]) -> None:
    assert position(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "e1:", ":5", "e1", "1.5", "e1:-3", "٣", "9" * 20])
def test_position_invalid_raises(text: str) -> None:
    with pytest.raises(InvalidInput, match="N or EPOCH:N"):
        position(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "9 s"),
        (59.9, "59 s"),
        (61, "1 min 1 s"),
        (3599, "59 min 59 s"),
        (7380, "2 h 3 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_span_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert formatting.span(seconds) == text


@pytest.mark.parametrize(
    ("elapsed", "estimate", "text"),
    [(0, None, ""), (0, 30, "0.0 s of about 30 s"), (12, None, "12 s"), (40, 30, "40 s"), (0.5, 0.9, "0.5 s")],
)
def test_times_elapsed_and_estimated(elapsed: float, estimate: float | None, text: str) -> None:
    assert formatting.times(elapsed, estimate) == text


HELP = "from typer.testing import CliRunner; from edged.cli.app import app; CliRunner().invoke(app, ['--help'])"


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        ("import edged.cli.app", "numpy rich msgspec edged.cli.serve edged.client"),
        (HELP, "grpc cv2 av edged.doctor.run edged.engines.child edged.models.model onnx zmq"),
        # Each of these would take megabytes in the daemon all the time.
        (
            "from edged.cli.app import app; import edged.cli.serve; import edged.daemon.main",
            "cv2 onnx onnxruntime openvino grpc av uvicorn edged.cli.engines edged.jobs.tasks",
        ),
        (
            "import edged.host.main; import edged.backends.onnxruntime",
            "onnx asyncio google.protobuf zmq hpack ssl rich edged.config edged.serving",
        ),
        ("import edged.client", "grpc"),
        ("import edged.client; edged.client.Client; edged.client.AsyncClient", "cv2"),
        ("import edged.client; edged.client.Client; edged.client.open_source", "onnx onnxruntime av typer zmq"),
    ],
    ids=["app", "help of all commands", "daemon", "host", "client package", "clients", "sources"],
)
def test_import_loads_no_unneeded_module(program: str, heavy: str) -> None:
    code = f"{program}\nimport sys; print(*[name for name in {heavy.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(("given", "expected"), [({}, "4"), ({"OPENBLAS_THREAD_TIMEOUT": "20"}, "20")])
def test_main_import_sets_the_timeout_of_blas_threads_unless_it_is_set(given: dict[str, str], expected: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    program = "import edged.__main__, os, sys; print(os.environ['OPENBLAS_THREAD_TIMEOUT'], 'numpy' in sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=inherited | given, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [expected, "False"]  # set before NumPy is imported, which reads it once


def test_failed_command_prints_its_error_also_as_json(running: Running) -> None:
    for target, line, code in (
        ("unix:/no/daemon", ["status"], "DAEMON_UNAVAILABLE"),
        (running, ["engines", "rebuild", "missing", "--follow"], "NOT_FOUND"),
        (running, ["engines", "rebuild", "full", "--follow"], "DISK_FULL"),
        (running, ["engines", "evict", "serving"], "FAILED_PRECONDITION"),
    ):
        result = call(target, *line, "--json")
        printed = json.loads(result.stdout)
        assert (printed["code"], result.exit_code) == (code, 1)
        assert result.stderr == f"edged: {printed['error']}\n"

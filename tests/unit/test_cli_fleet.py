"""Commands to several daemons: output per box, failures of single boxes, exit status."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from edged.cli import remote
from edged.cli.app import app
from edged.cli.inventory import Box, Defaults
from edged.client.client import Client
from edged.proto import operations_pb2 as ops
from tests.programs import program
from tests.unit.client_daemon import Running
from tests.waiting import wait

pytestmark = pytest.mark.timeout(60)

FIRST, SECOND = "doors aaaaaa111111 openvino/fp32", "doors bbbbbb222222 openvino/fp32"


class Boxes:
    """Daemons by name, and their inventory. `with_away` adds a box `away` without a daemon."""

    def __init__(self, folder: Path, running: dict[str, Running]) -> None:
        self.running = running
        self.file = folder / "boxes.toml"
        self.write({name: each.target for name, each in running.items()})

    def write(self, targets: dict[str, str]) -> None:
        tables = (f'[boxes.{name}]\ntarget = "{target}"\n' for name, target in targets.items())
        self.file.write_text("\n".join(tables))

    def watching(self) -> list[int]:
        return [each.daemon.commands.watching for each in self.running.values()]

    def with_away(self) -> Boxes:
        targets = {name: each.target for name, each in self.running.items()}
        self.write({**targets, "away": f"unix:{self.file.parent}/none"})
        return self


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    with contextlib.ExitStack() as stack:
        yield Boxes(tmp_path, {name: stack.enter_context(Running(f"unix:{tmp_path}/{name}")) for name in ("a", "b")})


def call(*line: str) -> Result:
    return CliRunner().invoke(app, list(line), env={"EDGED_TARGET": ""})


# --- output ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "heading"),
    [("status", ["BOX", "VERSION", "UP"]), ("models list", ["BOX", "model"]), ("engines list", ["BOX", "model"])],
)
def test_fleet_lists_are_one_table_with_a_column_for_the_box(boxes: Boxes, command: str, heading: list[str]) -> None:
    result = call(*command.split(), "--inventory", str(boxes.file))
    assert (result.exit_code, result.stderr) == (0, "2 of 2 boxes done\n")
    first, *rows = result.stdout.splitlines()
    assert first.split()[: len(heading)] == heading
    assert {row.split()[0] for row in rows if row[0] != " "} == {"a", "b"}


def test_fleet_answer_of_one_line_follows_the_name_and_longer_ones_are_below(boxes: Boxes) -> None:
    result = call("models", "remove", "old", "--inventory", str(boxes.file))
    assert sorted(result.stdout.splitlines()) == [
        "a: model old removed, its files deleted",
        "b: model old removed, its files deleted",
    ]
    assert [each.daemon.removed for each in boxes.running.values()] == [["old"], ["old"]]
    result = call("engines", "pin", "doors", "--inventory", str(boxes.file))
    assert sorted(result.stdout.splitlines()) == sorted(
        ["a:", "  pinned aaaaaa111111", "  pinned bbbbbb222222", "b:", "  pinned aaaaaa111111", "  pinned bbbbbb222222"]
    )


def test_fleet_of_targets_has_their_addresses_as_names(boxes: Boxes) -> None:
    first, second = (each.target for each in boxes.running.values())
    removed = "model x removed, its files deleted"
    alone = call("models", "remove", "x", "-t", first)
    assert (alone.stdout, alone.stderr) == (f"{removed}\n", "")
    assert call("models", "remove", "x", "-t", first, "-t", first).stdout == f"{first}: {removed}\n"
    both = call("models", "remove", "x", "-t", first, "-t", second)
    assert sorted(both.stdout.splitlines()) == [f"{first}: {removed}", f"{second}: {removed}"]


def test_fleet_json_is_one_object_for_each_box(boxes: Boxes) -> None:
    result = call("status", "--json", "--inventory", str(boxes.with_away().file), "--timeout", "5")
    found = {line["box"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert (result.exit_code, result.stderr) == (1, "")
    assert {name: each["ok"] for name, each in found.items()} == {"a": True, "b": True, "away": False}
    assert (found["a"]["result"]["models"], found["away"]["result"]) == (3, None)
    assert found["away"]["code"] == "DAEMON_UNAVAILABLE"


@pytest.mark.parametrize(
    "line",
    [
        "models list",
        "models show shapes",
        "models remove shapes",
        "engines list",
        "engines why shapes",
        "engines cancel --all",
        "engines pin --all",
        "engines unpin --all",
        "engines evict --all",
        "engines rebuild doors",
        "engines rebuild doors --follow",
        "engines verify doors",
        "device",
        "status",
        "events",
    ],
)
def test_fleet_every_command_goes_to_every_box(boxes: Boxes, line: str) -> None:
    result = call(*line.split(), "--inventory", str(boxes.file), "--json")
    assert result.exit_code == 0, result.output
    ends = [each for each in map(json.loads, result.stdout.splitlines()) if "ok" in each]
    assert sorted((each["box"], each["ok"], each["error"]) for each in ends) == [("a", True, ""), ("b", True, "")]
    text = call(*line.split(), "--inventory", str(boxes.file))
    assert (text.exit_code, text.stderr) == (0, "2 of 2 boxes done\n")
    assert {row.split()[0].strip(":") for row in text.stdout.splitlines() if row[0] != " "} - {"BOX"} == {"a", "b"}


def test_fleet_group_or_name_selects(boxes: Boxes) -> None:
    boxes.file.write_text(boxes.file.read_text().replace('/a"', '/a"\ngroups = ["north"]'))
    for option in (("--group", "north"), ("--target", "a")):
        result = call("models", "remove", "x", "--inventory", str(boxes.file), *option)
        assert (result.stdout, result.stderr) == ("a: model x removed, its files deleted\n", "1 of 1 boxes done\n")


# --- failures -------------------------------------------------------------------------------------------------------


def test_fleet_answer_with_an_alarm_counts_as_failure(boxes: Boxes) -> None:
    alarm = ops.Alarm(kind="slow", message="model doors: inference takes long", model="doors", since_unix_s=1.6e9)
    boxes.running["b"].daemon.commands.alarms = [alarm]
    result = call("status", "--inventory", str(boxes.file))
    assert result.exit_code == 1
    assert "inference takes long" in result.stdout
    assert result.stderr.splitlines() == ["1 of 2 boxes done", "  b: 1 alarm: slow"]


def test_fleet_unreadable_token_fails_only_its_box(boxes: Boxes) -> None:
    boxes.file.write_text(boxes.file.read_text() + 'token_file = "/nowhere/token"\n')
    result = call("models", "remove", "x", "--inventory", str(boxes.file))
    assert (result.exit_code, result.stdout) == (1, "a: model x removed, its files deleted\n")
    assert "  b: the token file /nowhere/token cannot be read" in result.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("status", "--group", "x", "--target", "a:1"), "--group can be used only with --inventory FILE"),
        (("events", "--after", "3", "--target", "a:1", "--target", "b:1"), "each box numbers its own events"),
        (("status", "--target", "http://a", "--target", "b"), "is a URL"),
        (("models", "list", "--state", "/tmp", "--target", "a:1", "--target", "b:1"), "a daemon has its own folders"),
    ],
)
def test_fleet_contradicting_options_are_refused_before_any_call(line: tuple[str, ...], words: str) -> None:
    result = call(*line)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_fleet_silent_box_fails_within_its_timeout(boxes: Boxes) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        boxes.write({"a": boxes.running["a"].target, "silent": f"127.0.0.1:{silent.getsockname()[1]}"})
        result = call("models", "remove", "x", "--inventory", str(boxes.file), "--timeout", "0.5")
    assert (result.exit_code, result.stdout) == (1, "a: model x removed, its files deleted\n")
    assert "  silent: " in result.stderr


# --- concurrency ----------------------------------------------------------------------------------------------------


def test_call_all_runs_a_limited_number_at_once(tmp_path: Path) -> None:
    there = threading.Semaphore(0)
    go = threading.Event()
    running, most = 0, 0
    lock = threading.Lock()

    def work(client: Client, say: Any) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        there.release()
        assert go.wait(20)
        with lock:
            running -= 1
        return client.target

    many = [Box(f"box{number}", f"unix:{tmp_path}/{number}", (), Defaults()) for number in range(7)]
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.extend(remote.call_all(many, work, 3)))
    asking.start()
    for _ in range(3):
        assert there.acquire(timeout=20)
    go.set()
    asking.join(20)
    assert most == 3
    assert sorted(each.box for each in found) == sorted(box.name for box in many)
    assert all(each.answer.endswith(each.box.removeprefix("box")) for each in found)


def test_call_all_unexpected_error_fails_only_its_box() -> None:
    def work(client: Client, say: Any) -> str:
        if client.target.endswith("1"):
            raise ZeroDivisionError("division by zero")
        return "fine"

    ends = {each.box: each for each in remote.call_all([Box("one", "unix:/x1"), Box("two", "unix:/x2")], work)}
    assert isinstance(ends["one"], remote.BoxOutcome)
    assert ends["one"].error == "ZeroDivisionError: division by zero"
    assert isinstance(ends["two"], remote.BoxOutcome)
    assert ends["two"].answer == "fine"


# --- following ------------------------------------------------------------------------------------------------------


def test_fleet_followed_progress_has_the_names_of_boxes(boxes: Boxes) -> None:
    result = call("engines", "rebuild", "doors", "--follow", "--inventory", str(boxes.file))
    assert result.exit_code == 0, result.output
    for name in ("a", "b"):
        own = [line for line in result.stdout.splitlines() if line.startswith(f"{name}: ")]
        assert own == [
            f"{name}: {FIRST}: waiting",
            f"{name}: {SECOND}: waiting",
            f"{name}: {FIRST}: building 0%, 0.0 s of about 30 s",
            f"{name}: {FIRST}: ready",
            f"{name}: {SECOND}: ready",
        ]


def test_fleet_followed_failure_is_reported_at_the_end(boxes: Boxes) -> None:
    result = call("engines", "rebuild", "bad", "--follow", "--json", "--inventory", str(boxes.file))
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["box"] for line in lines if "update" in line} == {"a", "b"}
    ends = {line["box"]: line for line in lines if "ok" in line}
    assert [each["ok"] for each in ends.values()] == [False, False]
    assert "1 of 2 engines could not be rebuilt" in ends["a"]["error"]
    assert [engine["succeeded"] for engine in ends["a"]["result"]] == [True, False]
    text = call("engines", "rebuild", "bad", "--follow", "--inventory", str(boxes.file))
    assert text.stderr.splitlines()[0] == "0 of 2 boxes done"


def test_fleet_interrupted_names_the_boxes_that_continue(boxes: Boxes) -> None:
    process = program("engines", "rebuild", "endless", "-f", "--inventory", str(boxes.file))
    try:
        wait(lambda: boxes.watching() == [1, 1], "both build")
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(6)]
        assert {line[0] for line in seen} == {"a", "b"}
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    goes_on = "the daemon continues this work; see: edged status; to stop the work: edged engines cancel"
    assert err == f"no answer yet from a, b; {goes_on}\n"
    wait(lambda: boxes.watching() == [0, 0], "no call is left")

"""Confinement of engine hosts, the tracker and one-shot children: attacks are denied, their own work is allowed."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edged.backends.contract import Order, Recipe, Signature
from edged.confinement import confine, landlock, rules, seccomp
from edged.confinement.rules import Reach
from edged.engines import child
from edged.ipc import job_messages as jobs
from edged.ipc.arena import Arena
from edged.vision.family import Recognition, Thresholds

LACKING = confine.lacking()
whole = pytest.mark.skipif(bool(LACKING), reason=f"this kernel lacks {', '.join(LACKING)}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The folders and listeners of a daemon. This process stands for the daemon."""
    for folder in ("models", "engines/other", "engines/own", "stage", "access"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("models/m.onnx", "engines/other/record.json", "access/tokens.json", "key", "audit"):
        (tmp_path / file).write_text("x")
    abstract = f"edged-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.socket(family)) for family in (socket.AF_UNIX, socket.AF_UNIX)]
        for each, address in zip(listening, (str(tmp_path / "operate.sock"), "\0" + abstract), strict=True):
            each.bind(address)
            each.listen()
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sibling = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(sibling.kill)
        arena = Arena(1 << 20)
        stack.callback(arena.close)
        yield {
            "daemon": os.getpid(),
            "sibling": sibling.pid,
            "tokens": str(tmp_path / "access/tokens.json"),
            "key": str(tmp_path / "key"),
            "audit": str(tmp_path / "audit"),
            "models": str(tmp_path / "models"),
            "engines": str(tmp_path / "engines"),
            "model": str(tmp_path / "models/m.onnx"),
            "socket": str(tmp_path / "operate.sock"),
            "abstract": abstract,
            "port": tcp.getsockname()[1],
            "arena": arena.handle,
            "stage": "",
        }


def probe(reach: Reach, world: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Run a confined process. Return the outcome of each forbidden attempt, and of each step of its own work."""
    command = [sys.executable, "-m", "tests.confined_probe", reach.argument(), json.dumps(world)]
    # As for every child of the daemon: no terminal as standard input, and the arena's descriptor.
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
        pass_fds=(world["arena"],),
        cwd=Path(__file__).parents[2],
    )
    assert not ended.returncode, ended.stderr
    found, works = json.loads(ended.stdout.splitlines()[-1])
    return found, works


def order(world: dict[str, Any]) -> Order:
    return Order(world["model"], Signature((), ()), Recipe("null"))


def reach_of_host(world: dict[str, Any]) -> Reach:
    return rules.reach((world["models"], world["engines"]))


def reach_of_inspection(world: dict[str, Any]) -> Reach:
    return child.reach_of(jobs.Inspect(world["model"]), "")


def reach_of_build(world: dict[str, Any]) -> Reach:
    world["stage"] = str(Path(world["engines"]).parent / "stage")
    return child.reach_of(
        jobs.Build(order(world), world["stage"], Recognition(None, "", None, "", (), Thresholds())), ""
    )


def reach_of_tracker(world: dict[str, Any]) -> Reach:
    world["model"] = "/proc/cpuinfo"  # the tracker reads no model
    return rules.reach()


@whole
@pytest.mark.parametrize("kind", [reach_of_host, reach_of_inspection, reach_of_build, reach_of_tracker])
def test_confined_process_reaches_only_what_its_work_needs(kind: Any, world: dict[str, Any]) -> None:
    found, works = probe(kind(world), world)
    assert {name: outcome for name, outcome in found.items() if outcome != "denied"} == {}
    assert {name: outcome for name, outcome in works.items() if outcome != "allowed"} == {}
    assert (Path(world["models"]) / "m.onnx").exists()


@whole
def test_confinement_off_denies_nothing(world: dict[str, Any]) -> None:
    world["only"] = ["tokens", "unix socket", "shell"]
    found, _ = probe(Reach("off"), world)
    assert set(found.values()) == {"allowed"}


def test_around_folder_with_secrets_gives_files_next_to_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("m.onnx", "weights.bin", ".hidden", "tls.key"):
        (tmp_path / file).write_text("x")
    (tmp_path / "inner").mkdir()
    monkeypatch.setattr(rules, "_private", (str(tmp_path / "tls.key"),))
    assert set(rules.around(tmp_path / "m.onnx")) == {str(tmp_path / "m.onnx"), str(tmp_path / "weights.bin")}
    (tmp_path / "inner" / "link.onnx").symlink_to(tmp_path / "m.onnx")
    assert str(tmp_path / "inner") in rules.around(tmp_path / "inner" / "link.onnx")
    assert str(tmp_path / "m.onnx") in rules.around(tmp_path / "inner" / "link.onnx")


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("/home/other", True), ("/home/other/", True), ("/home/other/models", False), ("/", True), ("/srv/models", False)],
)
def test_is_private_homes_and_folders_above_them(folder: str, expected: bool) -> None:
    assert rules.is_private(folder) is expected


def test_landlock_missing_of_older_kernels_is_longer() -> None:
    assert landlock.missing(7) == ()
    assert len(landlock.missing(0)) > len(landlock.missing(3)) > len(landlock.missing(5)) > 0


def test_confine_files_enforced_on_kernel_that_lacks_something_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "lacking", lambda: ("seccomp",))
    with pytest.raises(confine.Unconfined):
        confine.confine_files(Reach("enforce"))


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_of_every_refused_call_ends_in_a_refusal(machine: str) -> None:
    program = seccomp.filter_of(machine, 4711)
    architecture = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    for _, number in seccomp.calls(machine):
        assert judged(program, architecture, number) == 0x50001
    read, write = (0, 1) if machine == "x86_64" else (63, 64)
    assert judged(program, architecture, read) == judged(program, architecture, write) == 0x7FFF0000
    kill, prlimit, clone3 = (62, 302, 435) if machine == "x86_64" else (129, 261, 435)
    assert judged(program, architecture, kill, 4711) == 0x7FFF0000
    assert judged(program, architecture, kill, 1) == judged(program, architecture, prlimit, 1) == 0x50001
    assert judged(program, architecture, prlimit, 0) == 0x7FFF0000
    assert judged(program, architecture, clone3) == 0x50026
    assert judged(program, 0x40000003, read) == 0x80000000
    clone, fcntl, setpriority = (56, 72, 141) if machine == "x86_64" else (220, 25, 140)
    thread, process, namespace = 0x3D0F00, 0x1200011, 0x10010000
    assert judged(program, architecture, clone, thread) == 0x7FFF0000
    assert judged(program, architecture, clone, process) == judged(program, architecture, clone, namespace) == 0x50001
    assert judged(program, architecture, fcntl, 0, 4) == 0x7FFF0000
    assert judged(program, architecture, fcntl, 0, 8) == 0x50001
    assert judged(program, architecture, setpriority, 0, 0) == 0x7FFF0000
    assert (
        judged(program, architecture, setpriority, 0, 1) == judged(program, architecture, setpriority, 2, 0) == 0x50001
    )
    if machine == "x86_64":
        assert judged(program, architecture, 0x40000000) == 0x50001


def judged(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Run the BPF filter on a system call. Return the kernel's action."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    at = value = 0
    while True:
        code, if_true, if_false, operand = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
            continue
        holds = {0x15: value == operand, 0x45: bool(value & operand), 0x35: value >= operand}[code]
        at += if_true if holds else if_false


def test_seccomp_is_available_on_an_unknown_machine_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not seccomp.is_available()

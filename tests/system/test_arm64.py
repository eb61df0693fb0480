"""The runner of the tests as aarch64 programs: selection, outcomes, cleanup, and errors if it cannot run."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.system.arm64 import Unavailable, __main__, left_out
from tests.system.arm64.earlier import Earlier, digest_of
from tests.system.arm64.machine import TIMED_OUT, Machine, Running
from tests.system.arm64.suites import SUITES, Manner, Outcome, Part, parts, summary
from tests.system.arm64.turns import take
from tests.system.arm64.wheels import REPOSITORY, Resolved, Target, extras_of, floors, requirements_of
from tests.waiting import wait

NAP = "77.31"  # seconds; unusual, to recognise the process


@pytest.fixture(scope="module")
def machine() -> Machine:
    """The machine that `make test-arm64` made earlier; these tests do not make one."""
    cache = __main__.cache_folder()
    machine = Machine(cache / "bookworm" / "root", cache / "qemu-aarch64", {"PATH": "/usr/bin"})
    if not machine.root.exists():
        pytest.skip("make test-arm64 has not run yet")
    try:
        machine.run(["/usr/bin/true"], 60)
    except Unavailable as error:
        pytest.skip(str(error))
    return machine


def test_excluded_names_exist() -> None:
    for node in left_out.IMPOSSIBLE | left_out.SLOW:
        file, _, test = node.partition("::")
        assert f"def {test.partition('[')[0]}" in (REPOSITORY / file).read_text()


def test_selection_leaves_out_files_tests_and_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "IMPOSSIBLE", {"b.py::test_one": "test", "b.py::test_two[1]": "case"})
    monkeypatch.setattr(left_out, "SLOW", {"a.py": "file"})
    nodes = ["a.py::test_one[1]", "b.py::test_one[1]", "b.py::test_two[1]", "b.py::test_two[2]", "b.py::test_three"]
    assert [left_out.reason(node) for node in nodes] == ["file", "test", "case", "", ""]
    assert [left_out.reason(node, named=True) for node in nodes] == ["", "test", "case", "", ""]


def test_install_without_apt_names_the_packages(tmp_path: Path) -> None:
    environment = {"ARM64_CACHE": str(tmp_path), "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "tests.system.arm64", "test"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (__main__.UNAVAILABLE, "")
    assert done.stderr == "not run: apt-get is missing: sudo apt install apt (Debian or Ubuntu)\n"


def test_emulated_command_sees_a_read_only_aarch64_machine(machine: Machine) -> None:
    look = "import os, platform; assert platform.machine() == 'aarch64'; open('/tmp/here', 'w'); open('/usr/here', 'w')"
    assert machine.run(["/usr/bin/python3", "-c", f"try: {look}\nexcept OSError as error: exit(error.errno)"], 60) == 30
    assert not (machine.root / "tmp" / "here").exists()


def test_programs_started_by_programs_are_emulated(machine: Machine) -> None:
    script = "test $(/usr/bin/uname -m) = aarch64 && exit 7"
    assert machine.run(["/usr/bin/dash", "-c", script], 60) == 7


@pytest.mark.parametrize(("script", "seconds"), [(f"sleep {NAP} & exit 3", 60), (f"sleep {NAP}", 1)])
def test_run_leaves_no_mount_and_no_process(machine: Machine, script: str, seconds: float) -> None:
    mounts = Path("/proc/self/mounts").read_text().count(str(machine.root))
    assert machine.run(["/usr/bin/dash", "-c", script], seconds) in (3, TIMED_OUT)
    assert Path("/proc/self/mounts").read_text().count(str(machine.root)) == mounts
    _expect_no_nap()


class FakeBox:
    """Runs shell commands instead of pytest: the test's name is the command."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def test(self, arguments: Sequence[str], report: Path, manner: Manner, output: int) -> Running:
        machine = replace(self._machine, binds={"/work/report": report.parent})
        return machine.start(["/usr/bin/dash", "-c", arguments[-1]], output)


def test_parts_run_in_parallel_and_only_failures_are_shown(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = [_reports(passed=1), f"echo broken; {_reports(failed=1)}; exit 1", f"echo fine; {_reports(passed=2)}"]
    outcomes = take(FakeBox(machine), [Part("unit", (script,)) for script in scripts], Manner(2, 1.0, 60.0))
    assert sorted((outcome.status, outcome.is_good) for outcome in outcomes) == [(0, True), (0, True), (1, False)]
    assert summary(outcomes)[-1].startswith("unit: 3 passed, 1 failed, 0 skipped, 0 left out, ")
    printed = capsys.readouterr().out.splitlines()
    assert "broken" in printed
    assert "fine" not in printed


def test_timeout_ends_running_parts_and_fails_the_rest(machine: Machine) -> None:
    parts = [Part("unit", (script,)) for script in (f"sleep {NAP}", "exit 0")]
    outcomes = take(FakeBox(machine), parts, Manner(1, 1.0, 2.0))
    assert [outcome.part for outcome in outcomes] == parts
    assert [outcome.status for outcome in outcomes] == [TIMED_OUT, TIMED_OUT]
    _expect_no_nap()


def _reports(**counts: int) -> str:
    return f"echo '{json.dumps({'counts': counts, 'reasons': {}, 'failures': []})}' > /work/report/report.json"


def test_parts_cover_every_file_once() -> None:
    files = [test for part in parts(list(SUITES), []) for test in part.tests]
    assert len(set(files)) == len(files)
    of_suites = {file for name in ("unit", "integration") for file in (REPOSITORY / "tests" / name).glob("test_*.py")}
    assert of_suites <= {REPOSITORY / file for file in files}


def test_chosen_tests_run_instead_of_the_suites() -> None:
    node = "tests/unit/test_store.py::test_one"
    assert parts(["unit", "system"], [node]) == [Part("unit", (node,))]


@pytest.mark.parametrize(
    ("status", "counts", "good"),
    [(0, {"passed": 1}, True), (5, {"left out": 0}, True), (5, {}, False), (1, {"failed": 1}, False), (137, {}, False)],
)
def test_outcome_of_a_part_is_good_or_failed(status: int, counts: dict[str, int], good: bool) -> None:
    outcome = Outcome(Part("unit", ("tests/unit/test_one.py",)), status, counts=counts)
    assert outcome.is_good == good
    assert ("  FAILED" in summary([outcome])[0]) == (not good)


def _expect_no_nap() -> None:
    """Expect that no such process is left; on a busy box a killed one takes a moment to end."""
    wait(lambda: not any(f"sleep {NAP}" in line for line in _command_lines()), "all processes have ended", 10)


def _command_lines() -> list[str]:
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            lines.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return lines


@pytest.mark.parametrize(
    ("tags", "glibc"),
    [
        ("py3-none-any", 0),
        ("cp310-abi3-manylinux2014_aarch64", 17),
        ("cp310-cp310-manylinux_2_26_aarch64.manylinux_2_28_aarch64", 26),
        ("cp310-cp310-manylinux_2_35_aarch64", 35),
    ],
)
def test_wheel_tags_name_the_glibc(tags: str, glibc: int) -> None:
    assert Resolved("one", "1.0", f"one-1.0-{tags}.whl").glibc == glibc


def test_requirements_use_the_markers_of_the_target(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, "tomli>=2; python_version < '3.11'", "av>=12.1.5; extra == 'media'", "one", "two>=1,<3")
    old, new = Target("old", "3.10", 35), Target("new", "3.12", 39)
    assert [str(r) for r in requirements_of(wheel, old, "")] == ["tomli>=2", "one", "two<3,>=1"]
    assert [str(r) for r in requirements_of(wheel, new, "media")] == ["av>=12.1.5", "one", "two<3,>=1"]
    assert floors(requirements_of(wheel, old, "media")) == ["tomli==2.*", "av==12.1.5", "two==1.*"]
    assert extras_of(wheel) == ["media"]


def _wheel(folder: Path, *requirements: str) -> Path:
    path = folder / "edged-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        lines = ["Metadata-Version: 2.1", "Name: edged", "Version: 1.0", "Provides-Extra: media"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
        archive.writestr("edged-1.0.dist-info/METADATA", "\n".join(lines) + "\n")
    return path


def test_continued_run_leaves_out_what_an_interrupted_run_passed(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen, manner = [Part("unit", (script,)) for script in (_reports(passed=1), "exit 1")], Manner(1, 1.0, 60.0)
    file = tmp_path / "outcomes"
    first = take(FakeBox(machine), chosen, manner, Earlier(file, "code"))
    with file.open("ab") as end:
        end.write(b'code{"part"')  # of a run that was killed
    capsys.readouterr()
    again = take(FakeBox(machine), chosen, manner, Earlier(file, "code"), is_continued=True)
    assert [each.is_good for each in again] == [True, False]
    assert again[0] == first[0]
    assert "in an earlier run" in capsys.readouterr().out
    whole = take(FakeBox(machine), chosen, manner, Earlier(file, "code"))
    assert whole[0] != first[0], "it ran again"
    Earlier(file, "code").add(replace(first[0], status=1))
    assert Earlier(file, "code").passed() == {}
    assert Earlier(file, "other code").passed() == {}
    assert file.read_bytes() == b""


def test_digest_changes_with_names_and_contents(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("x")
    before = digest_of([], [tmp_path])
    assert digest_of([], [tmp_path]) == before != digest_of(["word"], [tmp_path])
    file.write_text("y")
    assert digest_of([], [tmp_path]) != before
    file.write_text("x")
    file.rename(tmp_path / "b")
    assert digest_of([], [tmp_path]) != before

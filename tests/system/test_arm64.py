"""What runs the tests as aarch64 programs: what it promises where it cannot run, and what it leaves behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.system.arm64 import Unavailable, __main__, left_out
from tests.system.arm64.machine import TIMED_OUT, Machine
from tests.system.arm64.wheels import REPOSITORY, Resolved, Target, floors, requirements_of

NAP = "77.31"  # seconds, to be recognised by


@pytest.fixture(scope="module")
def machine() -> Machine:
    """The machine that `make test-arm64` has made earlier; none is made for these tests."""
    cache = __main__.cache_folder()
    machine = Machine(cache / "bookworm" / "root", cache / "qemu-aarch64", {"PATH": "/usr/bin"})
    if not machine.root.exists():
        pytest.skip("make test-arm64 has not run yet")
    try:
        machine.run(["/usr/bin/true"], 60)
    except Unavailable as error:
        pytest.skip(str(error))
    return machine


def test_what_is_left_out_exists() -> None:
    for node in left_out.LEFT_OUT:
        file, _, test = node.partition("::")
        assert f"def {test.partition('[')[0]}(" in (REPOSITORY / file).read_text()


def test_without_apt_one_line_says_what_to_install(tmp_path: Path) -> None:
    environment = {"ARM64_CACHE": str(tmp_path), "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "tests.system.arm64", "test"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (__main__.UNAVAILABLE, "")
    assert done.stderr == "not run: apt-get is not there: sudo apt install apt (Debian or Ubuntu)\n"


def test_a_command_sees_an_aarch64_machine_that_it_cannot_change(machine: Machine) -> None:
    look = "import os, platform; assert platform.machine() == 'aarch64'; open('/tmp/here', 'w'); open('/usr/here', 'w')"
    assert machine.run(["/usr/bin/python3", "-c", f"try: {look}\nexcept OSError as error: exit(error.errno)"], 60) == 30
    assert not (machine.root / "tmp" / "here").exists()


def test_programs_started_by_programs_are_emulated(machine: Machine) -> None:
    script = "test $(/usr/bin/uname -m) = aarch64 && exit 7"
    assert machine.run(["/usr/bin/dash", "-c", script], 60) == 7


@pytest.mark.parametrize(("script", "seconds"), [(f"sleep {NAP} & exit 3", 60), (f"sleep {NAP}", 1)])
def test_nothing_is_left(machine: Machine, script: str, seconds: float) -> None:
    mounts = Path("/proc/self/mounts").read_text().count(str(machine.root))
    assert machine.run(["/usr/bin/dash", "-c", script], seconds) in (3, TIMED_OUT)
    assert Path("/proc/self/mounts").read_text().count(str(machine.root)) == mounts
    assert not any(f"sleep {NAP}" in line for line in _command_lines())


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
def test_the_glibc_that_a_wheel_needs(tags: str, glibc: int) -> None:
    assert Resolved("one", "1.0", f"one-1.0-{tags}.whl").glibc == glibc


def test_markers_are_the_other_machines(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, "tomli>=2; python_version < '3.11'", "av>=12.1.5; extra == 'media'", "one", "two>=1,<3")
    old, new = Target("old", "3.10", 35), Target("new", "3.12", 39)
    assert [str(r) for r in requirements_of(wheel, old, "")] == ["tomli>=2", "one", "two<3,>=1"]
    assert [str(r) for r in requirements_of(wheel, new, "media")] == ["av>=12.1.5", "one", "two<3,>=1"]
    assert floors(requirements_of(wheel, old, "media")) == ["tomli==2.*", "av==12.1.5", "two==1.*"]


def _wheel(folder: Path, *requirements: str) -> Path:
    path = folder / "edged-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        lines = ["Metadata-Version: 2.1", "Name: edged", "Version: 1.0"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
        archive.writestr("edged-1.0.dist-info/METADATA", "\n".join(lines) + "\n")
    return path

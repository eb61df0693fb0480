"""The dpkg trigger that reports changed libraries to the daemon: the package's triggers and postinst in a test root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.engines import surveyor
from tests.integration.daemon import Daemon

_ROOT = Path(__file__).parents[2]
_UNITS = _ROOT / "systemd"
_DEB = _ROOT / "packaging" / "deb"
_LIBRARY = "usr/lib/x86_64-linux-gnu/libedgedtest.so.1"


def _run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Debian:
    """A root folder with only dpkg's own records, and stand-ins for the commands that package scripts call."""

    def __init__(self, home: Path) -> None:
        self.root, self.commands, self.home = home / "root", home / "bin", home
        for folder in ("updates", "info", "triggers"):
            (self.root / "var/lib/dpkg" / folder).mkdir(parents=True)
        for file in ("status", "available"):
            (self.root / "var/lib/dpkg" / file).touch()
        self.commands.mkdir()
        self.calls = home / "calls"
        self.calls.touch()
        self.environment = {
            "PATH": f"{self.commands}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "EDGED_TARGET": "unix:/nowhere/edged.sock",
        }
        self.command("edged", 'echo "edged $*" >> "$CALLS"')

    def command(self, name: str, script: str) -> None:
        """Put a stand-in before the real command in PATH."""
        path = self.commands / name
        path.write_text(f"#!/bin/sh\nCALLS={self.calls}\n{script}\n")
        path.chmod(0o755)

    def dpkg(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run dpkg; it must succeed."""
        options = ("--force-script-chrootless", "--force-not-root", "--force-depends", f"--log={self.home}/dpkg.log")
        as_root = () if os.geteuid() == 0 else ("fakeroot",)
        done = _run(*as_root, "dpkg", f"--root={self.root}", *options, *words, **self.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def package(self, name: str, *files: str) -> Path:
        """Build a package with these files."""
        tree = self.home / name
        for file in files:
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            (tree / file).write_text(name)
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN" / "control").write_text(
            f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: test <test@localhost>\nDescription: test\n"
        )
        built = self.home / f"{name}.deb"
        done = _run("dpkg-deb", "--root-owner-group", "--build", tree, built)
        assert done.returncode == 0, done.stderr
        return built

    def state(self, package: str) -> str:
        return _run("dpkg-query", f"--admindir={self.root}/var/lib/dpkg", "-Wf", "${Status}", package).stdout

    def logged(self) -> list[str]:
        """Return the recorded calls since the last call of this method."""
        lines = self.calls.read_text().splitlines()
        self.calls.write_text("")
        return lines


@pytest.fixture(scope="module")
def trigger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package under test, without its files, and with only the trigger's part of postinst."""
    for name in ("dpkg", "dpkg-deb", "dpkg-query"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    home = tmp_path_factory.mktemp("package")
    about = home / "tree" / "DEBIAN"
    about.mkdir(parents=True)
    about.joinpath("control").write_text(
        "Package: edged\nVersion: 1\nArchitecture: all\nMaintainer: test <test@localhost>\nDescription: test\n"
    )
    shutil.copy(_DEB / "triggers", about)
    script = (_DEB / "postinst").read_text().replace("set -e\n", '[ "$1" = triggered ] || exit 0\nset -e\n', 1)
    about.joinpath("postinst").write_text(script)
    about.joinpath("postinst").chmod(0o755)
    done = _run("dpkg-deb", "--root-owner-group", "--build", about.parent, home / "edged.deb")
    assert done.returncode == 0, done.stderr
    return home / "edged.deb"


@pytest.fixture
def debian(trigger: Path, tmp_path: Path) -> Debian:
    """A system with the package under test installed."""
    system = Debian(tmp_path)
    if os.geteuid() != 0 and shutil.which("fakeroot") is None:
        pytest.skip("dpkg needs root or fakeroot, and fakeroot is not installed")
    system.dpkg("--install", trigger)
    assert system.logged() == []
    return system


def test_package_with_libraries_refreshes_once(debian: Debian) -> None:
    library = debian.package("library", _LIBRARY, "usr/lib/aarch64-linux-gnu/nvidia/libnvinfer.so.10")
    debian.dpkg("--install", library)
    assert debian.logged() == ["edged device refresh"]
    assert (debian.root / _LIBRARY).is_file()
    debian.dpkg("--remove", "library")
    assert debian.logged() == ["edged device refresh"]


def test_many_packages_at_once_refresh_once(debian: Debian) -> None:
    packages = [debian.package(f"library{n}", f"{_LIBRARY}.{n}") for n in range(3)]
    debian.dpkg("--install", *packages)
    assert debian.logged() == ["edged device refresh"]


def test_package_without_libraries_does_not_refresh(debian: Debian) -> None:
    debian.dpkg("--install", debian.package("words", "usr/share/doc/words/copyright", "usr/lib/words/words"))
    assert debian.logged() == []


@pytest.mark.parametrize("folder", surveyor.SYSTEM_FOLDERS)
def test_watched_folder_is_a_trigger(debian: Debian, folder: str) -> None:
    # CUDA's packages use the folder with the version in its name.
    file = folder.replace("/cuda/", "/cuda-12.6/").lstrip("/") + "/something"
    debian.dpkg("--install", debian.package("something", file))
    assert debian.logged() == ["edged device refresh"]


@pytest.mark.parametrize(
    "script",
    ["exit 1", "kill -KILL $$", "echo much; echo noise >&2; exit 2"],
    ids=["fails", "is killed", "complains"],
)
def test_failed_refresh_does_not_fail_dpkg(debian: Debian, script: str) -> None:
    debian.command("edged", f'echo "edged $*" >> "$CALLS"\n{script}')
    done = debian.dpkg("--install", debian.package("library", _LIBRARY))
    assert debian.logged() == ["edged device refresh"]
    assert "noise" not in done.stderr + done.stdout
    for package in ("library", "edged"):
        assert debian.state(package) == "install ok installed"


def test_refresh_has_a_timeout(debian: Debian) -> None:
    real = shutil.which("timeout")
    debian.command("timeout", f'echo "timeout $*" >> "$CALLS"\nshift 3\nexec {real} 0.2 "$@"')
    debian.command("edged", "exec sleep 60")
    debian.dpkg("--install", debian.package("library", _LIBRARY))
    assert debian.logged() == ["timeout -k 5 30 edged device refresh"]
    assert debian.state("edged") == "install ok installed"


def test_without_daemon_or_edged_nothing_is_called(debian: Debian) -> None:
    if Path("/run/edged/edged.sock").exists():
        pytest.skip("a daemon runs on this machine")
    debian.environment["EDGED_TARGET"] = ""
    debian.dpkg("--install", debian.package("library", _LIBRARY))
    assert debian.logged() == []
    debian.environment["EDGED_TARGET"] = "unix:/nowhere/edged.sock"
    (debian.commands / "edged").unlink()
    debian.dpkg("--remove", "library")
    assert debian.state("edged") == "install ok installed"


def test_purged_package_leaves_nothing(debian: Debian) -> None:
    debian.dpkg("--purge", "edged")
    debian.dpkg("--install", debian.package("library", _LIBRARY))
    assert debian.logged() == []


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon() as daemon:
        yield daemon


def test_refresh_reaches_a_running_daemon(debian: Debian, daemon: Daemon) -> None:
    real = f"PYTHONPATH={_ROOT} {sys.executable} -m edged"
    debian.command("edged", f'exec >> "$CALLS" 2>&1\nexec env {real} "$@"')
    debian.environment["EDGED_TARGET"] = daemon.unix
    debian.dpkg("--install", debian.package("library", _LIBRARY))
    (answer,) = debian.logged()
    assert answer == "nothing changed" or " → " in answer
    daemon.stop()
    debian.dpkg("--remove", "library")
    (answer,) = debian.logged()  # one line, and dpkg succeeds
    assert answer.startswith("edged: ")


def test_units_for_other_systems_pass_systemd_analyze() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    done = _run("systemd-analyze", "verify", _UNITS / "edged-refresh.path", _UNITS / "edged-refresh.service")
    assert "edged-refresh" not in done.stderr
    watched = (_UNITS / "edged-refresh.path").read_text()
    assert all(f"PathChanged={folder}\n" in watched for folder in surveyor.SYSTEM_FOLDERS)

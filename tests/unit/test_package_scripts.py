"""The package's postinst and postrm with stubs of systemd's commands: upgrades that are interrupted or fail."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_SCRIPTS = Path(__file__).parents[2] / "packaging" / "deb"
_RECORD = '#!/bin/sh\necho "$(basename "$0") $*" >>HOME/calls\n'
_STUBS = {
    "systemctl": _RECORD
    + 'case "$*" in\n*SubState*) cat HOME/state ;;\n*is-active*) [ "$(cat HOME/state)" = running ] ;;\nesac\n',
    # A restart starts the release that is current. A release whose file `broken` exists does not start.
    "deb-systemd-invoke": _RECORD
    + 'case "$1 $2" in "restart edged.service")\n'
    + "[ ! -e HOME/kill ] || { rm HOME/kill; echo auto-restart >HOME/state; kill -9 $PPID; sleep 0.1; }\n"
    + "[ -e HOME/app/current/broken ] && echo auto-restart >HOME/state || echo running >HOME/state\nesac\n",
    "runuser": _RECORD + "[ ! -e HOME/app/dist/sick ]\n",
    **dict.fromkeys(
        ("deb-systemd-helper", "systemd-sysusers", "systemd-tmpfiles", "journalctl", "install", "getent"), _RECORD
    ),
}


class Package:
    """An application folder, and the maintainer scripts that work on it."""

    def __init__(self, home: Path) -> None:
        self.home, self.app = home, home / "app"
        (home / "bin").mkdir()
        (home / "systemd").mkdir()
        for name, text in _STUBS.items():
            (home / "bin" / name).write_text(text.replace("HOME", str(home)))
            (home / "bin" / name).chmod(0o755)
        self.has_state("dead")

    def unpack(self, *marks: str) -> None:
        """Put a new release into the folder, as dpkg does."""
        subprocess.run(["rm", "-rf", str(self.app / "dist")], check=True)
        programs = self.app / "dist" / "bin"
        programs.mkdir(parents=True)
        for name in ("edged", "python3"):
            (programs / name).write_text("#!/bin/sh\n")
            (programs / name).chmod(0o755)
        for mark in marks:
            (self.app / "dist" / mark).touch()

    def run(self, script: str, *arguments: str, version: str = "1.0") -> subprocess.CompletedProcess[str]:
        text = (_SCRIPTS / script).read_text().replace("@VERSION@", version)
        for place, ours in (("/opt/edged", self.app), ("/run/systemd/system", self.home / "systemd")):
            text = text.replace(place, str(ours))
        for place in ("/var/lib/edged", "/var/cache/edged", "/etc/edged", "/run/edged"):
            text = text.replace(place, f"{self.home}{place}")
        environment = {**os.environ, "PATH": f"{self.home}/bin:{os.environ['PATH']}"}
        command = ["sh", "-c", text, script, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    def has_state(self, state: str) -> None:
        (self.home / "state").write_text(f"{state}\n")

    @property
    def state(self) -> str:
        return (self.home / "state").read_text().strip()

    @property
    def calls(self) -> list[str]:
        return (self.home / "calls").read_text().splitlines()

    @property
    def current(self) -> str:
        """The version of the current release."""
        return (self.app / "current").resolve(strict=True).name.rpartition(".")[0]

    @property
    def releases(self) -> list[str]:
        return sorted(place.name.rpartition(".")[0] for place in (self.app / "releases").iterdir())


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """A package whose release 1.0 serves."""
    package = Package(tmp_path)
    package.unpack()
    done = package.run("postinst", "configure")
    assert (done.returncode, package.current, done.stderr) == (0, "1.0", "")
    assert "deb-systemd-invoke start edged.socket edged.service" in package.calls
    package.has_state("running")
    return package


def test_upgrade_replaces_the_release(package: Package) -> None:
    package.unpack()
    assert package.run("postinst", "configure", "1.0", version="2.0").returncode == 0
    assert (package.current, package.releases, package.state) == ("2.0", ["2.0"], "running")
    assert not (package.app / "previous").is_symlink()


@pytest.mark.parametrize("mark", ["broken", "sick"])
def test_upgrade_that_fails_keeps_the_old_release(package: Package, mark: str) -> None:
    package.unpack(mark)
    done = package.run("postinst", "configure", "1.0", version="2.0")
    assert done.returncode == 1
    assert "the previous version continues to serve" in done.stderr
    assert (package.current, package.releases, package.state) == ("1.0", ["1.0"], "running")
    assert not (package.app / "previous").is_symlink()


@pytest.mark.parametrize("mark", ["broken", "sick"])
@pytest.mark.parametrize("state", ["auto-restart", "start", "failed"])
def test_upgrade_interrupted_while_a_broken_release_starts_goes_back_to_the_one_that_served(
    package: Package, state: str, mark: str
) -> None:
    package.unpack("broken")
    (package.home / "kill").touch()
    assert package.run("postinst", "configure", "1.0", version="2.0").returncode < 0
    assert package.current == "2.0"
    package.has_state(state)
    (package.app / "dist" / mark).touch()
    done = package.run("postinst", "configure", "1.0", version="2.0")  # dpkg --configure -a
    assert done.returncode == 1
    assert "the previous version continues to serve" in done.stderr
    assert (package.current, package.state) == ("1.0", "running")
    package.unpack()
    assert package.run("postinst", "configure", "1.0", version="3.0").returncode == 0
    assert (package.current, package.releases, package.state) == ("3.0", ["3.0"], "running")


def test_upgrade_of_a_stopped_service_starts_nothing(package: Package) -> None:
    package.has_state("dead")
    package.unpack("broken")
    assert package.run("postinst", "configure", "1.0", version="2.0").returncode == 0
    assert (package.current, package.state) == ("2.0", "dead")
    assert not any("restart edged.service" in call for call in package.calls if "try-" not in call)


def test_folder_may_be_a_link_to_another_disk(package: Package) -> None:
    package.app.rename(package.home / "disk")
    package.app.symlink_to(package.home / "disk")
    place = (package.app / "current").resolve(strict=True)
    running = subprocess.Popen([str(place / "bin" / "edged"), "60"], executable="/bin/sleep")
    try:
        package.unpack()
        assert package.run("postinst", "configure", "1.0", version="2.0").returncode == 0
        assert package.releases == ["1.0", "2.0"], "a process runs from release 1.0"
    finally:
        running.kill()
        running.wait()


def test_remove_of_an_unconfigured_package_stops_the_daemon_first(package: Package) -> None:
    assert package.run("postrm", "remove").returncode == 0
    assert package.calls[-2].startswith("deb-systemd-invoke stop edged.socket edged-operate.socket edged.service")
    assert not (package.app / "releases").exists()
    package.unpack()
    assert package.run("postinst", "configure", version="2.0").returncode == 0
    assert "deb-systemd-invoke try-restart edged.service" in package.calls, "a daemon may still run"


def test_purge_after_make_install_removes_nothing(package: Package) -> None:
    (package.app / "pyvenv.cfg").touch()
    done = package.run("postrm", "purge")
    assert done.returncode == 0
    assert "nothing is removed" in done.stderr
    assert package.current == "1.0"

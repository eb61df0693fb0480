"""The parts of an aarch64 machine: QEMU and Debian's Python, from the Debian mirror that this machine uses.

An ordinary user downloads everything once, into a folder outside the repository. Nothing is installed, and no script
of a package runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.arm64 import Unavailable

# QEMU before 10 shows programs the host's /proc/cpuinfo, which makes ONNX Runtime crash on import.
_EMULATOR_RELEASE, _EMULATOR_PACKAGE, _EMULATOR = "trixie", "qemu-user", "./usr/bin/qemu-aarch64"
_PACKAGES = (
    *("base-files", "coreutils", "dash", "mount", "python3", "libgomp1", "libstdc++6"),
    *("gcc", "libc6-dev"),  # some tests compile a library
    "openssl",  # makes certificates
)
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_NEEDED = {"apt-get": "apt", "dpkg-deb": "dpkg", "dpkg": "dpkg", "tar": "tar"}
_PLACES = ("proc", "sys", "dev", "tmp", "work", "root", "etc")
# Debian has these below /usr. The script of a package, which does not run, would create the link `cc`.
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "usr/bin/cc": "gcc"}
# Includes files that scripts of packages would write.
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hostname": "box\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
_STAMP = "etc/packages"
_SECONDS = 600  # for one download command


@dataclass(frozen=True)
class Sysroot:
    root: Path
    emulator: Path

    @property
    def python(self) -> str:
        """The version, such as 3.11."""
        return max(self.root.glob("usr/bin/python3.[0-9]*"), key=lambda path: len(path.name)).name.removeprefix(
            "python"
        )


def prepare(cache: Path, release: str, mirror: str) -> Sysroot:
    """Return the system of a Debian release; make it if it does not exist."""
    sysroot = Sysroot(cache / release / "root", cache / "qemu-aarch64")
    if not sysroot.emulator.exists():
        _say(f"fetching {_EMULATOR_PACKAGE} of Debian {_EMULATOR_RELEASE}")
        with _apt(cache, _EMULATOR_RELEASE, _native_architecture(), mirror) as apt:
            (package,) = apt.fetch("download", _EMULATOR_PACKAGE)
            _unpack(package, apt.folder, _EMULATOR)
            (apt.folder / _EMULATOR).rename(sysroot.emulator)
    if not _is_made_of(sysroot.root, _PACKAGES):
        _say(f"fetching the Python of Debian {release} for arm64")
        stage = cache / release / "root.new"
        shutil.rmtree(stage, ignore_errors=True)
        for name in (*_PLACES, "usr/bin", "usr/sbin", "usr/lib"):
            (stage / name).mkdir(parents=True)
        for link, target in _LINKS.items():
            (stage / link).symlink_to(target)
        with _apt(cache, release, "arm64", mirror) as apt:
            for package in apt.fetch("install", *_PACKAGES):
                _unpack(package, stage)
        (stage / _STAMP).write_text(" ".join(_PACKAGES))
        shutil.rmtree(sysroot.root, ignore_errors=True)
        stage.rename(sysroot.root)
    for name, text in _FILES.items():
        (sysroot.root / name).write_text(text)
    return sysroot


def mirror_of_this_machine() -> str:
    """Return the address of Debian's packages in apt's configuration."""
    _require_tools()
    sources = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)"]).split()
    for source in sources:
        if source.rstrip("/").endswith("/debian"):
            return source
    raise Unavailable("apt here has no Debian mirror: set ARM64_MIRROR=http://.../debian")


def _is_made_of(root: Path, packages: Sequence[str]) -> bool:
    stamp = root / _STAMP
    return stamp.exists() and stamp.read_text() == " ".join(packages)


@dataclass(frozen=True)
class _Apt:
    folder: Path

    def fetch(self, verb: str, *packages: str) -> list[Path]:
        """Download packages: with `download` only these, with `install` their dependencies, too."""
        options = ["--download-only", "--yes"] if verb == "install" else []
        self.run(verb, *options, *packages)
        return sorted([*self.folder.glob("*.deb"), *self.folder.glob("cache/archives/*.deb")])

    def run(self, *words: str) -> None:
        environment = os.environ | {"APT_CONFIG": str(self.folder / "apt.conf")}
        _run(["apt-get", "--quiet", *words], cwd=self.folder, env=environment)


@contextmanager
def _apt(cache: Path, release: str, architecture: str, mirror: str) -> Iterator[_Apt]:
    """Run apt with its own configuration, lists and (empty) database, for another architecture than the host's."""
    _require_tools()
    folder = cache / f"apt-{release}-{architecture}"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {mirror} {release} main\n")
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",  # root's apt would download as a user that cannot write here
        "Acquire::Languages": "none",
        "Dir::Cache": str(folder / "cache"),
        "Dir::Etc::sourcelist": str(folder / "sources.list"),
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::Log": str(folder),
        "Dir::State": str(folder / "state"),
        "Dir::State::status": str(folder / "status"),
    }
    (folder / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    apt = _Apt(folder)
    try:
        apt.run("update")
        yield apt
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def version_of(emulator: Path) -> str:
    return _run([emulator, "--version"]).splitlines()[0]


def _unpack(package: Path, folder: Path, *members: str) -> None:
    """Unpack a package's files, without their owners. Files for /lib go to the target of that link."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as archive:
        _run(
            ["tar", "--extract", "--no-same-owner", "--keep-directory-symlink", "--directory", folder, *members],
            stdin=archive.stdout,
        )
    if archive.returncode:
        raise Unavailable(f"{package.name} cannot be unpacked: download it again")


def _require_tools() -> None:
    for program, package in _NEEDED.items():
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is missing: sudo apt install {package} (Debian or Ubuntu)")
    if not _KEYRING.exists():
        raise Unavailable("Debian's keys are missing: sudo apt install debian-archive-keyring")


def _native_architecture() -> str:
    return _run(["dpkg", "--print-architecture"]).strip()


def _run(
    command: list[str | Path], *, cwd: Path | None = None, env: dict[str, str] | None = None, stdin: Any = None
) -> str:
    """Run a command; return its output, errors included."""
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took longer than {_SECONDS} s: is the network slow?") from None
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("E:")] or lines[-1:]
        raise Unavailable(f"{command[0]} failed: {' '.join(errors)[:300]}")
    return done.stdout


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

"""Wheels for an aarch64 machine, selected by pip on this machine. pip's own settings determine the index."""

from __future__ import annotations

import email.parser
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from tests.system.arm64 import Unavailable

REPOSITORY = Path(__file__).parents[3]
# The sources of the package. Builds use a copy, because they write generated code next to the sources.
_SOURCES = ("edged", "protos", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md")
_OLDEST_GLIBC = 17
_SECONDS = 900  # for one call of pip


class Unresolved(Exception):
    """Something has no wheel for the target; the message is pip's."""


@dataclass(frozen=True)
class Target:
    """A Python interpreter on a box: `python` is for example 3.10; the C library is glibc 2.`glibc`."""

    name: str
    python: str
    glibc: int

    @property
    def options(self) -> list[str]:
        # pip does not know that a newer glibc loads files built for an older one, so all tags are listed. If a release
        # has several files, pip takes the one with the first tag in the list: the one with the lowest requirement.
        tags = [f"manylinux_2_{minor}_aarch64" for minor in range(_OLDEST_GLIBC, self.glibc + 1)]
        platforms = [f"--platform={tag}" for tag in ["manylinux2014_aarch64", *tags]]
        return ["--only-binary=:all:", "--implementation=cp", f"--python-version={self.python}", *platforms]

    @property
    def markers(self) -> dict[str, str]:
        return {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": "aarch64",
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }


@dataclass(frozen=True)
class Resolved:
    """A package that would be installed."""

    name: str
    version: str
    file: str

    @property
    def glibc(self) -> int:
        """The minor version of the oldest glibc that it runs with; 0 without compiled code."""
        tags = self.file.removesuffix(".whl").rpartition("-")[2]
        minors = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", tags)]
        minors += [17] * ("manylinux2014" in tags)
        return min(minors, default=0)


def build(folder: Path) -> Path:
    """Build edged's wheel from the present sources."""
    with tempfile.TemporaryDirectory(prefix="edged-arm64-") as scratch:
        tree = Path(scratch) / "tree"
        copy_tree(_SOURCES, tree)
        _pip("wheel", "--no-deps", f"--wheel-dir={scratch}", str(tree))
        (made,) = Path(scratch).glob("*.whl")
        for old in folder.glob("edged-*.whl"):
            old.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(made, folder))


def copy_tree(names: Iterable[str], tree: Path) -> None:
    """Copy files and folders of the repository, without Python's bytecode."""
    tree.mkdir(parents=True, exist_ok=True)
    for name in names:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, tree / name)


def requirements_of(wheel: Path, target: Target, extra: str) -> list[Requirement]:
    """Return the requirements of a wheel and one of its extras on a box."""
    there = target.markers | {"extra": extra}
    needed = []
    for requirement in map(Requirement, _metadata(wheel, "Requires-Dist")):
        if requirement.marker is None or requirement.marker.evaluate(there):
            requirement.marker = None  # it is true; pip would need the extra
            needed.append(requirement)
    return needed


def extras_of(wheel: Path) -> list[str]:
    return _metadata(wheel, "Provides-Extra")


def _metadata(wheel: Path, field: str) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    return list(map(str, email.parser.Parser().parsestr(text).get_all(field, [])))


def floors(requirements: Iterable[Requirement]) -> list[str]:
    """Return constraints that pin every requirement to the lowest release it allows."""
    lowest = [(r.name, s.version) for r in requirements for s in r.specifier if s.operator == ">="]
    return [f"{name}=={version}{'' if version.count('.') > 1 else '.*'}" for name, version in lowest]


def resolve(target: Target, wanted: str, constraints: Sequence[str] = ()) -> list[Resolved]:
    """Return what pip would install for a requirement, with a wheel for every package. Unresolved."""
    with tempfile.TemporaryDirectory(prefix="edged-arm64-") as scratch:
        limits, report = Path(scratch) / "constraints.txt", Path(scratch) / "report.json"
        limits.write_text("\n".join(constraints))
        options = ["--dry-run", "--ignore-installed", f"--report={report}", f"--constraint={limits}"]
        _pip_for(target, *options, wanted)
        found = json.loads(report.read_text())["install"]
    return [
        Resolved(
            item["metadata"]["name"].lower().replace("_", "-"),
            item["metadata"]["version"],
            item["download_info"]["url"].rpartition("/")[2],
        )
        for item in found
    ]


def install(target: Target, folder: Path, *wanted: str) -> None:
    """Install wheels into a folder from which the target's Python imports; other files in it stay."""
    _pip_for(target, "--no-compile", f"--target={folder}", "--upgrade", *wanted)


def _pip_for(target: Target, *words: str) -> None:
    driver = str(Path(__file__).with_name("pip_elsewhere.py"))
    _run([sys.executable, driver, json.dumps(target.markers), "install", "--quiet", *target.options, *words])


def _pip(*words: str) -> None:
    _run([sys.executable, "-m", "pip", words[0], "--quiet", *words[1:]])


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip took longer than {_SECONDS} s: is the network slow?") from None
    if done.returncode:
        errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        message = " ".join(errors) or done.stderr.strip()[-300:]
        # pip reports a missing wheel and an unreachable index with the same error, except for this warning.
        if "Retrying" in done.stderr or "Could not fetch" in done.stderr:
            raise Unavailable(f"pip cannot reach its index: {message[:300]}")
        raise Unresolved(message)

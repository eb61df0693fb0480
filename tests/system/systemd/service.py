"""edged installed on a box by `make install`, with helpers for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.integration.daemon import wait_for
from tests.system.systemd import Unavailable
from tests.system.systemd.box import SHARED, Box
from tests.system.systemd.wheel import CHECKOUT, make_wheel

UNIT = "edged.service"
CONFIG = Path("/etc/edged/edged.toml")
_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
# Not the interpreter that runs the tests: it may be in a home folder, which services cannot see.
PYTHON = Path(f"/usr/bin/python{_VERSION}")
MAKE = ("make", "-C", str(SHARED / "checkout"), f"PYTHON={PYTHON}", f"WHEELS={SHARED / 'wheels'}", "EXTRAS=")


def shared(wheels: Path) -> dict[str, Path]:
    """Return the folders for a box with edged. Unavailable if this environment's libraries would not run there."""
    if not PYTHON.exists():
        raise Unavailable(f"{PYTHON} is missing; this environment's libraries need it")
    make_wheel(wheels)
    return {"checkout": CHECKOUT, "wheels": wheels, "libraries": Path(np.__file__).parents[1]}


class Service:
    """The installed service."""

    def __init__(self, box: Box) -> None:
        self.box = box
        box.run(*MAKE, "install")
        self.write(Path(f"/opt/edged/lib/python{_VERSION}/site-packages/libraries.pth"), str(SHARED / "libraries"))

    def write(self, path: Path, text: str) -> None:
        """Write a file of the box."""
        self.box.run("install", "-D", "-m", "644", "/dev/stdin", str(path), to=text)

    def configure(self, **lines: str) -> None:
        """Set further settings of the unit, by name; they replace those of an earlier call."""
        settings = "".join(f"{name}={value}\n" for name, value in lines.items())
        self.write(Path(f"/etc/systemd/system/{UNIT}.d/test.conf"), f"[Service]\n{settings}")
        self.box.run("systemctl", "daemon-reload")

    def edged(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command as the box's root."""
        return self.box.run("edged", *words, check=check)

    def json(self, *words: str) -> Any:
        """Return the output of a command with --json."""
        return json.loads(self.edged(*words, "--json").stdout)

    def add(self, name: str, *options: str) -> None:
        """Add the embedded detector to the service."""
        self.edged("models", "add", name, str(SHARED / "checkout/edged/shapes/shapes.onnx"), *options)

    def sees(self, model: str) -> bool:
        """Return True if a model answers a picture."""
        picture = str(SHARED / "checkout/docs/demo.jpg")
        return self.edged("infer", model, picture, check=False).returncode == 0

    def engines(self, model: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("engines", "list", model)["engines"]
        return found

    def wait(self, what: str, probe: Callable[[], Any], seconds: float = 90.0) -> Any:
        """Wait for a condition; on failure, print the service's log."""
        try:
            return wait_for(what, probe, seconds)
        except AssertionError:
            print(self.box.log(UNIT)[-6000:])
            raise

    @property
    def pid(self) -> int:
        """The daemon's process id inside the box; 0 while it does not run."""
        return int(self.show("MainPID"))

    @property
    def status(self) -> str:
        """The status line that the daemon sends to systemd."""
        return self.show("StatusText")

    def show(self, key: str) -> str:
        return self.box.show(UNIT, key)

    def hosts(self, backend: str = "") -> list[int]:
        """Return the process ids of the engine hosts, of one backend or all."""
        listed = self.box.run("ps", "-o", "pid=,args=", "--ppid", str(self.pid), check=False).stdout.splitlines()
        return [int(line.split()[0]) for line in listed if "edged.host.main" in line and backend in line]

    def signal(self, name: str, *pids: int) -> None:
        self.box.run("kill", f"-{name}", *map(str, pids))

"""Debian packages built from the working tree, for tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.system.packages import Unavailable

ROOT = Path(__file__).parents[3]


def uv() -> str:
    """Return the command uv, from this environment or PATH."""
    if find_spec("uv"):
        return f"{sys.executable} -m uv"
    if found := shutil.which("uv"):
        return found
    raise Unavailable("uv is not installed: pip install uv")


def build(out: Path, *options: str) -> Path:
    """Build a package; return its path."""
    for tool in ("dpkg-deb", "git"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed")
    before = set(out.glob("*.deb"))
    command = [sys.executable, str(ROOT / "packaging/deb/build.py"), "--out", str(out), "--uv", uv()]
    done = subprocess.run(
        [*command, "--compress", "fast", *options], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode and "index" in done.stderr:
        raise Unavailable(f"no package index is reachable: {done.stderr.strip().splitlines()[-1][:200]}")
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = set(out.glob("*.deb")) - before
    return made

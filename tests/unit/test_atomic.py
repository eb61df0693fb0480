"""Atomic writes: a file or folder appears complete or not at all, even if the writer is killed or the disk is full."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edged.store import atomic
from tests.waiting import wait

_WRITER = """
import sys
from pathlib import Path
from edged.store.atomic import write_file
path = Path(sys.argv[1])
while True:
    for letter in (b"a", b"b"):
        write_file(path, letter * 300_000)
"""


def test_write_file_replaces_a_file_or_link_but_no_folder(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for data in (b"old", b"new"):
        atomic.write_file(tmp_path / "link", data, mode=0o600)
        assert (tmp_path / "link").read_bytes() == data
    assert stat.S_IMODE((tmp_path / "link").lstat().st_mode) == 0o600
    assert (tmp_path / "target").read_bytes() == b"precious"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        atomic.write_file(tmp_path / "folder", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "target"]


def test_write_file_on_full_disk_keeps_the_old_content(small_disk: Path) -> None:
    path = small_disk / "file"
    atomic.write_file(path, b"old")
    with pytest.raises(OSError) as raised:
        atomic.write_file(path, bytes(2 << 20))
    assert raised.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert [p.name for p in small_disk.iterdir()] == ["file"]


def test_write_file_by_a_killed_process_is_never_seen_in_part(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)]) as writer:
        try:
            wait(path.exists, "the first write")
            seen = set()
            for _ in range(100):
                content = path.read_bytes()
                assert len(content) == 300_000
                assert len(set(content)) == 1
                seen.add(content[0])
        finally:
            os.kill(writer.pid, signal.SIGKILL)
    content = path.read_bytes()
    assert len(content) == 300_000
    assert len(set(content)) == 1


def test_publish_moves_a_directory_unless_its_place_is_taken(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_text(name)
    (tmp_path / "engines").mkdir()
    atomic.publish(tmp_path / "one", tmp_path / "engines" / "key")
    with pytest.raises(OSError):
        atomic.publish(tmp_path / "two", tmp_path / "engines" / "key")
    assert (tmp_path / "engines" / "key" / "deep" / "file").read_text() == "one"
    assert (tmp_path / "two" / "deep" / "file").read_text() == "two"
    assert not (tmp_path / "one").exists()


# -- exchanging -----------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders. Each has a file with the folder's name in it."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path / "one", tmp_path / "other"


def test_exchange_swaps_two_folders(two: tuple[Path, Path]) -> None:
    one, other = two
    if not atomic.exchange(one, other):
        pytest.skip("this file system cannot exchange names")
    assert [(path / "file").read_text() for path in two] == ["other", "one"]


def test_exchange_on_a_file_system_without_it_changes_nothing(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_RENAME_EXCHANGE", 1 << 9)  # a flag that no file system supports
    assert not atomic.exchange(*two)
    assert [(path / "file").read_text() for path in two] == ["one", "other"]


def test_exchange_with_a_missing_folder_raises(two: tuple[Path, Path]) -> None:
    one, _ = two
    with pytest.raises(FileNotFoundError):
        atomic.exchange(one, one.with_name("nowhere"))
    assert (one / "file").read_text() == "one"


# -- sweeping -------------------------------------------------------------------------------------------------------


def test_sweep_removes_old_files_of_a_killed_writer(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path / "file")]) as writer:
        try:
            wait(lambda: any(tmp_path.glob(".file.*")), "a file that is being written")
        finally:
            os.kill(writer.pid, signal.SIGSTOP)  # so that SIGKILL hits it in the middle of a write
            os.kill(writer.pid, signal.SIGKILL)
    (tmp_path / ".file.stray.part").write_bytes(b"half")
    (tmp_path / ".hidden").write_bytes(b"mine")
    young = set(tmp_path.iterdir())
    atomic.sweep(tmp_path)
    assert set(tmp_path.iterdir()) == young
    for path in young:
        os.utime(path, (1, 1))
    atomic.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"file", ".hidden"}
    assert (tmp_path / ".hidden").exists()


@pytest.mark.parametrize("seconds", [1, 1 << 32], ids=["old", "of the future: the clock was set back"])
def test_sweep_removes_partial_files_that_no_writer_locks(tmp_path: Path, seconds: int) -> None:
    place = tmp_path / ".file.x.part"
    place.write_bytes(b"half")
    os.utime(place, (seconds, seconds))
    with place.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        atomic.sweep(tmp_path)
        assert place.exists()
    atomic.sweep(tmp_path)
    assert not place.exists()
    atomic.sweep(tmp_path / "nowhere")


def test_prune_removes_the_oldest_files(tmp_path: Path) -> None:
    for age in range(5):
        file = tmp_path / f"{age}.json"
        file.write_text("x")
        os.utime(file, (1000 - age, 1000 - age))
    (tmp_path / ".being-written.part").write_text("x")
    atomic.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".being-written.part", "0.json", "1.json"]
    atomic.prune(tmp_path, 2)
    atomic.prune(tmp_path / "nowhere", 2)
    assert len(list(tmp_path.iterdir())) == 3

"""Files and directories appear whole or not at all, whoever is killed and whatever disk is full."""

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


def test_a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic.write_file(path, b"old")
    atomic.write_file(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_symbolic_link_is_replaced_and_what_it_leads_to_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    atomic.write_file(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_bytes() == b"precious"
    assert not (tmp_path / "link").is_symlink()


def test_a_write_that_fails_keeps_the_old_content_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        atomic.write_file(tmp_path / "folder", b"a folder cannot be replaced by a file")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_full_disk_keeps_the_old_content(small_disk: Path) -> None:
    path = small_disk / "file"
    atomic.write_file(path, b"old")
    with pytest.raises(OSError) as raised:
        atomic.write_file(path, bytes(2 << 20))
    assert raised.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert [p.name for p in small_disk.iterdir()] == ["file"]


def test_a_reader_never_sees_a_part_even_when_the_writer_is_killed(tmp_path: Path) -> None:
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


def test_publishing_moves_a_whole_directory_into_place(tmp_path: Path) -> None:
    staged = tmp_path / "staging" / "engine"
    (staged / "deep").mkdir(parents=True)
    (staged / "deep" / "file").write_bytes(b"content")
    (tmp_path / "engines").mkdir()
    atomic.publish(staged, tmp_path / "engines" / "key")
    assert (tmp_path / "engines" / "key" / "deep" / "file").read_bytes() == b"content"
    assert not staged.exists()


def test_publishing_over_something_fails_and_changes_nothing(tmp_path: Path) -> None:
    for name in ("staged", "final"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(OSError):
        atomic.publish(tmp_path / "staged", tmp_path / "final")
    assert (tmp_path / "staged" / "file").read_text() == "staged"
    assert (tmp_path / "final" / "file").read_text() == "final"


# -- exchanging -----------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders, each with a file that holds its name."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path / "one", tmp_path / "other"


def test_two_folders_swap_their_names(two: tuple[Path, Path]) -> None:
    one, other = two
    if not atomic.exchange(one, other):
        pytest.skip("this file system cannot exchange names")
    assert [(path / "file").read_text() for path in two] == ["other", "one"]


def test_a_file_system_that_cannot_exchange_says_so_and_nothing_is_changed(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_RENAME_EXCHANGE", 1 << 9)  # a flag that no file system knows
    assert not atomic.exchange(*two)
    assert [(path / "file").read_text() for path in two] == ["one", "other"]


def test_an_old_c_library_cannot_exchange(two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        """A library without the call."""

    monkeypatch.setattr(atomic.ctypes, "CDLL", lambda *_, **__: Old())
    assert not atomic.exchange(*two)


def test_exchanging_with_what_is_not_there_fails_and_changes_nothing(two: tuple[Path, Path]) -> None:
    one, _ = two
    with pytest.raises(FileNotFoundError):
        atomic.exchange(one, one.with_name("nowhere"))
    assert (one / "file").read_text() == "one"


# -- sweeping -------------------------------------------------------------------------------------------------------


def test_what_a_killed_writer_left_is_swept_once_nobody_can_be_writing_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path / "file")]) as writer:
        try:
            wait(lambda: any(tmp_path.glob(".file.*")), "a file that is being written")
        finally:
            os.kill(writer.pid, signal.SIGSTOP)  # so that it is killed while it writes
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


def test_sweep_stray_of_the_future_goes(tmp_path: Path) -> None:
    """A box without a clock of its own starts in the past, and writes with one that was set later."""
    place = tmp_path / ".file.x.part"
    place.write_bytes(b"half")
    os.utime(place, (1 << 32, 1 << 32))
    atomic.sweep(tmp_path)
    assert not place.exists()


def test_sweep_file_that_a_writer_holds_locked_stays(tmp_path: Path) -> None:
    place = tmp_path / ".file.x.part"
    place.write_bytes(b"half")
    os.utime(place, (1, 1))
    with place.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        atomic.sweep(tmp_path)
        assert place.exists()
    atomic.sweep(tmp_path)
    assert not place.exists()


def test_sweeping_what_is_no_folder_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        atomic.sweep(path)


def test_of_too_many_files_those_that_were_written_first_go(tmp_path: Path) -> None:
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

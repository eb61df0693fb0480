"""Files and directories appear whole or not at all, whoever is killed and whatever disk is full."""

from __future__ import annotations

import errno
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


def test_publishing_over_an_empty_directory_fails_as_well(tmp_path: Path) -> None:
    (tmp_path / "staged").mkdir()
    (tmp_path / "final").mkdir()
    with pytest.raises(OSError):
        atomic.publish(tmp_path / "staged", tmp_path / "final")

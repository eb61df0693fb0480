"""How often making an engine has failed, as the disk remembers it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edged.store import attempts as attempts_module
from edged.store.attempts import AttemptLog, Attempts
from tests.waiting import ends_despite_fifo

KEY, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that names this run of the box."""
    place = tmp_path / "boot_id"
    place.write_text("first\n")
    monkeypatch.setattr(attempts_module, "_BOOT", place)
    return place


@pytest.fixture
def log(tmp_path: Path, boot: Path) -> AttemptLog:
    return AttemptLog(tmp_path / "cache")


def again(tmp_path: Path) -> AttemptLog:
    """The log as the next daemon reads it."""
    return AttemptLog(tmp_path / "cache")


def test_failed_counts_per_engine_and_survives_restart(tmp_path: Path, log: AttemptLog) -> None:
    for reason in ("no memory", "no time"):
        log.begin(KEY)
        log.failed(KEY, reason)
    assert log.of(KEY) == again(tmp_path).of(KEY) == Attempts(2, "no time")
    assert log.of(OTHER) == Attempts()


def test_forget_made_engine_drops_failures(tmp_path: Path, log: AttemptLog) -> None:
    log.begin(KEY)
    log.failed(KEY, "no memory")
    log.begin(KEY)
    log.forget(KEY)
    log.forget(KEY)
    assert again(tmp_path).of(KEY) == Attempts()


def test_begin_cut_off_by_a_reboot_counts_as_failure(tmp_path: Path, log: AttemptLog, boot: Path) -> None:
    log.begin(KEY)
    log.failed(KEY, "no memory")
    log.begin(KEY)
    boot.write_text("second\n")
    known = again(tmp_path).of(KEY)
    assert known.failures == 2
    assert "box stopped" in known.reason
    assert again(tmp_path).of(KEY) == known, "looking at it counts for nothing"


def test_begin_cut_off_by_a_killed_daemon_does_not_count(tmp_path: Path, log: AttemptLog) -> None:
    log.begin(KEY)
    assert again(tmp_path).of(KEY) == Attempts()
    log.failed(KEY, "no memory")
    log.begin(KEY)
    assert again(tmp_path).of(KEY) == Attempts(1, "no memory")


def test_begin_cut_off_by_each_reboot_counts_once(tmp_path: Path, log: AttemptLog, boot: Path) -> None:
    for number in range(1, 4):
        again(tmp_path).begin(KEY)
        boot.write_text(f"boot {number}\n")
        assert again(tmp_path).of(KEY).failures == number


@pytest.mark.parametrize("failures", [0, 2])
def test_undone_keeps_earlier_failures(tmp_path: Path, log: AttemptLog, boot: Path, failures: int) -> None:
    for _ in range(failures):
        log.begin(KEY)
        log.failed(KEY, "no memory")
    before = log.of(KEY)
    log.begin(KEY)
    log.undone(KEY)
    boot.write_text("second\n")
    assert again(tmp_path).of(KEY) == before == Attempts(failures, "no memory" if failures else "")


def test_cancelled_engine_stays_cancelled_until_forgotten(tmp_path: Path, log: AttemptLog) -> None:
    log.begin(KEY)
    log.cancelled(KEY, "by an operator")
    log.undone(KEY)  # as the child ends
    assert again(tmp_path).of(KEY) == Attempts(0, "by an operator", stopped="cancelled")
    log.forget(KEY)
    assert again(tmp_path).of(KEY) == Attempts()


def test_of_another_version_drops_failures_and_keeps_a_cancel(
    tmp_path: Path, log: AttemptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.failed(KEY, "no kernel", is_hopeless=True)
    log.cancelled(OTHER, "by an operator")
    assert log.of(KEY) == Attempts(1, "no kernel", stopped="hopeless")
    monkeypatch.setattr(attempts_module, "__version__", "another")
    assert (log.of(KEY).failures, log.of(KEY).stopped) == (0, "")
    assert log.of(OTHER).stopped == "cancelled"


def file_of(log: AttemptLog, tmp_path: Path) -> Path:
    log.failed(KEY, "no memory")
    (file,) = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    return file


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"failures": "many"}', b"[]"])
def test_of_damaged_file_is_empty(tmp_path: Path, log: AttemptLog, content: bytes) -> None:
    file_of(log, tmp_path).write_bytes(content)
    log = again(tmp_path)
    assert log.of(KEY) == Attempts()
    log.begin(KEY)
    log.failed(KEY, "no time")
    assert log.of(KEY) == Attempts(1, "no time")


def test_open_pipe_instead_of_a_file_does_not_block(tmp_path: Path, log: AttemptLog) -> None:
    file = file_of(log, tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert ends_despite_fifo(lambda: again(tmp_path), file)
    assert again(tmp_path).of(KEY) == Attempts()


def test_failed_on_unwritable_disk_works_in_memory(
    small_disk: Path, boot: Path, make_read_only: Callable[[Path], None]
) -> None:
    AttemptLog(small_disk).failed(KEY, "no memory")
    make_read_only(small_disk)
    log = AttemptLog(small_disk)
    log.begin(OTHER)
    log.failed(OTHER, "no time")
    log.forget(KEY)
    assert log.of(OTHER) == Attempts(1, "no time"), "memory is the truth"
    assert log.of(KEY) == Attempts()
    log = AttemptLog(small_disk)
    assert log.of(OTHER) == Attempts()
    assert log.of(KEY) == Attempts(1, "no memory")


def test_failed_without_a_folder_works_in_memory(tmp_path: Path, boot: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    log = AttemptLog(tmp_path / "cache")
    log.begin(KEY)
    log.failed(KEY, "no memory")
    assert AttemptLog(tmp_path / "cache").of(KEY) == Attempts()


def test_begin_without_boot_id_assumes_no_reboot(log: AttemptLog, boot: Path) -> None:
    boot.unlink()
    log.begin(KEY)
    assert log.of(KEY) == Attempts()


def test_failed_keeps_only_the_newest(tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_module, "_KEPT", 2)
    log = AttemptLog(tmp_path / "cache")
    for number, key in enumerate("abc"):
        log.failed(key, "no memory")
        os.utime(tmp_path / "cache/attempts" / f"{key}.json", (number, number))
    later = AttemptLog(tmp_path / "cache")
    assert [later.of(key).failures for key in "abc"] == [0, 1, 1]


def test_note_outcome_leaves_the_disk_to_another_thread(tmp_path: Path, boot: Path) -> None:
    later: list[Callable[[], object]] = []
    log = AttemptLog(tmp_path / "cache", later.append)
    log.failed(KEY, "no memory")
    log.undone(KEY)
    log.cancelled(OTHER, "cancelled")
    log.forget(OTHER)
    assert not list((tmp_path / "cache" / "attempts").iterdir())
    for write in later:
        write()
    assert [place.stem for place in (tmp_path / "cache" / "attempts").iterdir()] == [KEY]

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


def test_nothing_is_known_of_an_engine_that_was_never_made(log: AttemptLog) -> None:
    assert log.of(KEY) == Attempts()


def test_failures_are_counted_for_each_engine_and_outlive_the_daemon(tmp_path: Path, log: AttemptLog) -> None:
    for reason in ("no memory", "no time"):
        log.begin(KEY)
        log.failed(KEY, reason)
    assert log.of(KEY) == again(tmp_path).of(KEY) == Attempts(2, "no time")
    assert log.of(OTHER) == Attempts()


def test_what_was_made_is_forgotten(tmp_path: Path, log: AttemptLog) -> None:
    log.begin(KEY)
    log.failed(KEY, "no memory")
    log.begin(KEY)
    log.forget(KEY)
    log.forget(KEY)
    assert again(tmp_path).of(KEY) == Attempts()


def test_an_attempt_that_was_cut_off_by_the_box_has_failed(tmp_path: Path, log: AttemptLog, boot: Path) -> None:
    log.begin(KEY)
    log.failed(KEY, "no memory")
    log.begin(KEY)
    boot.write_text("second\n")
    known = again(tmp_path).of(KEY)
    assert known.failures == 2
    assert "box stopped" in known.reason
    assert again(tmp_path).of(KEY) == known, "looking at it counts for nothing"


def test_an_attempt_that_was_cut_off_with_the_daemon_alone_counts_for_nothing(tmp_path: Path, log: AttemptLog) -> None:
    log.begin(KEY)
    assert again(tmp_path).of(KEY) == Attempts()
    log.failed(KEY, "no memory")
    log.begin(KEY)
    assert again(tmp_path).of(KEY) == Attempts(1, "no memory")


def test_every_box_that_stops_counts_once(tmp_path: Path, log: AttemptLog, boot: Path) -> None:
    for number in range(1, 4):
        again(tmp_path).begin(KEY)
        boot.write_text(f"boot {number}\n")
        assert again(tmp_path).of(KEY).failures == number


def test_a_failure_after_a_box_that_stopped_counts_beside_it(tmp_path: Path, log: AttemptLog, boot: Path) -> None:
    log.begin(KEY)
    boot.write_text("second\n")
    later = again(tmp_path)
    later.begin(KEY)
    later.failed(KEY, "no time")
    assert later.of(KEY) == Attempts(2, "no time")


@pytest.mark.parametrize("failures", [0, 2])
def test_an_attempt_that_is_undone_leaves_what_was_known_before(
    tmp_path: Path, log: AttemptLog, boot: Path, failures: int
) -> None:
    for _ in range(failures):
        log.begin(KEY)
        log.failed(KEY, "no memory")
    before = log.of(KEY)
    log.begin(KEY)
    log.undone(KEY)
    boot.write_text("second\n")
    assert again(tmp_path).of(KEY) == before == Attempts(failures, "no memory" if failures else "")


def test_cancelled_engine_stays_cancelled_until_it_is_forgotten(tmp_path: Path, log: AttemptLog) -> None:
    log.begin(KEY)
    log.cancelled(KEY, "by an operator")
    log.undone(KEY)  # as the child ends
    assert again(tmp_path).of(KEY) == Attempts(0, "by an operator", stopped="cancelled")
    log.forget(KEY)
    assert again(tmp_path).of(KEY) == Attempts()


def test_failed_by_another_edged_counts_no_more_and_a_cancel_does(
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
def test_what_cannot_be_read_is_not_known(tmp_path: Path, log: AttemptLog, content: bytes) -> None:
    file_of(log, tmp_path).write_bytes(content)
    log = again(tmp_path)
    assert log.of(KEY) == Attempts()
    log.begin(KEY)
    log.failed(KEY, "no time")
    assert log.of(KEY) == Attempts(1, "no time")


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path, log: AttemptLog) -> None:
    file = file_of(log, tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert ends_despite_fifo(lambda: again(tmp_path), file)
    assert again(tmp_path).of(KEY) == Attempts()


def test_a_disk_that_cannot_be_written_only_makes_it_forget(
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


def test_a_place_that_is_no_folder_only_makes_it_forget(tmp_path: Path, boot: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    log = AttemptLog(tmp_path / "cache")
    log.begin(KEY)
    log.failed(KEY, "no memory")
    assert AttemptLog(tmp_path / "cache").of(KEY) == Attempts()


def test_a_box_that_does_not_name_its_boots_is_taken_for_one_that_runs_on(log: AttemptLog, boot: Path) -> None:
    boot.unlink()
    log.begin(KEY)
    assert log.of(KEY) == Attempts()


def test_only_the_newest_failures_are_kept(tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

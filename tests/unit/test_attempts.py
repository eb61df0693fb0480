"""The log of failed attempts to make engines, on disk and in memory."""

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
    """The boot id file of the kernel, which changes with each boot."""
    place = tmp_path / "boot_id"
    place.write_text("first\n")
    monkeypatch.setattr(attempts_module, "_BOOT", place)
    return place


@pytest.fixture
def root(tmp_path: Path, boot: Path) -> Path:
    return tmp_path / "cache"


CUT_OFF = "the box stopped while the engine was being made"
ENDED = "edged ended while the engine was being made"
KILLED = "begin kill " * 2  # the first is free


@pytest.mark.parametrize(
    ("steps", "known"),
    [
        ("begin fail begin fail", Attempts(2, "no memory")),
        ("begin fail begin forget forget", Attempts()),
        ("begin kill", Attempts()),
        ("fail begin kill", Attempts(1, "no memory")),
        (KILLED, Attempts(1, ENDED)),
        (KILLED + "kill kill", Attempts(1, ENDED)),
        (KILLED * 2, Attempts(3, ENDED)),
        ("fail " + KILLED, Attempts(2, ENDED)),
        ("begin reboot begin kill", Attempts(1, CUT_OFF)),
        ("begin kill begin reboot", Attempts(1, CUT_OFF)),
        (KILLED + "begin reboot", Attempts(2, ENDED)),
        ("begin kill begin undone begin kill", Attempts()),
        (KILLED + "begin undone", Attempts()),
        ("fail " + KILLED + "begin undone begin kill", Attempts(1, "no memory")),
        (KILLED + "begin fail", Attempts(1, "no memory")),
        (KILLED + "begin fail begin kill", Attempts(1, "no memory")),
        (KILLED + "begin forget begin kill", Attempts()),
        (KILLED + "upgrade", Attempts()),
        ("begin kill upgrade begin kill", Attempts()),
        (KILLED + "cancel", Attempts(0, "by an operator", stopped="cancelled")),
        ("begin reboot", Attempts(1, CUT_OFF)),
        ("fail begin reboot", Attempts(2, CUT_OFF)),
        ("begin reboot begin reboot begin reboot", Attempts(3, CUT_OFF)),
        ("begin undone reboot", Attempts()),
        ("fail fail begin undone reboot", Attempts(2, "no memory")),
        ("begin cancel undone", Attempts(0, "by an operator", stopped="cancelled")),
        ("fail cancel upgrade", Attempts(1, "by an operator", stopped="cancelled")),
        ("cancel forget", Attempts()),
        ("fail hopeless", Attempts(2, "no kernel", stopped="hopeless")),
        ("hopeless upgrade", Attempts()),
        ("lose-boot-id begin kill", Attempts()),
        ("lose-boot-id " + KILLED, Attempts(1, ENDED)),
    ],
)
def test_attempts_count_failures_and_survive_a_restart(
    root: Path, boot: Path, monkeypatch: pytest.MonkeyPatch, steps: str, known: Attempts
) -> None:
    log = AttemptLog(root)
    actions: dict[str, Callable[[], object]] = {
        "begin": lambda: log.begin(KEY),
        "fail": lambda: log.failed(KEY, "no memory"),
        "hopeless": lambda: log.failed(KEY, "no kernel", is_hopeless=True),
        "cancel": lambda: log.cancelled(KEY, "by an operator"),
        "undone": lambda: log.undone(KEY),
        "forget": lambda: log.forget(KEY),
        "reboot": lambda: boot.write_text(f"after {boot.read_text()}"),
        "kill": lambda: None,
        "lose-boot-id": boot.unlink,
        "upgrade": lambda: monkeypatch.setattr(attempts_module, "__version__", "another"),
    }
    for step in steps.split():
        actions[step]()
        if step in ("kill", "reboot"):
            log = AttemptLog(root)
    for each in (log, AttemptLog(root)):
        assert (each.of(KEY), each.of(OTHER)) == (known, Attempts())


def file_of(root: Path) -> Path:
    AttemptLog(root).failed(KEY, "no memory")
    (file,) = (path for path in root.rglob("*") if path.is_file())
    return file


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"failures": "many"}', b"[]"])
def test_of_damaged_file_is_empty(root: Path, content: bytes) -> None:
    file_of(root).write_bytes(content)
    log = AttemptLog(root)
    assert log.of(KEY) == Attempts()
    log.failed(KEY, "no time")
    assert log.of(KEY) == Attempts(1, "no time")


def test_open_pipe_instead_of_a_file_does_not_block(root: Path) -> None:
    file = file_of(root)
    file.unlink()
    os.mkfifo(file)
    assert ends_despite_fifo(lambda: AttemptLog(root), file)
    assert AttemptLog(root).of(KEY) == Attempts()


def test_failed_on_unwritable_disk_works_in_memory(
    small_disk: Path, boot: Path, make_read_only: Callable[[Path], None]
) -> None:
    AttemptLog(small_disk).failed(KEY, "no memory")
    make_read_only(small_disk)
    log = AttemptLog(small_disk)
    log.begin(OTHER)
    log.failed(OTHER, "no time")
    log.forget(KEY)
    assert (log.of(OTHER), log.of(KEY)) == (Attempts(1, "no time"), Attempts())
    log = AttemptLog(small_disk)
    assert (log.of(OTHER), log.of(KEY)) == (Attempts(), Attempts(1, "no memory"))


def test_failed_without_a_folder_works_in_memory(root: Path) -> None:
    root.write_text("in the way")
    log = AttemptLog(root)
    log.begin(KEY)
    log.failed(KEY, "no memory")
    assert log.of(KEY).failures == 1
    assert AttemptLog(root).of(KEY) == Attempts()


def test_failed_keeps_only_the_newest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_module, "_KEPT", 2)
    log = AttemptLog(root)
    for number, key in enumerate("abc"):
        log.failed(key, "no memory")
        os.utime(root / "attempts" / f"{key}.json", (number, number))
    later = AttemptLog(root)
    assert [later.of(key).failures for key in "abc"] == [0, 1, 1]


def test_outcomes_are_written_by_another_thread(root: Path) -> None:
    later: list[Callable[[], object]] = []
    log = AttemptLog(root, later.append)
    log.failed(KEY, "no memory")
    log.undone(KEY)
    log.cancelled(OTHER, "cancelled")
    log.forget(OTHER)
    assert not list((root / "attempts").iterdir())
    for write in later:
        write()
    assert [place.stem for place in (root / "attempts").iterdir()] == [KEY]

"""A state directory of another format: refused if it is newer, copied before it changes."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edged.errors import ErrorCode, Refused
from edged.store import sealed, state_format
from edged.store.state_format import Mark


def mark(state: Path) -> Mark | None:
    return sealed.read(state / state_format.FILE, Mark, "format")


def claim(state: Path, version: str, ours: int = state_format.FORMAT) -> None:
    """What a daemon does that starts without a problem."""
    state_format.prepare(state, version, ours)
    state_format.claim(state, version, ours)


def test_claim_new_directory_marks_it(tmp_path: Path) -> None:
    claim(tmp_path, "0.1.0")
    assert mark(tmp_path) == Mark(state_format.FORMAT, "0.1.0")
    claim(tmp_path, "0.2.0")
    assert mark(tmp_path) == Mark(state_format.FORMAT, "0.1.0"), "the first version that wrote this format"


def test_claim_newer_format_is_refused_with_instructions(tmp_path: Path) -> None:
    sealed.write(tmp_path / state_format.FILE, Mark(3, "0.9.0"))
    with pytest.raises(Refused) as caught:
        claim(tmp_path, "0.1.0", ours=1)
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION
    for word in (str(tmp_path), "format 3", "edged 0.9.0", "before-format-2", "docs/upgrade.md"):
        assert word in str(caught.value)
    assert mark(tmp_path) == Mark(3, "0.9.0")


def test_claim_older_format_keeps_a_copy_that_the_older_version_accepts(tmp_path: Path) -> None:
    claim(tmp_path, "0.1.0", ours=1)
    (tmp_path / "models/doors").mkdir(parents=True)
    (tmp_path / "models/doors/model.onnx").write_bytes(b"onnx")
    (tmp_path / "models/frames").mkdir()
    for pictures in ("frames", "drift", "events"):
        (tmp_path / pictures / "doors").mkdir(parents=True)
    (tmp_path / "lock").touch()
    claim(tmp_path, "0.2.0", ours=2)
    claim(tmp_path, "0.3.0", ours=3)
    assert mark(tmp_path) == Mark(3, "0.3.0")
    copy = tmp_path / "before-format-2"
    assert (copy / "models/doors/model.onnx").samefile(tmp_path / "models/doors/model.onnx")
    assert (copy / "models/frames").is_dir()
    assert not (copy / "lock").exists()
    assert not any((copy / pictures).exists() for pictures in ("frames", "drift", "events"))
    assert not (tmp_path / "before-format-3/before-format-2").exists()
    claim(copy, "0.1.0", ours=1)
    with pytest.raises(Refused):
        claim(tmp_path, "0.1.0", ours=1)


def test_claim_interrupted_copy_is_made_again(tmp_path: Path) -> None:
    claim(tmp_path, "0.1.0", ours=1)
    (tmp_path / ".before-format-2").mkdir()
    claim(tmp_path, "0.2.0", ours=2)
    assert (tmp_path / "before-format-2" / state_format.FILE).exists()
    assert not (tmp_path / ".before-format-2").exists()


def test_claim_damaged_mark_is_written_again(tmp_path: Path) -> None:
    (tmp_path / state_format.FILE).write_text("{")
    claim(tmp_path, "0.1.0")
    assert mark(tmp_path) == Mark(state_format.FORMAT, "0.1.0")


def test_prepare_leaves_the_mark_for_a_daemon_that_then_cannot_start(tmp_path: Path) -> None:
    claim(tmp_path, "0.1.0", ours=1)
    state_format.prepare(tmp_path, "0.2.0", ours=2)
    claim(tmp_path, "0.1.0", ours=1)
    assert mark(tmp_path) == Mark(1, "0.1.0")


def refuse(*numbers: int) -> Callable[..., None]:
    left = itertools.chain(numbers, itertools.repeat(0))

    def call(*_: object, **__: object) -> None:
        if number := next(left):
            raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV])
def test_prepare_copies_what_it_cannot_link(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path, "0.1.0", ours=1)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/model.onnx").write_bytes(b"onnx")
    monkeypatch.setattr(os, "link", refuse(*[number] * 9))
    claim(tmp_path, "0.2.0", ours=2)
    copy = tmp_path / "before-format-2/models/model.onnx"
    assert copy.read_bytes() == b"onnx"
    assert not copy.samefile(tmp_path / "models/model.onnx")


def test_prepare_replaces_the_copy_of_an_upgrade_that_failed(tmp_path: Path) -> None:
    claim(tmp_path, "0.1.0", ours=1)
    state_format.prepare(tmp_path, "0.2.0", ours=2)
    (tmp_path / "tokens.json").touch()  # by the old version, which served on
    claim(tmp_path, "0.2.1", ours=2)
    assert (tmp_path / "before-format-2/tokens.json").exists()


def test_prepare_without_space_for_the_copy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path, "0.1.0", ours=1)
    monkeypatch.setattr(os, "link", refuse(errno.ENOSPC))
    with pytest.raises(Refused, match="No space left"):
        state_format.prepare(tmp_path, "0.2.0", ours=2)
    assert mark(tmp_path) == Mark(1, "0.1.0")


def test_claim_new_format_without_space_for_the_mark_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(tmp_path, "0.1.0", ours=1)
    state_format.prepare(tmp_path, "0.2.0", ours=2)
    monkeypatch.setattr(os, "replace", refuse(errno.ENOSPC))
    with pytest.raises(Refused):
        state_format.claim(tmp_path, "0.2.0", ours=2)


def test_claim_of_a_full_disk_with_the_same_format_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", refuse(errno.ENOSPC))
    claim(tmp_path, "0.1.0")
    assert mark(tmp_path) is None


@pytest.mark.parametrize("wrong", ["unreadable", "damaged"])
def test_prepare_with_an_unknown_format_is_refused(wrong: str, tmp_path: Path) -> None:
    """The format may be a newer one, so the file is not replaced."""
    file = tmp_path / state_format.FILE
    if wrong == "damaged":
        file.write_text("{")
        (tmp_path / "before-format-2").mkdir()  # it was changed before
    else:
        file.mkdir()
    with pytest.raises(Refused):
        state_format.prepare(tmp_path, "0.1.0")
    assert file.exists()

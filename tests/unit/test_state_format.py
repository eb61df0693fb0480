"""A state directory of another format: refused if it is newer, copied before it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.errors import ErrorCode, Refused
from edged.store import sealed, state_format
from edged.store.state_format import Mark, claim


def mark(state: Path) -> Mark | None:
    return sealed.read(state / state_format.FILE, Mark, "format")


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
    (tmp_path / "frames/doors").mkdir(parents=True)  # pictures of cameras
    (tmp_path / "lock").touch()
    claim(tmp_path, "0.2.0", ours=2)
    claim(tmp_path, "0.3.0", ours=3)
    assert mark(tmp_path) == Mark(3, "0.3.0")
    copy = tmp_path / "before-format-2"
    assert (copy / "models/doors/model.onnx").samefile(tmp_path / "models/doors/model.onnx")
    assert (copy / "models/frames").is_dir()
    assert not (copy / "lock").exists()
    assert not (copy / "frames").exists()
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

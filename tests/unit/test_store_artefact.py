"""An engine's files: only content that matches the record is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edged.backends.artefact import Artefact, FileRecord
from edged.errors import EngineDamaged

CONTENT = bytes(range(256)) * 8


@pytest.fixture
def sealed(tmp_path: Path) -> Artefact:
    (tmp_path / "one").write_bytes(CONTENT)
    (tmp_path / "two").write_bytes(b"")
    return Artefact.seal(tmp_path)


def test_load_sealed_files_have_their_content(sealed: Artefact) -> None:
    assert sealed.load("one") == CONTENT
    assert sealed.load("two") == b""
    assert sealed.size == len(CONTENT)
    assert list(sealed.files) == ["one", "two"]
    sealed.check()


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[777] ^= 1
    path.write_bytes(data)


def _to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "one bit flipped": _flip,
    "cut short": lambda path: path.write_bytes(CONTENT[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "grown": lambda path: path.write_bytes(CONTENT + b"x"),
    "gone": lambda path: path.unlink(),
    "a folder": _to_folder,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_load_file_that_differs_from_its_record_is_damaged(sealed: Artefact, damage: str) -> None:
    DAMAGE[damage](Path(sealed.root) / "one")
    with pytest.raises(EngineDamaged, match="one"):
        sealed.load("one")
    with pytest.raises(EngineDamaged, match="one"):
        sealed.check()
    assert sealed.load("two") == b""


def test_load_file_without_a_record_is_damaged(sealed: Artefact) -> None:
    (Path(sealed.root) / "three").write_bytes(b"planted")
    with pytest.raises(EngineDamaged, match="three"):
        sealed.load("three")


def test_load_file_with_another_size_in_its_record_is_damaged(sealed: Artefact) -> None:
    record = sealed.files["one"]
    lying = Artefact(sealed.root, {"one": FileRecord(record.sha256, record.size + 1)})
    with pytest.raises(EngineDamaged):
        lying.load("one")
    with pytest.raises(EngineDamaged):
        lying.check()

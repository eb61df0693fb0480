"""Timing caches between builds: used if they fit, and never a reason for a build to fail."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from edged.backends.contract import Composition
from edged.errors import EngineUnusable
from tests.fake_trt import Script, Trace
from tests.unit.trt_builds import build, gpu, order

__all__ = ["gpu"]

KEEPING = ("8.6", "10", "11")


def timed(generation: str, folder: Path, path: Path, script: Script | None = None) -> tuple[Composition, Trace]:
    return build(generation, folder, script, msgspec.structs.replace(order(folder), timings=str(path)))


@pytest.mark.parametrize("generation", KEEPING)
def test_timings_of_one_build_are_given_to_the_next(generation: str, tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "timings"
    made, trace = timed(generation, tmp_path, path)
    assert trace.caches == [b""]
    made, trace = timed(generation, tmp_path, path)
    assert trace.caches == [b"measured"]
    assert not any("timings" in note for note in made.notes)
    assert [p.name for p in path.parent.iterdir()] == ["timings"]


def test_timings_builder_that_measures_nothing_stores_nothing(tmp_path: Path) -> None:
    _, trace = timed("rtx", tmp_path, tmp_path / "timings")
    assert trace.caches == []
    assert not (tmp_path / "timings").exists()


def test_timings_without_a_path_are_not_stored(tmp_path: Path) -> None:
    _, trace = build("10", tmp_path)
    assert trace.caches == []


def test_timings_damaged_file_is_ignored_with_a_note_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "timings"
    timed("10", tmp_path, path)
    good = path.read_bytes()
    flipped = (bytes([*good[:at], good[at] ^ 1, *good[at + 1 :]]) for at in (0, len(good) // 2, len(good) - 1))
    for damaged in (*flipped, good + b"x", *(good[:length] for length in range(len(good)))):
        path.write_bytes(damaged)
        made, trace = timed("10", tmp_path, path)
        assert trace.caches == [b""]
        assert any("earlier kernel timings are" in note and "not used" in note for note in made.notes)
        assert path.read_bytes() == good


def test_timings_of_another_device_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "timings"
    timed("10", tmp_path, path)
    made, trace = timed("10", tmp_path, path, Script(cache_fits=[False, True]))
    assert trace.caches == [b"measured", b""]
    assert "earlier kernel timings are from another device and were not used" in made.notes
    path.unlink()
    timed("10", tmp_path, path, Script(cache_fits=[False, False]))
    assert not path.exists()


def test_timings_failed_build_stores_nothing(tmp_path: Path) -> None:
    path = tmp_path / "timings"
    with pytest.raises(EngineUnusable):
        timed("10", tmp_path, path, Script(plan=None))
    assert not path.exists()


def test_timings_unusable_file_fails_no_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made, _ = timed("10", tmp_path, tmp_path / "file" / "timings")
    assert any(note.startswith("kernel timings could not be saved: ") for note in made.notes)
    (tmp_path / "folder").mkdir()
    made, _ = timed("10", tmp_path, tmp_path / "folder")
    assert any(note.startswith("kernel timings could not be saved: ") for note in made.notes)
    os.mkfifo(tmp_path / "fifo")
    made, _ = timed("10", tmp_path, tmp_path / "fifo")
    assert any(note.startswith("earlier kernel timings could not be read: ") for note in made.notes)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fifo", "file", "folder", "out"]


def test_timings_keep_the_newest_files_of_a_backend(tmp_path: Path) -> None:
    folder = tmp_path / "timings"
    folder.mkdir()
    for age in range(12):
        old = folder / f"tensorrt-{age:02}"
        old.write_bytes(b"x")
        os.utime(old, (1_000_000 - age, 1_000_000 - age))
    left = folder / ".tensorrt-00-a1b2"  # by a child that was killed while it wrote
    left.write_bytes(b"x")
    os.utime(left, (1, 1))
    for name in ("tensorrt_rtx-00", "notes", ".hidden"):
        (folder / name).write_text("")
        os.utime(folder / name, (1, 1))
    (folder / "tensorrt-folder").mkdir()
    (folder / "tensorrt-link").symlink_to(folder / "nowhere")
    others = {"tensorrt_rtx-00", "notes", ".hidden", "tensorrt-folder", "tensorrt-link"}
    made, _ = timed("10", tmp_path, folder / "tensorrt-new")
    assert {p.name for p in folder.iterdir()} == others | {"tensorrt-new", *(f"tensorrt-{age:02}" for age in range(7))}
    timed("10", tmp_path, folder / "tensorrt-06")  # written again, so the newest
    timed("10", tmp_path, folder / "tensorrt-other")
    assert not (folder / "tensorrt-05").exists()
    assert (folder / "tensorrt-06").exists()
    assert made.notes == timed("10", tmp_path, folder / "tensorrt-new")[0].notes


def test_timings_old_files_that_cannot_be_removed_fail_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "unlink", refuse)
    for number in range(10):
        timed("10", tmp_path, tmp_path / "timings" / f"tensorrt-{number}")
    assert len(list((tmp_path / "timings").iterdir())) == 10

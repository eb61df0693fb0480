"""User pictures: which files are samples, how they are added, and refusal of models with unreadable ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from edged.backends import registry
from edged.config.child_limits import Limits
from edged.device.fingerprint import probe
from edged.engines.admission import admit
from edged.engines.builder import Builder
from edged.errors import EdgedError, InvalidInput
from edged.models import samples
from edged.models.repository import Repository
from edged.store.store import Store
from tests import models
from tests.waiting import run


def picture(path: Path, seed: int = 0) -> Path:
    assert cv2.imwrite(str(path), np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("b.jpg", "a.PNG", "c.jpeg"):
        (folder / name).write_bytes(name.encode())
    return folder


def test_listed_selects_files_by_name_only(folder: Path) -> None:
    for other in ("notes.txt", ".hidden.jpg", "jpg", "film.jpg.mp4", "line\nbreak.jpg"):
        (folder / other).write_bytes(b"x")
    (folder / "dir.jpg").mkdir()
    os.mkfifo(folder / "pipe.png")
    (folder / "dangling.png").symlink_to("nowhere")
    assert [path.name for path in samples.listed(folder)] == ["a.PNG", "b.jpg", "c.jpeg"]
    assert samples.listed(folder / "gone") == samples.listed(folder / "notes.txt") == ()


def test_listed_too_many_samples_are_the_first_by_name(tmp_path: Path) -> None:
    for number in reversed(range(100)):
        (tmp_path / f"{number:03}.jpg").touch()
    assert [path.name for path in samples.listed(tmp_path)] == [f"{n:03}.jpg" for n in range(samples.MOST)]


def test_find_accepts_files_and_folders(folder: Path, tmp_path: Path) -> None:
    single = tmp_path / "single.png"
    single.touch()
    assert list(samples.find([single, folder])) == ["single.png", "a.PNG", "b.jpg", "c.jpeg"]
    assert list(samples.find(str(single))) == list(samples.find(single)) == ["single.png"]
    assert samples.find([]) == samples.find(()) == {}


def test_find_other_paths_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.PNG").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "film.mp4").touch()
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(samples.MOST_BYTES + 1)
    many = tmp_path / "many"
    many.mkdir()
    for number in range(samples.MOST + 1):
        (many / f"{number}.jpg").touch()
    os.mkfifo(tmp_path / "pipe.jpg")
    for given, words in (
        ([tmp_path / "gone.jpg"], r"gone\.jpg"),
        ([tmp_path / "empty"], "empty"),
        ([tmp_path / "film.mp4"], "invalid sample name"),
        ([tmp_path / "huge.jpg"], "at most 16 MiB"),
        ([tmp_path / "pipe.jpg"], "not a file"),
        ([many], "33 samples are too many"),
        ([folder, tmp_path / "a.PNG"], "two samples are named"),
    ):
        with pytest.raises(InvalidInput, match=words) as raised:
            samples.find(given)
        assert "\n" not in str(raised.value)


# -- in the repository ----------------------------------------------------------------------------------------------


def lay(root: Path, name: str = "yolo") -> Path:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.onnx").write_bytes(b"model")
    (root / name / "samples").mkdir()
    picture(root / name / "samples" / "hall.jpg")
    return root / name


def test_entries_have_the_samples_of_their_folder(tmp_path: Path) -> None:
    folder = lay(tmp_path)
    entry = Repository(tmp_path).entries()["yolo"]
    assert entry.samples == (str(folder / "samples" / "hall.jpg"),)
    assert entry.problem == ""
    shutil.rmtree(folder / "samples")
    assert Repository(tmp_path).entries()["yolo"].samples == ()


def test_entries_change_with_every_sample(tmp_path: Path) -> None:
    folder = lay(tmp_path) / "samples"
    seen = []
    for change in (
        lambda: None,
        lambda: picture(folder / "hall.jpg", 1),
        lambda: picture(folder / "door.png"),
        (folder / "hall.jpg").unlink,
    ):
        change()
        seen.append(Repository(tmp_path).entries()["yolo"])
    assert all(one != other for index, one in enumerate(seen) for other in seen[:index])
    (folder / "notes.txt").touch()
    assert Repository(tmp_path).entries()["yolo"] == seen[-1]


@pytest.mark.parametrize("move", [False, True])
def test_add_stores_samples(tmp_path: Path, move: bool) -> None:
    source, hall = tmp_path / "source", picture(tmp_path / "hall.jpg")
    source.write_bytes(b"model")
    content = hall.read_bytes()
    repository = Repository(tmp_path / "models")
    repository.add("yolo", {"model.onnx": source}, {}, samples={"hall.jpg": hall}, move=move)
    (path,) = repository.entries()["yolo"].samples
    assert Path(path).read_bytes() == content
    assert hall.exists() != move
    repository.remove("yolo", delete=True)
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("name", ["../up.jpg", "a/b.jpg", "/etc/x.jpg", ".hidden.jpg", "model.onnx", "", "a\0.jpg"])
def test_add_hostile_sample_name_is_refused(tmp_path: Path, name: str) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with pytest.raises(InvalidInput, match="invalid sample name"):
        Repository(tmp_path / "models").add("yolo", {"m": source}, {}, samples={name: source})
    assert not (tmp_path / "models").exists()


# -- admission ------------------------------------------------------------------------------------------------------


def admitted(tmp_path: Path, path: Path, given: list[Path]) -> None:
    builder = Builder(Store(tmp_path / "cache"), tmp_path / "cache", Limits(seconds=60, memory_mb=4096))
    run(admit(builder, path, {}, registry.usable(probe().facts), given))


@pytest.mark.parametrize("what", ["text", "half"])
def test_admit_unreadable_picture_is_refused_by_name(tmp_path: Path, what: str) -> None:
    path = models.save(models.conv(), tmp_path / "model.onnx")
    bad = picture(tmp_path / "bad.jpg")
    bad.write_bytes(b"not a picture" if what == "text" else bad.read_bytes()[:400])
    with pytest.raises(InvalidInput, match=r"bad\.jpg") as raised:
        admitted(tmp_path, path, [picture(tmp_path / "good.png"), bad])
    assert "\n" not in str(raised.value)
    assert str(tmp_path) not in str(raised.value)


def test_admit_pictures_for_model_without_pictures_are_refused(tmp_path: Path) -> None:
    path = models.save(models.matmul(), tmp_path / "model.onnx")
    with pytest.raises(EdgedError, match="takes no pictures"):
        admitted(tmp_path, path, [picture(tmp_path / "a.jpg")])

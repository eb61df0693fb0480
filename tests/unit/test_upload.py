"""The parts of an upload: the model first, then its external data, then the samples, each with its size."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.client.upload import Package, Upload
from edged.errors import InvalidInput
from tests import models


def files_of(upload: Upload) -> list[tuple[str, bool, bytes]]:
    """Return the name, whether it is a sample, and the content of every file."""
    files: list[tuple[str, bool, bytes]] = []
    first, *parts = upload
    assert first.WhichOneof("part") == "header"
    sizes = []
    for part in parts:
        if part.WhichOneof("part") == "file":
            files.append((part.file.path, part.file.sample, b""))
            sizes.append(part.file.size)
        else:
            name, sample, content = files[-1]
            files[-1] = name, sample, content + part.chunk
    assert [len(content) for _, _, content in files] == sizes
    return files


def test_upload_samples_follow_the_model_and_are_marked(tmp_path: Path) -> None:
    model = models.external(tmp_path)
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("b.jpg", "a.png", "notes.txt"):
        (folder / name).write_bytes(name.encode() * 3)
    files = files_of(Upload(Package.of("m", model, None, [folder])))
    assert [(name, sample) for name, sample, _ in files] == [
        ("model.onnx", False),
        ("weights.bin", False),
        ("a.png", True),
        ("b.jpg", True),
    ]
    assert files[-1][2] == b"b.jpgb.jpgb.jpg"


def test_upload_without_samples_marks_no_file(tmp_path: Path) -> None:
    model = models.save(models.matmul(), tmp_path / "model.onnx")
    assert [(name, sample) for name, sample, _ in files_of(Upload(Package.of("m", model, None)))] == [
        ("model.onnx", False)
    ]


def test_package_other_file_as_sample_raises(tmp_path: Path) -> None:
    model = models.save(models.matmul(), tmp_path / "model.onnx")
    with pytest.raises(InvalidInput, match=r"film\.mp4"):
        Package.of("m", model, None, [tmp_path / "film.mp4"])

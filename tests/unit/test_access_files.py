"""Owners and modes of files: which models are trusted, and who may use a socket."""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

import pytest

from edged.api.endpoints.address import settle
from edged.files import foreign
from edged.models.repository import Repository
from edged.shapes import MODEL_PATH

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.mark.parametrize(
    ("mode", "words"),
    [(0o755, ""), (0o775, ""), (0o757, "can be written by all users; run: chmod o-w"), (0o1777, "")],
)
def test_foreign_folder_that_all_users_may_write_is_named(tmp_path: Path, mode: int, words: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    found = foreign([tmp_path, folder])
    assert words in found
    assert bool(found) is bool(words)


@is_root
def test_foreign_file_of_another_user_or_group_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    os.chown(file, -1, 4321)
    file.chmod(0o660)
    assert "a group that is not" in foreign([file])
    file.chmod(0o640)
    assert foreign([file]) == ""
    os.chown(file, 4321, -1)
    assert "belongs to user 4321" in foreign([file])


def test_entries_model_that_others_may_replace_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    model = root / "shapes.onnx"
    model.write_bytes(MODEL_PATH.read_bytes())
    repository = Repository(root, accepts_foreign=False)
    assert repository.entries()["shapes"].problem == ""
    for path, mode in ((model, 0o666), (root, 0o777)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        problem = repository.entries()["shapes"].problem
        assert f"{path} can be written by all users; run: chmod o-w {path}" in problem
        assert "access.foreign_files" in problem
        assert Repository(root).entries()["shapes"].problem == ""
        path.chmod(before)
    folder = root / "door" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"x")
    folder.chmod(0o777)
    assert str(folder) in repository.entries()["door"].problem


def test_settle_socket_without_its_group_only_its_owner_may_connect(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.write_bytes(b"")
    settle(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    settle(path, "no-such-group-here")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@is_root
def test_settle_socket_its_group_may_connect(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.write_bytes(b"")
    group = grp.getgrall()[-1]
    settle(path, group.gr_name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert path.stat().st_gid == group.gr_gid


def test_entries_link_into_a_folder_that_all_may_write_is_refused(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (elsewhere / "shapes.onnx").write_bytes(MODEL_PATH.read_bytes())
    (root / "shapes.onnx").symlink_to(elsewhere / "shapes.onnx")
    repository = Repository(root, accepts_foreign=False)
    assert repository.entries()["shapes"].problem == ""
    elsewhere.chmod(0o777)
    assert f"{elsewhere} can be written by all users; run: chmod o-w" in repository.entries()["shapes"].problem

"""Versions of a model: their choice, the repository's entries, modes of control, and overrides."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from edged.config.schema import ModelControl
from edged.engines.loader import ModelSelection
from edged.errors import ConfigError, InvalidInput, NotFound
from edged.models.repository import Overrides, Repository
from edged.models.triton_config import parse_versions
from tests.unit.test_repository import lay, unreadable


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("latest", (10,)),
        ("latest:1", (10,)),
        ("latest:2", (10, 3)),
        ("latest:99", (10, 3, 1)),
        ("all", (10, 3, 1)),
        ("1,3", (3, 1)),
        (" 3 ", (3,)),
        ("7", ()),
    ],
)
def test_choose_returns_versions_highest_first(text: str, chosen: tuple[int, ...]) -> None:
    assert parse_versions(text).choose((3, 10, 1)) == chosen


@pytest.mark.parametrize("text", ["latest:2", "all", "1,3"])
def test_parse_versions_of_its_own_text_is_equal(text: str) -> None:
    assert str(parse_versions(text)) == text


@pytest.mark.parametrize(
    "text", ["", "latest:0", "latest:-1", "newest", "1;2", "1,", "-1", "²", "9" * 30, "1," * 99 + "1"]
)
def test_parse_versions_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="versions="):
        parse_versions(text)


def names(root: Path) -> dict[str, str]:
    return {name: entry.version for name, entry in Repository(root).entries().items()}


def test_entries_newest_version_has_the_models_name(tmp_path: Path) -> None:
    lay(tmp_path, "yolo", "9", "10", "2", settings='versions = "latest:2"')
    assert names(tmp_path) == {"yolo": "10", "yolo:9": "9"}
    assert {entry.model for entry in Repository(tmp_path).entries().values()} == {"yolo"}


def test_entries_versions_by_configuration_then_by_setting(tmp_path: Path) -> None:
    folder = lay(tmp_path, "yolo", "1", "2", "3")
    (folder / "config.pbtxt").write_text("version_policy { specific { versions: [ 1, 2 ] } }")
    assert names(tmp_path) == {"yolo": "2", "yolo:1": "1"}
    (folder / "edged.toml").write_text('versions = "all"')
    assert names(tmp_path) == {"yolo": "3", "yolo:2": "2", "yolo:1": "1"}
    (folder / "edged.toml").write_text("versions = [1, 3]")
    assert names(tmp_path) == {"yolo": "3", "yolo:1": "1"}


LONG = "é" * 200


@pytest.mark.parametrize(
    ("config", "settings", "problem"),
    [
        ("max_batch_size: many", None, "config.pbtxt: "),
        ("", 'versions = "7"', "versions=7"),
        (f'output {{ name: "y" label_filename: "{LONG}" }}', None, "is not the name of a file"),
        (f'default_model_filename: "{LONG}"', None, "is not the name of a file"),
    ],
)
def test_entries_invalid_configuration_is_the_problem_of_its_model(
    tmp_path: Path, config: str, settings: str | None, problem: str
) -> None:
    (lay(tmp_path, "bad", "1", settings=settings) / "config.pbtxt").write_text(config)
    lay(tmp_path, "good", "1")
    entries = Repository(tmp_path).entries()
    assert problem in entries["bad"].problem
    assert entries["good"].problem == ""


def test_entries_read_the_files_that_the_configuration_names(tmp_path: Path) -> None:
    folder = lay(tmp_path, "m", "1")
    (folder / "1" / "net.onnx").write_text("x")
    (folder / "labels.txt").write_text("cat\ndog\n")
    (folder / "config.pbtxt").write_text(
        'default_model_filename: "net.onnx" output { name: "y" label_filename: "labels.txt" }'
        ' model_warmup { name: "w" inputs { key: "x" value { dims: 1 input_data_file: "x.raw" } } }'
    )
    entry = Repository(tmp_path).entries()["m"]
    assert entry.path == str(folder / "1" / "net.onnx")
    assert entry.labels == {"y": ("cat", "dog")}
    assert entry.problem == "config.pbtxt names the file 'x.raw', which does not exist"
    (folder / "warmup").mkdir()
    (folder / "warmup" / "x.raw").write_bytes(b"1234")
    assert Repository(tmp_path).entries()["m"].problem == ""


def test_entries_unreadable_named_file_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lay(tmp_path, "m", "1")
    (folder / "config.pbtxt").write_text(
        'model_warmup { name: "w" inputs { key: "x" value { dims: 1 input_data_file: "x.raw" } } }'
    )
    real = os.stat

    def stat(path: str | Path, **more: bool) -> os.stat_result:
        if "warmup" in str(path):
            raise PermissionError(13, "Permission denied")
        return real(path, **more)

    monkeypatch.setattr(os, "stat", stat)
    assert "x.raw" in Repository(tmp_path).entries()["m"].problem


@pytest.mark.parametrize("name", ["config.pbtxt", "labels.txt", "warmup/x.raw"])
def test_stamp_changes_with_every_named_file(tmp_path: Path, name: str) -> None:
    folder = lay(tmp_path, "m", "1")
    text = (
        'output { name: "y" label_filename: "labels.txt" }'
        ' model_warmup { name: "w" inputs { key: "x" value { dims: 1 input_data_file: "x.raw" } } }'
    )
    (folder / "warmup").mkdir()
    for path, content in (("config.pbtxt", text), ("labels.txt", "cat\n"), ("warmup/x.raw", "1234")):
        (folder / path).write_text(content)
    before = Repository(tmp_path).entries()["m"]
    (folder / name).write_text((folder / name).read_text() + "\n")
    assert Repository(tmp_path).entries()["m"].stamp != before.stamp


# -- modes of control -----------------------------------------------------------------------------------------------


def test_selection_none_keeps_the_models_of_the_start_and_poll_follows(tmp_path: Path) -> None:
    polling = ModelSelection(Repository(tmp_path), "poll")
    assert polling.entries() == {}
    lay(tmp_path, "m", "1")
    assert list(polling.entries()) == ["m"]
    selection = ModelSelection(Repository(tmp_path), "none")
    before = selection.entries()
    lay(tmp_path, "m", "2")
    lay(tmp_path, "other", "1")
    assert selection.entries() == before
    selection.take("other")
    assert set(selection.entries()) == {"m", "other"}


@pytest.mark.parametrize("mode", ["none", "explicit"])
@pytest.mark.parametrize("failing", ["", "m"])
def test_selection_model_that_cannot_be_read_at_the_start_is_found_later(
    tmp_path: Path, mode: ModelControl, failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    lay(tmp_path, "m", "1")
    lay(tmp_path, "other", "1")
    selection = ModelSelection(Repository(tmp_path), mode, ["m"])
    with unreadable(tmp_path / failing, errno.EIO):
        for _ in range(2):
            assert "m" not in selection.entries()
    assert "startup model" not in caplog.text
    assert set(selection.entries()) == ({"m"} if mode == "explicit" else {"m", "other"})


def test_selection_explicit_has_only_named_models(tmp_path: Path) -> None:
    lay(tmp_path, "m", "1", "2", settings='versions = "all"')
    lay(tmp_path, "other", "1")
    assert ModelSelection(Repository(tmp_path), "explicit").entries() == {}
    assert set(ModelSelection(Repository(tmp_path), "explicit", ["m", "missing"]).entries()) == {"m", "m:1"}
    assert set(ModelSelection(Repository(tmp_path), "explicit", ["*"]).entries()) == {"m", "m:1", "other"}


def test_selection_hold_restores_dropped_models(tmp_path: Path) -> None:
    lay(tmp_path, "m", "1", "2", settings='versions = "all"')
    selection = ModelSelection(Repository(tmp_path), "explicit", ["*"])
    held = selection.held("m")
    selection.drop("m")
    assert selection.entries() == {}
    selection.hold("m", held)
    assert set(selection.entries()) == {"m", "m:1"}


# -- overrides ------------------------------------------------------------------------------------------------------


def overrides(tmp_path: Path) -> Overrides:
    return Overrides(tmp_path / "overrides", Repository(tmp_path / "models"))


def test_overrides_with_files_ignore_the_repository(tmp_path: Path) -> None:
    lay(tmp_path / "models", "m", "1", "5")
    files = {"2/model.onnx": b"two", "3/model.onnx": b"three", "labels.txt": b"cat\n"}
    config = '{"version_policy": {"all": {}}, "output": [{"name": "y", "label_filename": "labels.txt"}]}'
    made = overrides(tmp_path)
    found = made.entries("m", config, files)
    assert {name: entry.version for name, entry in found.items()} == {"m": "3", "m:2": "2"}
    assert Path(found["m"].path).read_bytes() == b"three"
    assert found["m"].labels == {"y": ("cat",)}
    made.discard(found)
    assert list(made.root.iterdir()) == []


def test_overrides_with_configuration_use_files_on_disk(tmp_path: Path) -> None:
    folder = lay(tmp_path / "models", "m", "1", "5")
    (folder / "config.pbtxt").write_text("max_batch_size: 2")
    found = overrides(tmp_path).entries("m", '{"max_batch_size": 7}', {})
    assert [(entry.version, entry.triton.max_batch_size) for entry in found.values() if entry.triton] == [("5", 7)]
    assert overrides(tmp_path).entries("nobody", "{}", {}) == {}


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "1/../../x", "", ".", "a/" * 20 + "b", "1/a\nb", "1/" + "x" * 300, "config.pbtxt"]
)
def test_overrides_hostile_path_is_refused(tmp_path: Path, path: str) -> None:
    made = overrides(tmp_path)
    with pytest.raises(InvalidInput):
        made.entries("m", "{}", {path: b"x"})
    assert not made.root.exists() or list(made.root.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "files"),
    [
        (None, {"1/model.onnx": b"x"}),
        ("{", {}),
        ('{"name": "other"}', {}),
        ("{}", {"model.onnx": b"x"}),
        ("{}", {"1": b"x", "1/model.onnx": b"x"}),
        ("{}", {"1/model.onnx": b"x", "1//model.onnx": b"x"}),
    ],
)
def test_overrides_invalid_leave_nothing(tmp_path: Path, config: str | None, files: dict[str, bytes]) -> None:
    made = overrides(tmp_path)
    with pytest.raises((InvalidInput, NotFound)):
        made.entries("m", config, files)
    assert not made.root.exists() or list(made.root.iterdir()) == []


def test_overrides_sweep_removes_everything(tmp_path: Path) -> None:
    made = overrides(tmp_path)
    made.entries("m", "{}", {"1/model.onnx": b"x"})
    made.sweep()
    assert not made.root.exists()

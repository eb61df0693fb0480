"""The characters of a text recogniser from a dictionary next to the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.cli.model_options import with_exporter_settings
from edged.models import dictionary
from edged.references.kept import Local
from edged.vision import characters, family


def folder_of(path: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_families_with_characters_are_known() -> None:
    assert set(dictionary.FAMILIES) <= set(family.FAMILIES)


@pytest.mark.parametrize("name", ["dict.txt", "ppocr_keys_v1.txt", "en_dict.txt", "ppocrv5_dict.txt", "charset.txt"])
def test_dictionary_of_the_only_model_in_the_folder_is_read(tmp_path: Path, name: str) -> None:
    folder_of(tmp_path, model__onnx="", **{name: "a\nb\n \n", "notes.txt": "x\ny\n", "labels.txt": "x\ny\n"})
    assert dictionary.read_settings(tmp_path / "model.onnx") == (name, {"decode.characters": "ab "})


def test_dictionary_of_several_models_needs_the_name_of_its_model(tmp_path: Path) -> None:
    folder_of(tmp_path, det__onnx="", rec__onnx="", dict__txt="a\nb\n", rec_dict__txt="c\nd\n")
    assert dictionary.read_settings(tmp_path / "det.onnx") == ("", {})
    assert dictionary.read_settings(tmp_path / "rec.onnx") == ("rec_dict.txt", {"decode.characters": "cd"})


def test_dictionary_entries_of_several_characters_stay_on_their_lines(tmp_path: Path) -> None:
    folder_of(tmp_path, model__onnx="", dict__txt="\na\nbc\n")
    assert dictionary.read_settings(tmp_path / "model.onnx")[1] == {"decode.characters": "\na\nbc"}


@pytest.mark.parametrize("text", ["a\nb\n\n", "\na\nb\n", "a\n\n", "a\n\nb"])
def test_setting_lists_the_entries_of_the_dictionary(tmp_path: Path, text: str) -> None:
    folder_of(tmp_path, model__onnx="", dict__txt=text)
    _, settings = dictionary.read_settings(tmp_path / "model.onnx")
    assert characters.parse(settings["decode.characters"]) == characters.parse(text)


# As PyYAML writes them, each on a line.
WRITTEN = (
    "A",
    "''''",
    "'\"'",
    "\\",
    "'-'",
    "' '",
    "\u3000",
    "\u00a0",
    "'1'",
    "字",
    '"\\x7F"',
    '"\\uFEFF"',
    "\U0001f600",
)
INFERENCE = "\n".join(
    ("PostProcess:", "  name: CTCLabelDecode", "  character_dict:", *(f"  - {each}" for each in WRITTEN), "Global: {}")
)


def test_dictionary_in_inference_yml_is_read(tmp_path: Path) -> None:
    folder_of(tmp_path, inference__onnx="", inference__yml=f"{INFERENCE}\n  - B\n")
    name, settings = dictionary.read_settings(tmp_path / "inference.onnx")
    assert name == "inference.yml"
    assert settings == {"decode.characters": "A'\"\\- \u3000\u00a01字\ufffd\ufeff\U0001f600"}


@pytest.mark.parametrize(
    "written",
    [
        INFERENCE.replace("CTCLabelDecode", "TableLabelDecode"),
        INFERENCE.replace("character_dict", "character_dicts"),
        INFERENCE.replace("x7F", "xZZ"),
        "character_dict:",
        "",
    ],
)
def test_other_inference_yml_is_not_read(tmp_path: Path, written: str) -> None:
    folder_of(tmp_path, inference__onnx="", inference__yml=written)
    assert dictionary.read_settings(tmp_path / "inference.onnx") == ("", {})


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"dict.txt": "a\nb\n", "keys.txt": "a\nb\n"},
        {"dict.txt": b"\xff\xfe\n\x00"},
        {"dict.txt": ""},
        {"dict.txt": "a\n" * (1 << 20)},
    ],
)
def test_dictionary_that_is_ambiguous_or_unreadable_counts_as_absent(
    tmp_path: Path, files: dict[str, str | bytes]
) -> None:
    folder_of(tmp_path, model__onnx="", **files)
    assert dictionary.read_settings(tmp_path / "model.onnx") == ("", {})
    assert dictionary.read_settings(tmp_path / "missing" / "model.onnx") == ("", {})


def test_settings_name_the_dictionary_and_given_ones_have_precedence(tmp_path: Path) -> None:
    file = folder_of(tmp_path, model__onnx="", dict__txt="a\nb\n") / "model.onnx"
    line = "settings from dict.txt: decode.characters"
    assert with_exporter_settings(Local(file), {}) == ({"decode.characters": "ab"}, (line,))
    assert with_exporter_settings(Local(file), {"family": "ctc"}) == (
        {"family": "ctc", "decode.characters": "ab"},
        (line,),
    )
    assert with_exporter_settings(Local(file), {"decode.characters": "xy"}) == ({"decode.characters": "xy"}, ())
    assert with_exporter_settings(Local(file), {"family": "yolox"}) == ({"family": "yolox"}, ())

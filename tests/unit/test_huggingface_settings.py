"""Settings that are taken from config.json and preprocessor_config.json next to a model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edged.cli.model_options import with_exporter_settings
from edged.models.huggingface import CONFIG, FAMILIES, PROCESSOR, read_settings
from edged.vision import family

LABELS = {"0": "N/A", "2": "cat", "1": "traffic\n light"}


def settings_of(folder: Path, config: object, processor: object = None, file: str = "model.onnx") -> dict[str, str]:
    (folder / CONFIG).write_text(json.dumps(config))
    if processor is not None:
        (folder / PROCESSOR).write_text(json.dumps(processor))
    return read_settings(folder / file)


def test_families_are_known() -> None:
    assert set(FAMILIES.values()) <= set(family.FAMILIES)


@pytest.mark.parametrize("file", ["model.onnx", "onnx/model.onnx"])
def test_settings_of_a_detector(tmp_path: Path, file: str) -> None:
    (tmp_path / "onnx").mkdir()
    processor = {
        "do_normalize": True,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "size": {"height": 512, "width": 640},
        "image_processor_type": "DetrImageProcessor",
    }
    assert settings_of(tmp_path, {"model_type": "detr", "id2label": LABELS, "d_model": 256}, processor, file) == {
        "family": "detr",
        "names": "N/A,traffic light,cat",
        "preprocess.mean": "0.485,0.456,0.406",
        "preprocess.std": "0.229,0.224,0.225",
        "preprocess.width": "640",
        "preprocess.height": "512",
    }


@pytest.mark.parametrize(
    ("processor", "settings"),
    [
        (None, {}),
        ({}, {}),
        ({"do_normalize": False, "image_mean": [1, 1, 1]}, {"preprocess.mean": "0", "preprocess.std": "1"}),
        ({"do_normalize": True}, {}),
        ({"size": {"shortest_edge": 800, "longest_edge": 1333}}, {}),
        ({"size": 800, "max_size": 1333}, {}),
        ({"size": {"height": "640", "width": None}}, {}),
        ({"image_mean": "grey"}, {}),
        ([], {}),
    ],
)
def test_settings_of_a_processor(tmp_path: Path, processor: object, settings: dict[str, str]) -> None:
    assert settings_of(tmp_path, {"model_type": "d_fine"}, processor) == {"family": "rtdetr-transformers", **settings}


@pytest.mark.parametrize("labels", [{"1": "starts at one"}, {"0": "with, comma"}, {}])
def test_names_that_no_setting_can_hold_are_left_out(tmp_path: Path, labels: dict[str, str]) -> None:
    assert settings_of(tmp_path, {"model_type": "yolos", "id2label": labels}) == {"family": "detr"}


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "vit"}, {"model_type": 5}, [], "detr", {"model_type": "detr" * 300_000}]
)
def test_other_files_give_no_settings(tmp_path: Path, config: object) -> None:
    assert settings_of(tmp_path, config) == {}


def test_files_that_cannot_be_read_give_no_settings(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "model.onnx") == {}
    (tmp_path / CONFIG).write_bytes(b"\xff{")
    assert read_settings(tmp_path / "model.onnx") == {}
    (tmp_path / CONFIG).unlink()
    os.mkfifo(tmp_path / CONFIG)
    assert read_settings(tmp_path / "model.onnx") == {}


def test_given_settings_have_precedence_and_family_excludes_the_files(tmp_path: Path) -> None:
    settings_of(tmp_path, {"model_type": "detr", "id2label": {"0": "cat"}})
    file = tmp_path / "model.onnx"
    assert with_exporter_settings(file, {"names": "dog"}) == (
        {"family": "detr", "names": "dog"},
        ("from config.json and preprocessor_config.json: family",),
    )
    assert with_exporter_settings(file, {"family": "raw"}) == ({"family": "raw"}, ())
    assert with_exporter_settings(tmp_path / "a" / "b" / "model.onnx", {"x": "1"}) == ({"x": "1"}, ())

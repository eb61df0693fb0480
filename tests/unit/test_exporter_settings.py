"""Settings that are taken from files next to a model: those of Hugging Face and of anomalib."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edged.cli.model_options import with_exporter_settings
from edged.models.anomalib import METADATA
from edged.models.anomalib import read_settings as read_anomalib
from edged.models.huggingface import CONFIG, ENCODERS, FAMILY_OF_MODEL_TYPE, PROCESSOR, read_settings
from edged.references.kept import Local
from edged.tensors import Dim, TensorSpec
from edged.vision import family
from edged.vision.family import Recognition, Thresholds, recognise
from edged.vision.placement import Fit
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess

LABELS = {"0": "N/A", "2": "cat", "1": "traffic\n light"}


def settings_of(folder: Path, config: object, processor: object = None, file: str = "model.onnx") -> dict[str, str]:
    (folder / CONFIG).write_text(json.dumps(config))
    if processor is not None:
        (folder / PROCESSOR).write_text(json.dumps(processor))
    return read_settings(folder / file)


def test_families_are_known() -> None:
    assert {*FAMILY_OF_MODEL_TYPE.values(), *ENCODERS.values()} <= set(family.FAMILIES)


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
        ({"size": [640, 512]}, {"preprocess.height": "640", "preprocess.width": "512"}),
        ({"size": [640]}, {}),
        ({"size": [640, True]}, {}),
        pytest.param({"size": [640, 10**400]}, {}, id="a size beyond floats"),
        ({"image_mean": "grey"}, {}),
        ([], {}),
    ],
)
def test_settings_of_a_processor(tmp_path: Path, processor: object, settings: dict[str, str]) -> None:
    assert settings_of(tmp_path, {"model_type": "d_fine"}, processor) == {"family": "rtdetr-transformers", **settings}


def test_settings_of_a_processor_for_pictures_and_text(tmp_path: Path) -> None:
    pictures = {
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.25] * 3,
        "size": {"height": 8, "width": 9},
    }
    combined = {"processor_class": "OwlViTProcessor", "image_processor": pictures}
    (tmp_path / "processor_config.json").write_text(json.dumps(combined))
    expected = {
        "family": "owlvit",
        "preprocess.mean": "0.5,0.5,0.5",
        "preprocess.std": "0.25,0.25,0.25",
        "preprocess.width": "9",
        "preprocess.height": "8",
    }
    assert settings_of(tmp_path, {"model_type": "owlvit"}) == expected
    plain = {"family": "owlvit", "preprocess.mean": "0", "preprocess.std": "1"}
    assert settings_of(tmp_path, {"model_type": "owlvit"}, {"do_normalize": False}) == plain


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("owlvit", {"family": "owlvit"}),
        ("owlv2", {"family": "owlv2"}),
        ("grounding-dino", {"family": "grounding-dino", "outputs.finite": "ignore"}),
        ("mm-grounding-dino", {"family": "grounding-dino", "outputs.finite": "ignore"}),
    ],
)
def test_settings_of_a_zero_shot_detector_have_no_names(tmp_path: Path, kind: str, settings: dict[str, str]) -> None:
    assert settings_of(tmp_path, {"model_type": kind, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}}) == settings


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
    for damaged in (b"\xff{", b'{"nested":' + b"[" * 100_000):
        (tmp_path / CONFIG).write_bytes(damaged)
        assert read_settings(tmp_path / "model.onnx") == {}
    (tmp_path / CONFIG).unlink()
    os.mkfifo(tmp_path / CONFIG)
    assert read_settings(tmp_path / "model.onnx") == {}


def test_given_settings_have_precedence_and_family_excludes_the_files(tmp_path: Path) -> None:
    settings_of(tmp_path, {"model_type": "detr", "id2label": {"0": "cat"}})
    file = tmp_path / "model.onnx"
    assert with_exporter_settings(Local(file), {"names": "dog"}) == (
        {"family": "detr", "names": "dog"},
        ("settings from config.json and preprocessor_config.json: family",),
    )
    assert with_exporter_settings(Local(file), {"family": "raw"}) == ({"family": "raw"}, ())
    assert with_exporter_settings(Local(tmp_path / "a" / "b" / "model.onnx"), {"x": "1"}) == ({"x": "1"}, ())


# -- classifiers and encoders ---------------------------------------------------------------------------------------

HALF = (0.5, 0.5, 0.5)
IMAGENET = {"do_normalize": True, "image_mean": list(IMAGENET_MEAN), "image_std": list(IMAGENET_STD)}
HALVES = {"do_normalize": True, "image_mean": list(HALF), "image_std": list(HALF)}
# Processors as on the Hub, by the kind of model.
VIT = {"size": {"height": 224, "width": 224}, "do_resize": True, "resample": 2, "do_rescale": True, **HALVES}
OLD_VIT = {"size": 224, "do_resize": True, **HALVES}
RESNET = {"size": {"shortest_edge": 224}, "crop_pct": 0.875, "do_resize": True, **IMAGENET}
CONVNEXT = {"size": 384, "crop_pct": 1.0, "do_resize": True, **IMAGENET}
MOBILENET = {
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "do_resize": True,
    **HALVES,
}
MOBILEVIT = {
    "size": {"shortest_edge": 288},
    "crop_size": {"height": 256, "width": 256},
    "do_center_crop": True,
    "do_flip_channel_order": True,
    "do_resize": True,
    "do_rescale": True,
}
OLD_MOBILEVIT = {"size": 288, "crop_size": 256, "do_center_crop": True, "do_flip_channels": True, "do_resize": True}
EFFICIENTNET = {
    "size": {"height": 224, "width": 224},
    "crop_size": {"height": 289, "width": 289},
    "do_center_crop": False,
    "do_resize": True,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.47853944, 0.4732864, 0.47434163],
    "include_top": True,
}
ZEROS, ONES = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
BGR = Preprocess(256, 256, fit=Fit.CENTER_CROP, antialias=True, zoom=1.125, color="bgr", mean=ZEROS, std=ONES)


def add(folder: Path, config: object, processor: object, outputs: dict[str, tuple[Dim, ...]]) -> Recognition:
    """Recognise a model with the tensors of an Optimum export, whose files are next to it."""
    inputs = (TensorSpec("pixel_values", "FP32", ("batch_size", "num_channels", "height", "width")),)
    settings = settings_of(folder, config, processor)
    specs = tuple(TensorSpec(name, "FP32", shape) for name, shape in outputs.items())
    return recognise(inputs, specs, {}, settings, (), dict.fromkeys(outputs, "Gemm"))


def classifier(kind: str, **more: object) -> dict[str, object]:
    labels = {"0": "tench, Tinca tinca", "1": "goldfish", "2": "great white  shark"}
    return {"model_type": kind, "architectures": [f"{kind.title()}ForImageClassification"], "id2label": labels, **more}


@pytest.mark.parametrize(
    ("kind", "processor", "expected"),
    [
        ("vit", VIT, Preprocess(224, 224, fit=Fit.STRETCH, antialias=True, mean=HALF, std=HALF)),
        ("vit", OLD_VIT, Preprocess(224, 224, fit=Fit.STRETCH, antialias=True, mean=HALF, std=HALF)),
        (
            "resnet",
            RESNET,
            Preprocess(
                224, 224, fit=Fit.CENTER_CROP, antialias=True, zoom=1.14286, mean=IMAGENET_MEAN, std=IMAGENET_STD
            ),
        ),
        (
            "convnext",
            CONVNEXT,
            Preprocess(384, 384, fit=Fit.STRETCH, antialias=True, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        ),
        (
            "mobilenet_v2",
            MOBILENET,
            Preprocess(224, 224, fit=Fit.CENTER_CROP, antialias=True, zoom=1.14286, mean=HALF, std=HALF),
        ),
        ("mobilevit", MOBILEVIT, BGR),
        ("mobilevit", OLD_MOBILEVIT, BGR),
        ("mobilevitv2", MOBILEVIT, BGR),
        (
            "efficientnet",
            EFFICIENTNET,
            Preprocess(224, 224, fit=Fit.STRETCH, antialias=True, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        ),
        (
            "efficientnet",
            {**EFFICIENTNET, **HALVES, "include_top": False},
            Preprocess(224, 224, fit=Fit.STRETCH, antialias=True, mean=HALF, std=HALF),
        ),
    ],
    ids=[
        *("vit", "old vit", "resnet", "convnext", "mobilenet_v2", "mobilevit", "old mobilevit", "mobilevitv2"),
        *("efficientnet", "efficientnet without a top"),
    ],
)
def test_classifier_is_recognised_with_its_names_and_preprocessing(
    tmp_path: Path, kind: str, processor: object, expected: Preprocess
) -> None:
    found = add(tmp_path, classifier(kind), processor, {"logits": ("batch_size", 3)})
    assert (found.family, found.names) == ("classification", ("tench", "goldfish", "great white shark"))
    assert found.preprocess == expected
    assert (found.thresholds.score, found.thresholds.max_detections) == (0.0, 5)
    assert found.reading.form == "softmax"


def test_classifier_of_several_labels_has_a_sigmoid_and_a_threshold(tmp_path: Path) -> None:
    config = classifier("vit", problem_type="multi_label_classification")
    found = add(tmp_path, config, VIT, {"logits": ("batch_size", 3)})
    assert found.reading.form == "sigmoid"
    assert found.thresholds == Thresholds(score=0.5, max_detections=300)


@pytest.mark.parametrize(
    ("kind", "outputs", "expected"),
    [
        ("clip_vision_model", {"last_hidden_state": ("n", "t", 768), "pooler_output": ("n", 768)}, "clip"),
        ("clip", {"image_embeds": ("n", 512)}, "clip"),
        ("siglip_vision_model", {"last_hidden_state": ("n", "t", 768), "pooler_output": ("n", 768)}, "siglip"),
        ("dinov2", {"last_hidden_state": ("n", "t", 384)}, "dinov2"),
    ],
)
def test_encoder_is_recognised_with_its_preprocessing(
    tmp_path: Path, kind: str, outputs: dict[str, tuple[Dim, ...]], expected: str
) -> None:
    crop = {"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": True, **IMAGENET}
    found = add(tmp_path, {"model_type": kind, "id2label": {"0": "LABEL_0"}}, crop, outputs)
    assert (found.family, found.names) == (expected, ())
    assert found.preprocess is not None
    assert (found.preprocess.width, found.preprocess.fit, found.preprocess.mean) == (
        224,
        Fit.CENTER_CROP,
        IMAGENET_MEAN,
    )


def test_classifier_of_a_model_type_of_encoders_is_a_classifier(tmp_path: Path) -> None:
    found = add(tmp_path, classifier("dinov2"), MOBILENET, {"logits": ("n", 3)})
    assert found.family == "classification"


@pytest.mark.parametrize(
    "processor",
    [
        {"do_resize": False, "size": {"height": 224, "width": 224}},
        {"size": {"shortest_edge": 256}},
        {"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
        {"size": 224, "crop_pct": "much"},
        {"size": True},
        pytest.param(
            {"size": {"shortest_edge": 10**400}, "do_center_crop": True, "crop_size": 224}, id="a size beyond floats"
        ),
        {},
    ],
    ids=str,
)
def test_classifier_whose_size_no_setting_can_describe_needs_settings(tmp_path: Path, processor: object) -> None:
    found = add(tmp_path, classifier("vit"), processor, {"logits": ("n", 3)})
    assert (found.family, found.preprocess) == (None, None)
    assert "preprocess.width" in found.reason


# -- anomalib -------------------------------------------------------------------------------------------------------

THRESHOLDS = {"image_threshold": 31.25, "pixel_threshold": 30.5, "pred_scores.min": 3.0}
NORMALIZE = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "max_pixel_value": 255.0}
TRANSFORM = {"__version__": "1.3.1", "transform": {"p": 1.0, "transforms": [{"height": 256, "width": 256}, NORMALIZE]}}


def anomalib_settings(folder: Path, metadata: object) -> dict[str, str]:
    (folder / METADATA).write_text(json.dumps(metadata))
    return read_anomalib(folder / "model.onnx")


def test_threshold_of_anomalib_1_is_taken_from_its_metadata(tmp_path: Path) -> None:
    expected = {"family": "anomalib-v1", "thresholds.score": "31.25"}
    assert anomalib_settings(tmp_path, {"task": "segmentation", **THRESHOLDS}) == expected
    assert with_exporter_settings(Local(tmp_path / "model.onnx"), {}) == (
        expected,
        ("settings from metadata.json: family, thresholds.score",),
    )


def test_normalisation_of_anomalib_0_is_taken_from_its_metadata(tmp_path: Path) -> None:
    found = anomalib_settings(tmp_path, {**THRESHOLDS, "transform": TRANSFORM})
    assert (found["preprocess.mean"], found["preprocess.std"]) == ("0.485,0.456,0.406", "0.229,0.224,0.225")


@pytest.mark.parametrize(
    "metadata",
    [{}, [], "x", {"image_threshold": 1.0}, {**THRESHOLDS, "image_threshold": "1"}, {**THRESHOLDS, "transform": 5}],
    ids=str,
)
def test_metadata_of_another_program_gives_no_settings(tmp_path: Path, metadata: object) -> None:
    assert anomalib_settings(tmp_path, metadata) == {}
    (tmp_path / METADATA).write_bytes(b"\xff" * 9)
    assert read_anomalib(tmp_path / "model.onnx") == {}
    assert read_anomalib(tmp_path / "elsewhere" / "model.onnx") == {}


# -- segmentation and depth -----------------------------------------------------------------------------------------


def test_settings_of_segmentation(tmp_path: Path) -> None:
    config = {
        "model_type": "segformer",
        "architectures": ["SegformerForSemanticSegmentation"],
        "id2label": {"0": "wall", "1": "door, double door"},
    }
    processor = {"do_normalize": True, "image_mean": [0.4, 0.4, 0.4], "image_std": [0.2, 0.2, 0.2], "size": 512}
    assert settings_of(tmp_path, config, processor, "onnx/model.onnx") == {
        "family": "segmentation",
        "names": "wall,door",
        "preprocess.mean": "0.4,0.4,0.4",
        "preprocess.std": "0.2,0.2,0.2",
        "preprocess.width": "512",
        "preprocess.height": "512",
    }


def test_settings_of_segmentation_whose_processor_crops_and_does_not_normalise(tmp_path: Path) -> None:
    config = {"model_type": "mobilevit", "architectures": ["MobileViTForSemanticSegmentation"]}
    size = {"size": {"shortest_edge": 544}, "do_center_crop": True, "crop_size": {"height": 512, "width": 512}}
    assert settings_of(tmp_path, config, {**size, "do_flip_channel_order": True}) == {
        "family": "segmentation",
        "preprocess.color": "bgr",
        "preprocess.mean": "0",
        "preprocess.std": "1",
        "preprocess.width": "512",
        "preprocess.height": "512",
    }


@pytest.mark.parametrize(
    ("model_type", "more", "settings"),
    [
        ("depth_anything", {}, {"family": "depth"}),
        ("depth_anything", {"depth_estimation_type": "relative"}, {"family": "depth"}),
        ("depth_anything", {"depth_estimation_type": "metric"}, {"family": "depth-metric"}),
        ("depth_anything", {"backbone_config": {"model_type": "dinov2"}}, {"family": "depth"}),
        ("dpt", {"backbone_config": {"model_type": "beit"}}, {"family": "depth"}),
        ("dpt", {"backbone_config": {"model_type": "dinov2"}}, {}),
        ("zoedepth", {}, {"family": "depth-metric"}),
        ("glpn", {}, {"family": "depth-metric", "preprocess.mean": "0", "preprocess.std": "1"}),
        ("prompt_depth_anything", {}, {}),
    ],
)
def test_settings_of_depth_have_a_unit_only_if_a_file_says_so(
    tmp_path: Path, model_type: str, more: dict[str, object], settings: dict[str, str]
) -> None:
    config = {"model_type": model_type, "architectures": ["XForDepthEstimation"], "id2label": {"0": "LABEL_0"}, **more}
    assert settings_of(tmp_path, config) == settings


@pytest.mark.parametrize("architecture", ["SegformerForImageClassification", "MaskFormerForInstanceSegmentation", 5])
def test_other_architectures_give_no_settings(tmp_path: Path, architecture: object) -> None:
    assert settings_of(tmp_path, {"model_type": "segformer", "architectures": [architecture]}) == {}

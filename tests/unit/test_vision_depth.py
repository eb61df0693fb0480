"""Depth from one picture: recognition, and depth maps of every layout of an output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edged
from edged.errors import ConfigError, EngineUnusable
from edged.tensors import Dim, TensorSpec
from edged.vision.content import Depth
from edged.vision.family import ContentFamily, Recognition, Thresholds, open_family, recognise
from edged.vision.placement import Fit, Region, Roi, crop_window, place, place_window
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from tests.vision_exports import Export
from tests.vision_graphs import graph

WIDTH, HEIGHT = 112, 84
WHOLE = place(WIDTH, HEIGHT, WIDTH, HEIGHT, Fit.STRETCH)
RAMP = np.linspace(0.5, 20, WIDTH * HEIGHT, dtype=np.float32).reshape(HEIGHT, WIDTH)
UNIDEPTH = ("depth", "depth_ssi", "confidence")


def spec(name: str, *shape: Dim) -> TensorSpec:
    return TensorSpec(name, "FP32", shape)


def see(*outputs: TensorSpec, settings: dict[str, str] | None = None) -> Recognition:
    return recognise((spec("image", "n", 3, HEIGHT, WIDTH),), outputs, {}, settings or {})


def decode(
    recognition: Recognition, values: np.ndarray, name: str = "depth", index: int = 0, placement: object = WHOLE
) -> Depth:
    family = open_family(recognition)
    assert isinstance(family, ContentFamily)
    found = family.content({name: values}, index, placement, Thresholds())  # type: ignore[arg-type]
    assert isinstance(found, Depth)
    return found


@pytest.mark.parametrize("family", ["depth", "depth-metric"])
@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (1, HEIGHT, WIDTH), (HEIGHT, WIDTH, 1), ("h", "w"), (1, "h", "w")])
def test_recognise_depth_only_by_the_setting(family: str, shape: tuple[Dim, ...]) -> None:
    for name in ("predicted_depth", "depth"):
        found = see(spec(name, "n", *shape))
        assert found.family is None
        assert "set family=depth, family=depth-metric" in found.reason
        found = see(spec(name, "n", *shape), settings={"family": family})
        assert (found.family, found.output) == (family, name)
        assert found.preprocess is not None
        pixels = found.preprocess.fit, found.preprocess.mean, found.preprocess.std
        assert pixels == (Fit.STRETCH, IMAGENET_MEAN, IMAGENET_STD)


def test_recognise_unidepth_by_its_outputs() -> None:
    maps = [spec(name, "n", 1, HEIGHT, WIDTH) for name in UNIDEPTH]
    found = see(spec("out_K", "n", 3, 3), *maps)
    assert (found.family, found.output) == ("depth-metric", "depth")
    found = see(*maps[::-1], settings={"family": "depth"})
    assert (found.family, found.output) == ("depth", "depth")


@pytest.mark.parametrize(
    "output",
    [spec("depth", "n", 3, HEIGHT, WIDTH), spec("depth", "n", 9), TensorSpec("depth", "INT64", ("n", 84, 112))],
)
def test_setting_of_tensors_without_depth_is_an_error(output: TensorSpec) -> None:
    with pytest.raises(ConfigError, match="family=depth needs"):
        see(output, settings={"family": "depth"})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, HEIGHT, WIDTH), (2, 1, HEIGHT, WIDTH), (2, HEIGHT, WIDTH, 1)])
def test_depth_keeps_the_numbers_of_the_output(dtype: type, shape: tuple[int, ...]) -> None:
    found = see(spec("depth", "n", *shape[1:]), settings={"family": "depth-metric"})
    depth = decode(found, np.stack((RAMP * 0, RAMP)).reshape(shape).astype(dtype), index=1)
    assert (depth.is_inverse, depth.unit, depth.map.box) == (False, "m", None)
    np.testing.assert_allclose(depth.map.values(), RAMP, atol=0.01 if dtype == np.float16 else 2e-4)


def test_relative_depth_is_inverse_and_has_no_unit() -> None:
    depth = decode(see(spec("depth", "n", HEIGHT, WIDTH), settings={"family": "depth"}), RAMP[None])
    assert (depth.is_inverse, depth.unit) == (True, "")


def test_depth_without_padding_and_of_a_turned_region() -> None:
    found = see(spec("depth", "n", HEIGHT, WIDTH), settings={"family": "depth"})
    letterbox = decode(found, RAMP[None], placement=place(448, 168, WIDTH, HEIGHT, Fit.LETTERBOX))
    np.testing.assert_allclose(letterbox.map.values(), RAMP[21:63], atol=2e-4)
    window = crop_window(Roi(Region(20, 10, 84, 112), 270), 320, 200)
    assert window is not None
    turned = decode(found, RAMP[None], placement=place_window(window, 320, 200, WIDTH, HEIGHT, Fit.STRETCH))
    assert turned.map.box == (20, 10, 104, 122)
    np.testing.assert_allclose(np.rot90(turned.map.values()), RAMP, atol=2e-4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_depth_that_is_not_finite_is_the_lowest(bad: float) -> None:
    found = see(spec("depth", "n", HEIGHT, WIDTH), settings={"family": "depth"})
    spoiled = np.where(RAMP > 10, bad, RAMP)[None]
    depth = decode(found, spoiled)
    assert depth.map.high == pytest.approx(10, abs=0.01)
    assert (depth.map.values()[RAMP > 10] == 0.5).all()
    assert decode(found, np.full_like(spoiled, bad)).map.high == 0


@pytest.mark.parametrize("shape", [(1, 2, HEIGHT, WIDTH), (1, WIDTH), (1, 0, WIDTH)])
def test_tensors_that_differ_from_the_declaration_are_refused(shape: tuple[int, ...]) -> None:
    found = see(spec("depth", "n", HEIGHT, WIDTH), settings={"family": "depth"})
    with pytest.raises(EngineUnusable, match="output depth"):
        decode(found, np.zeros(shape, np.float32))


def test_load_in_process_returns_the_depth_of_the_picture(tmp_path: Path) -> None:
    export = Export(
        "depth",
        (spec("predicted_depth", "n", HEIGHT, WIDTH),),
        lambda _: {},
        inputs=(spec("x", "n", 3, HEIGHT, WIDTH),),
    )
    path = graph(export, {"predicted_depth": RAMP[None]}, tmp_path / "model.onnx")
    picture = np.full((120, 160, 3), 90, np.uint8)
    with edged.load(path, settings={"family": "depth-metric"}, cache=tmp_path / "cache", build=False) as loaded:
        found = loaded.infer(picture).content
    assert isinstance(found, Depth)
    assert (found.unit, found.map.width, found.map.height) == ("m", WIDTH, HEIGHT)
    resized = found.map.resized(160, 120)
    assert resized.shape == (120, 160)
    assert resized[60, 80] == pytest.approx(float(RAMP[42, 56]), abs=0.3)

"""Zero-shot detectors: the setting `prompts`, recognition, inputs and decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest

from edged.backends.contract import Signature
from edged.backends.profile import Profile
from edged.errors import ConfigError, EngineUnusable
from edged.tensors import Array, Dim, TensorSpec
from edged.vision import prompts
from edged.vision.family import Family, Recognition, Thresholds, open_family, recognise
from edged.vision.placement import Fit, place
from edged.vision.prompts import Prompt

WIDTH, HEIGHT = 96, 64
SIZE = {"preprocess.width": str(WIDTH), "preprocess.height": str(HEIGHT)}
CAT, DOG = "a cat [49406 320 2368 49407]", "a dog [49406 320 1929 49407]"
CAT_BERT, DOG_BERT, BUS_BERT = "a cat [101 1037 4937 102]", "dog [101 3899 102]", "a red bus [101 1037 2417 3902 102]"
PICTURE = TensorSpec("pixel_values", "FP32", ("batch_size", "num_channels", "height", "width"))
ONLY_QUERIES: Mapping[str, tuple[Dim, ...]] = {"logits": ("n", 900, 256), "pred_boxes": ("n", 900, 4)}
OWL: Mapping[str, tuple[Dim, ...]] = {
    "logits": ("image_batch_size", 9, "num_queries"),
    "pred_boxes": ("image_batch_size", "num_boxes", 4),
    "text_embeds": ("text_batch_size", "max_text_queries", 8),
    "image_embeds": ("image_batch_size", 3, 3, 8),
}


def texts(*names: str, shape: tuple[Dim, Dim] = ("text_batch_size", "sequence_length")) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, "INT64", shape) for name in names)


OWL_INPUTS = (PICTURE, *texts("input_ids", "attention_mask"))
DINO_INPUTS = (
    *(PICTURE, *texts("input_ids", "token_type_ids", "attention_mask", shape=("batch_size", "sequence_length"))),
    TensorSpec("pixel_mask", "INT64", ("batch_size", "height", "width")),
)


def see(
    inputs: tuple[TensorSpec, ...], outputs: Mapping[str, tuple[Dim, ...]], given: Mapping[str, str]
) -> Recognition:
    specs = tuple(TensorSpec(name, "FP32", shape) for name, shape in outputs.items())
    return recognise(inputs, specs, {}, {**SIZE, **given}, frozenset({"Gather"}))


def owl(
    family: str = "owlvit", inputs: tuple[TensorSpec, ...] = OWL_INPUTS, given: Mapping[str, str] = {}
) -> Recognition:
    return see(inputs, OWL, {"family": family, "prompts": f"{CAT}, {DOG}", **given})


def dino(listed: str = f"{CAT_BERT}, {DOG_BERT}", inputs: tuple[TensorSpec, ...] = DINO_INPUTS) -> Recognition:
    return see(inputs, ONLY_QUERIES, {"prompts": listed})


def opened(found: Recognition) -> Family:
    family = open_family(found)
    assert isinstance(family, Family)
    return family


# -- the setting ----------------------------------------------------------------------------------------------------


def test_read_prompts_with_and_without_ids() -> None:
    given = {"prompts": "a  photo of\ta cat ,a dog [1 22 333],bus[7]"}
    found = prompts.read(given)
    assert found == (Prompt("a photo of a cat"), Prompt("a dog", (1, 22, 333)), Prompt("bus", (7,)))
    assert prompts.write(found) == "a photo of a cat, a dog [1 22 333], bus [7]"
    assert prompts.read({"prompts": prompts.write(found)}) == found
    assert prompts.read({}) == ()


@pytest.mark.parametrize(
    "text",
    [
        *("a,,b", "", ",", "[1 2]", "a [1", "a 1]", "a [1] b", "a [x]", "a [-1]", "a [1,2]", "a [٣]", "a [1] [2]"),
        *("a [99999999999]", "a [4294967296]", "cat, dog, cat", "a\x00b", "a\u200bb", "x" * 201),
        *(f"a [{'9 ' * 257}]", ", ".join(f"thing {number}" for number in range(257)), f"a [{'9' * 5000}]"),
    ],
)
def test_read_malformed_prompts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="prompts"):
        prompts.read({"prompts": text})


# -- recognition ----------------------------------------------------------------------------------------------------


def test_recognise_owl_by_names_asks_for_the_family() -> None:
    found = see(OWL_INPUTS, OWL, {"prompts": CAT})
    assert found.family is None
    assert "family=owlvit" in found.reason
    assert "family=owlv2" in found.reason


def test_recognise_grounding_dino_by_names() -> None:
    found = dino()
    assert (found.family, found.is_set, found.names) == ("grounding-dino", False, ("a cat", "dog"))
    assert found.thresholds == Thresholds(0.25)
    assert found.reading.is_list


@pytest.mark.parametrize("family", ["owlvit", "owlv2"])
def test_recognise_prompts_are_the_names_unless_names_are_given(family: str) -> None:
    found = owl(family)
    assert (found.family, found.names, found.reading.classes) == (family, ("a cat", "a dog"), 2)
    assert found.thresholds == Thresholds(0.1)
    assert owl(family, given={"names": "cat,dog"}).names == ("cat", "dog")
    with pytest.raises(ConfigError, match="'names' lists 1 classes, but the model has 2"):
        owl(family, given={"names": "cat"})


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (None, "set prompts"),
        ("a cat", "no token ids"),
        (f"{CAT}, a dog", "'a dog' has no token ids"),
        (f"a cat [{'9 ' * 17}]", "has 17 tokens; the model takes 16"),
        (f"{CAT}, {DOG_BERT}", "'dog' needs the token ids of CLIP"),
    ],
)
def test_recognise_owl_without_usable_prompts_is_refused(listed: str | None, words: str) -> None:
    given = {"family": "owlvit", **({} if listed is None else {"prompts": listed})}
    with pytest.raises(ConfigError, match=words):
        see(OWL_INPUTS, OWL, given)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (CAT, "101 at the start"),
        ("cat [101 102]", "101 at the start"),
        ("a cat. a dog [101 1037 4937 1012 1037 3899 102]", "separate prompts"),
        ("cat? [101 4937 1029 102]", "separate prompts"),
        (", ".join(f"thing {n} [101 {2000 + n} 102]" for n in range(128)), "258 tokens together"),
        ("a cat", "no token ids"),
    ],
)
def test_recognise_grounding_dino_without_usable_prompts_has_no_family(listed: str, words: str) -> None:
    found = dino(listed)
    assert found.family is None
    assert words in found.reason
    with pytest.raises(ConfigError, match=words):
        see(DINO_INPUTS, ONLY_QUERIES, {"prompts": listed, "family": "grounding-dino"})


@pytest.mark.parametrize(
    "inputs",
    [
        (PICTURE, *texts("input_ids")),
        (PICTURE, *(TensorSpec(name, "INT32", ("n", 16)) for name in ("input_ids", "attention_mask"))),
        (PICTURE, *(TensorSpec(name, "INT64", ("n",)) for name in ("input_ids", "attention_mask"))),
        (TensorSpec("pixel_values", "FP32", (4, 3, HEIGHT, WIDTH)), *texts("input_ids", "attention_mask")),
    ],
)
def test_recognise_other_inputs_are_refused(inputs: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(ConfigError, match="family=owlvit needs"):
        owl(inputs=inputs)


def test_recognise_fixed_numbers_of_texts_and_tokens_must_fit() -> None:
    fixed = (PICTURE, *texts("input_ids", "attention_mask", shape=(3, 16)))
    with pytest.raises(ConfigError, match="lists 2 texts; the model takes exactly 3"):
        owl(inputs=fixed)
    short = (PICTURE, *texts("input_ids", "attention_mask", shape=("n", 3)))
    with pytest.raises(ConfigError, match="has 4 tokens; the model takes 3"):
        owl(inputs=short)
    with pytest.raises(ConfigError, match="7 tokens together; the model takes at most 6"):
        of_length(6)
    with pytest.raises(ConfigError, match="family=grounding-dino needs"):
        see((PICTURE, *texts("input_ids", "attention_mask", shape=(2, 8))), ONLY_QUERIES, {"family": "grounding-dino"})


def of_length(length: int) -> Recognition:
    """Recognise a Grounding DINO with a fixed number of tokens, and without the inputs that an exporter may remove."""
    inputs = (PICTURE, *texts("input_ids", "attention_mask", shape=(1, length)))
    return see(inputs, ONLY_QUERIES, {"family": "grounding-dino", "prompts": f"{CAT_BERT}, {DOG_BERT}"})


def test_recognise_grounding_dino_with_a_fixed_length_is_padded() -> None:
    family = opened(of_length(9))
    extra = family.extra_inputs([SAME])
    assert extra["input_ids"].tolist() == [[101, 1037, 4937, 1012, 3899, 1012, 102, 0, 0]]
    assert extra["attention_mask"].tolist() == [[1] * 7 + [0] * 2]
    assert len(extra) == 2
    logits = np.full((1, 2, 256), -9, np.float32)
    logits[0, :, 7:] = 9
    logits[0, 1, 4] = 2
    found = family.decode({"logits": logits, "pred_boxes": np.full((1, 2, 4), 0.5, np.float32)}, 0, SAME, Thresholds())
    assert found.class_ids.tolist() == [1]


# -- inputs ---------------------------------------------------------------------------------------------------------

SAME = place(WIDTH, HEIGHT, WIDTH, HEIGHT, Fit.STRETCH)


def test_extra_inputs_of_owl_are_padded_texts_for_each_picture() -> None:
    extra = opened(owl()).extra_inputs([SAME])
    assert set(extra) == {"input_ids", "attention_mask"}
    assert extra["input_ids"].tolist() == [
        [49406, 320, 2368, 49407, *[0] * 12],
        [49406, 320, 1929, 49407, *[0] * 12],
    ]
    assert extra["attention_mask"].tolist() == [[1] * 4 + [0] * 12] * 2
    assert {array.dtype for array in extra.values()} == {np.dtype(np.int64)}
    assert opened(owl()).extra_inputs([SAME] * 3)["input_ids"].shape == (6, 16)


def test_extra_inputs_of_grounding_dino_are_one_text() -> None:
    extra = opened(dino()).extra_inputs([SAME])
    assert extra["input_ids"].tolist() == [[101, 1037, 4937, 1012, 3899, 1012, 102]]
    assert (extra["attention_mask"].tolist(), extra["token_type_ids"].tolist()) == ([[1] * 7], [[0] * 7])
    assert (extra["pixel_mask"].shape, extra["pixel_mask"].min()) == ((1, HEIGHT, WIDTH), 1)
    small = (*DINO_INPUTS[:-1], TensorSpec("pixel_mask", "INT64", ("batch_size", 64, 64)))
    assert opened(dino(inputs=small)).extra_inputs([SAME])["pixel_mask"].shape == (1, 64, 64)


@pytest.mark.parametrize(
    ("found", "inputs", "texts_shape"),
    [(owl(), OWL_INPUTS, (2, 16)), (dino(), DINO_INPUTS, (1, 7))],
    ids=["owl", "dino"],
)
def test_profile_has_exactly_the_shapes_of_one_picture_and_the_prompts(
    found: Recognition, inputs: tuple[TensorSpec, ...], texts_shape: tuple[int, int]
) -> None:
    expected: dict[str, tuple[int, ...]] = {spec.name: texts_shape for spec in inputs}
    expected["pixel_values"] = (1, 3, HEIGHT, WIDTH)
    if "pixel_mask" in expected:
        expected["pixel_mask"] = (1, HEIGHT, WIDTH)
    profile = Profile.of(Signature(inputs, ()), {}, (WIDTH, HEIGHT), found.reading.exact)
    assert {each.name: each.minimum for each in profile.ranges} == expected
    assert all(each.minimum == each.optimum == each.maximum for each in profile.ranges)


# -- decoding, against a second implementation that works box by box ------------------------------------------------


class Seen(NamedTuple):
    """A detection: xyxy in pixels of the picture."""

    score: float
    class_id: int
    box: tuple[float, ...]


def expected_of(
    logits: Array, boxes: Array, columns: list[list[int]], scale: tuple[float, float], size: tuple[int, int], low: float
) -> list[Seen]:
    """Return what transformers' processors return for one picture, clipped to it, best first: for each row the class
    with the highest sigmoid; boxes times `scale` (width, height)."""
    found = []
    for row, (cx, cy, w, h) in zip(logits, boxes, strict=True):
        scores = [max(1 / (1 + np.exp(-float(row[column]))) for column in own) for own in columns]
        best = max(scores)
        if best > low:
            corners = (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)
            clipped = tuple(float(np.clip(v * scale[n % 2], 0, size[n % 2])) for n, v in enumerate(corners))
            if clipped[2] > clipped[0] and clipped[3] > clipped[1]:
                found.append(Seen(best, scores.index(best), clipped))
    return sorted(found, reverse=True)


def check(found: Recognition, outputs: dict[str, Array], expected: list[Seen], size: tuple[int, int]) -> None:
    assert found.preprocess is not None
    placement = place(*size, found.preprocess.width, found.preprocess.height, found.preprocess.fit)
    decoded = opened(found).decode(outputs, 0, placement, found.thresholds)
    assert len(expected) > 5
    assert decoded.class_ids.tolist() == [seen.class_id for seen in expected]
    np.testing.assert_allclose(decoded.scores, [seen.score for seen in expected], atol=1e-6)
    np.testing.assert_allclose(decoded.boxes, [seen.box for seen in expected], atol=2e-3)


@pytest.mark.parametrize("seed", range(5))
def test_decode_owlvit_as_transformers(seed: int) -> None:
    random, size = np.random.default_rng(seed), (640, 360)
    logits = random.normal(-3, 2, (1, 60, 2)).astype(np.float32)
    boxes = random.random((1, 60, 4), np.float32)
    expected = expected_of(logits[0], boxes[0], [[0], [1]], size, size, 0.1)
    check(owl(), {"logits": logits, "pred_boxes": boxes}, expected, size)


@pytest.mark.parametrize("size", [(640, 360), (360, 640)])
def test_decode_owlv2_boxes_are_relative_to_the_padded_square(size: tuple[int, int]) -> None:
    random, side = np.random.default_rng(size[0]), max(size)
    square = {"preprocess.width": "64", "preprocess.height": "64"}
    found = owl("owlv2", given=square)
    logits = random.normal(-3, 2, (1, 60, 2)).astype(np.float32)
    boxes = random.random((1, 60, 4), np.float32)
    expected = expected_of(logits[0], boxes[0], [[0], [1]], (side, side), size, 0.1)
    check(found, {"logits": logits, "pred_boxes": boxes}, expected, size)


@pytest.mark.parametrize("seed", range(5))
def test_decode_grounding_dino_by_the_best_token_of_each_prompt(seed: int) -> None:
    random, size = np.random.default_rng(seed), (500, 333)
    found = dino(f"{CAT_BERT}, {DOG_BERT}, {BUS_BERT}")
    logits = random.normal(-3, 2, (1, 60, 256)).astype(np.float32)
    logits[:, :, 11:] = -np.inf
    boxes = random.random((1, 60, 4), np.float32)
    expected = expected_of(logits[0], boxes[0], [[1, 2], [4], [6, 7, 8]], size, size, 0.25)
    check(found, {"logits": logits, "pred_boxes": boxes}, expected, size)


def test_decode_tensors_of_other_shapes_are_refused() -> None:
    boxes = np.zeros((1, 9, 4), np.float32)
    with pytest.raises(EngineUnusable, match="output logits"):
        opened(owl()).decode({"logits": np.zeros((1, 9, 3), np.float32), "pred_boxes": boxes}, 0, SAME, Thresholds())
    with pytest.raises(EngineUnusable, match="output pred_boxes"):
        opened(owl()).decode({"logits": np.zeros((1, 8, 2), np.float32), "pred_boxes": boxes}, 0, SAME, Thresholds())
    with pytest.raises(EngineUnusable, match="output logits"):
        opened(dino()).decode({"logits": np.zeros((1, 9, 6), np.float32), "pred_boxes": boxes}, 0, SAME, Thresholds())

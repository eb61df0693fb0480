"""Embeddings: recognition, preprocessing, and the vector of each kind of output."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edged.errors import ConfigError, EngineUnusable
from edged.tensors import Dim, TensorSpec
from edged.vision.content import MOST_VALUES, Embedding
from edged.vision.families.contract import ContentFamily
from edged.vision.family import Recognition, open_family, recognise
from edged.vision.placement import Fit, place
from edged.vision.prepare import Preparer
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD

FACE, PERSON, PICTURE = (112, 112), (256, 128), (224, 224)
FAMILIES = ("embedding", "arcface", "sface", "osnet", "clip", "siglip", "dinov2")


def see(
    outputs: dict[str, tuple[Dim, ...]],
    size: tuple[Dim, Dim] = PICTURE,
    settings: dict[str, str] | None = None,
    datatype: str = "FP32",
) -> Recognition:
    inputs = (TensorSpec("pixel_values", "FP32", ("n", 3, *size)),)
    specs = tuple(TensorSpec(name, datatype, shape) for name, shape in outputs.items())
    return recognise(inputs, specs, {}, settings or {})


def embed(found: Recognition, outputs: dict[str, np.ndarray], index: int = 0) -> Embedding:
    family = open_family(found)
    assert isinstance(family, ContentFamily)
    assert found.preprocess is not None
    side = found.preprocess.width, found.preprocess.height
    content = family.content(outputs, index, place(640, 480, *side, found.preprocess.fit), found.thresholds)
    assert isinstance(content, Embedding)
    return content


@pytest.mark.parametrize(
    ("outputs", "size", "family"),
    [
        ({"embedding": ("n", 512)}, FACE, "arcface"),
        ({"embedding": ("n", 512)}, PERSON, "osnet"),
        ({"features": ("n", 1280, 1, 1)}, PICTURE, "embedding"),
        ({"face_embeddings": ("n", "c")}, PICTURE, "embedding"),
        ({"image_embeds": ("n", 512)}, PICTURE, "clip"),
        ({"image_embeds": ("n", 512), "last_hidden_state": ("n", 50, 768)}, PICTURE, "clip"),
    ],
)
def test_recognise_embedding_by_name_of_output(
    outputs: dict[str, tuple[Dim, ...]], size: tuple[int, int], family: str
) -> None:
    found = see(outputs, size)
    assert found.family == family
    assert found.output == next(iter(outputs))


@pytest.mark.parametrize(
    ("operators", "family"),
    [(None, "arcface"), (("Conv", "Mul"), "arcface"), (("Conv", "Sub", "Mul"), "sface")],
)
def test_recognise_face_embedding_that_normalises_in_the_graph(operators: tuple[str, ...] | None, family: str) -> None:
    inputs = (TensorSpec("data", "FP32", ("n", 3, *FACE)),)
    found = recognise(inputs, (TensorSpec("embedding", "FP32", ("n", 512)),), {}, {}, operators)
    assert found.family == family


@pytest.mark.parametrize(
    ("outputs", "families"),
    [
        ({"last_hidden_state": ("n", 257, 384)}, "set family=dinov2, family=embedding or"),
        (
            {"last_hidden_state": ("n", "t", 768), "pooler_output": ("n", 768)},
            "set family=clip, family=siglip, family=dinov2, family=embedding or",
        ),
        ({"683": (1, 512)}, "family=classification, family=embedding or"),
    ],
)
def test_recognise_embedding_of_several_kinds_names_the_settings(
    outputs: dict[str, tuple[Dim, ...]], families: str
) -> None:
    found = see(outputs)
    assert found.family is None
    assert families in found.reason


@pytest.mark.parametrize(
    "outputs",
    [
        {"logits": ("n", 7), "last_hidden_state": ("n", 257, 384)},
        {"features": ("n", 256, 20, 20)},
        {"features": ("n", 8400, 85), "more": ("n", 4)},
        {"boxes_feat": ("n", 4)},
    ],
    ids=lambda outputs: "+".join(outputs),
)
def test_recognise_other_outputs_are_no_embedding(outputs: dict[str, tuple[Dim, ...]]) -> None:
    assert see(outputs).family not in FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_recognise_embedding_by_setting(family: str) -> None:
    found = see({"683": (1, 512)}, FACE, {"family": family})
    assert (found.family, found.output, found.is_set) == (family, "683", True)
    assert 0 < found.thresholds.score < 1


@pytest.mark.parametrize(
    ("family", "outputs"),
    [
        ("embedding", {"a": ("n", 64), "b": ("n", 64)}),
        ("embedding", {"a": ("n", 64, 7, 7)}),
        ("embedding", {"a": ("n", 4)}),
        ("siglip", {"last_hidden_state": ("n", 196, 768)}),
        ("clip", {"last_hidden_state": ("n", 50, 768)}),
    ],
)
def test_recognise_embedding_by_setting_that_does_not_fit_is_refused(
    family: str, outputs: dict[str, tuple[Dim, ...]]
) -> None:
    with pytest.raises(ConfigError, match=f"family={family} needs"):
        see(outputs, settings={"family": family})


def test_recognise_embedding_in_integers_is_refused() -> None:
    with pytest.raises(ConfigError):
        see({"embedding": ("n", 64)}, settings={"family": "embedding"}, datatype="INT8")


# -- the vector -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1, 1)])
@given(arrays.arrays(np.float32, (3, 8), elements=st.floats(-100, 100, width=32)), st.integers(0, 2))
def test_embedding_of_a_row_has_length_1(shape: tuple[int, ...], rows: np.ndarray, index: int) -> None:
    found = see({"embedding": ("n", 8, *shape)})
    vector = embed(found, {"embedding": rows.reshape(3, 8, *shape)}, index).vector()
    length = np.linalg.norm(rows[index].astype(np.float64))
    np.testing.assert_allclose(vector, rows[index] / (length or 1), rtol=1e-5, atol=1e-6)


def test_embedding_of_tokens_is_the_class_token() -> None:
    tokens = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float16)
    found = see({"last_hidden_state": ("n", 5, 16)}, settings={"family": "dinov2"})
    vector = embed(found, {"last_hidden_state": tokens}, 1).vector()
    expected = tokens[1, 0].astype(np.float64)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=1e-5)


def test_embedding_pooled_output_goes_before_tokens() -> None:
    outputs: dict[str, tuple[Dim, ...]] = {"last_hidden_state": ("n", 5, 16), "pooler_output": ("n", 16)}
    assert see(outputs, settings={"family": "siglip"}).output == "pooler_output"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_embedding_that_is_not_finite_is_similar_to_nothing(bad: float) -> None:
    row = np.ones((1, 8), np.float32)
    row[0, 3] = bad
    found = embed(see({"embedding": ("n", 8)}), {"embedding": row})
    assert not found.vector().any()


@pytest.mark.parametrize("rows", [np.ones((1, 0), np.float32), np.ones((1, 2, 3), np.float32), np.array([["a"]])])
def test_embedding_of_wrong_tensor_is_an_error(rows: np.ndarray) -> None:
    found = see({"embedding": ("n", 8)})
    with pytest.raises(EngineUnusable, match="output embedding is"):
        embed(found, {"embedding": rows})


def test_embedding_of_very_many_values_is_an_error() -> None:
    found = see({"embedding": ("n", "values")})
    assert len(embed(found, {"embedding": np.ones((1, MOST_VALUES), np.float32)}).vector()) == MOST_VALUES
    with pytest.raises(EngineUnusable, match="family=raw"):
        embed(found, {"embedding": np.ones((1, MOST_VALUES + 1), np.float32)})


# -- preprocessing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "size", "fit", "mean", "std"),
    [
        ("arcface", FACE, Fit.LETTERBOX, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("sface", FACE, Fit.LETTERBOX, (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
        ("osnet", PERSON, Fit.STRETCH, IMAGENET_MEAN, IMAGENET_STD),
        ("siglip", PICTURE, Fit.STRETCH, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("dinov2", PICTURE, Fit.CENTER_CROP, IMAGENET_MEAN, IMAGENET_STD),
        (
            "clip",
            PICTURE,
            Fit.CENTER_CROP,
            (0.48145466, 0.4578275, 0.40821073),
            (0.26862954, 0.26130258, 0.27577711),
        ),
    ],
)
def test_embedding_input_is_that_of_its_authors(
    family: str,
    size: tuple[int, int],
    fit: Fit,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> None:
    """A picture of one colour, (blue, green, red) = (20, 130, 250), becomes (value / 255 - mean) / std in RGB."""
    wanted = see({"683": (1, 512)}, size, {"family": family}).preprocess
    assert wanted is not None
    assert wanted.fit is fit
    filled = np.empty(wanted.shape, np.float32)
    Preparer(wanted).prepare(np.full((*size, 3), (20, 130, 250), np.uint8), filled, None)
    expected = (np.array((250, 130, 20)) / 255 - mean) / std
    np.testing.assert_allclose(filled[:, size[0] // 2, size[1] // 2], expected, rtol=1e-5)
    np.testing.assert_allclose(filled[:, 0, 0], expected, rtol=1e-5)

"""Settings of a model: valid and invalid values, and the stored file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.contract import Signature
from edged.errors import ConfigError
from edged.models.limits import Bounds, bounds
from edged.models.settings import (
    ALL_PRECISIONS,
    FIGURES,
    backends,
    parse_assignments,
    precisions,
    read_toml,
    repair_seconds,
    threads,
    validate,
    verify_bounds,
    write_toml,
)
from edged.models.shapes import ShapePolicy, policy, ties, unequal
from edged.tensors import ANY_SHAPE, Dim, TensorSpec
from edged.verification.standard import TOLERANCES, Tolerance

# test_read_toml_reads_any_character has all other characters.
BMP = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))


@pytest.mark.parametrize(("settings", "expected"), [({}, 300.0), ({"int8.repair_s": "0"}, 0.0)])
def test_repair_seconds_are_optional(settings: dict[str, str], expected: float) -> None:
    validate(settings)
    assert repair_seconds(settings) == expected


@pytest.mark.parametrize("settings", [{"int8.repair_s": "-1"}, {"int8.repair_s": "1e9"}, {"int8.repairs": "1"}])
def test_validate_refuses_unknown_settings_of_int8(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        validate(settings)


@given(st.dictionaries(BMP, BMP))
def test_read_toml_reads_what_write_toml_wrote(settings: dict[str, str]) -> None:
    assert read_toml(write_toml(settings)) == settings


@pytest.mark.parametrize("value", ["😀", "\U0001d518"])
def test_read_toml_reads_any_character(value: str) -> None:
    assert read_toml(write_toml({"names": value})) == {"names": value}


def test_read_toml_flattens_tables_lists_and_numbers() -> None:
    text = b"""
        threads = 2
        backends = ["openvino", "onnxruntime"]
        [preprocess]
        scale = 0.5
        swap = true
        [verify]
        cosine = "0.99"
        [verify.fp16]
        relative_l2 = 0.1
    """
    assert read_toml(text) == {
        "threads": "2",
        "backends": "openvino,onnxruntime",
        "preprocess.scale": "0.5",
        "preprocess.swap": "true",
        "verify.cosine": "0.99",
        "verify.fp16.relative_l2": "0.1",
    }


@pytest.mark.parametrize("text", [b"threads", b"= 1", b"a = 1\na = 2", b"\xff\xfe", b"a = [1", b"a = " + b"9" * 5000])
def test_read_toml_invalid_is_refused_in_one_line(text: bytes) -> None:
    with pytest.raises(ConfigError) as raised:
        read_toml(text)
    assert "\n" not in str(raised.value)


def test_parse_assignments_splits_at_the_first_equals_sign() -> None:
    words = ["a=1", " b = two words ", "c=x=y", "d="]
    assert parse_assignments(words) == {"a": "1", "b": "two words", "c": "x=y", "d": ""}
    assert parse_assignments([" decode.characters= 01 "]) == {"decode.characters": " 01 "}


@pytest.mark.parametrize("word", ["a", "", "=1", " =1"])
def test_parse_assignments_refuses_other_words(word: str) -> None:
    with pytest.raises(ConfigError):
        parse_assignments([word])


def test_settings_with_values_are_read_in_their_units_and_order() -> None:
    settings = {
        "backends": " openvino , null,",
        "precisions": "bf16, fp32,bf16",
        "threads": "2, 1,2 ",
        "limits.seconds": "0.5",
        "limits.output_mb": "8",
        "outputs.finite": "refuse",
        "shapes.policy": "learn",
        "shapes.quiet_s": "0",
        "shapes.most_mb": "2",
        "shapes.per_hour": "9",
        "verify.fp16.cosine": "0.9",
        "verify.cosine": "0.99",
        "verify.boxes": "1/2",
        **dict.fromkeys(
            ("family", "names", "prompts", "preprocess.scale", "thresholds.score"), "x"
        ),  # the family checks these
    }
    validate(settings)
    assert backends(settings) == ("openvino", "null")
    assert precisions(settings) == ("bf16", "fp32")
    assert threads(settings) == (2, 1)
    assert bounds("m", settings) == Bounds("m", 0.5, 8, "refuse")
    assert policy(settings) == ShapePolicy("learn", 0.0, 2 << 20, 9)
    assert verify_bounds(settings, "fp16") == {"cosine": 0.9, "boxes": 0.5}
    assert verify_bounds(settings, "fp32") == {"cosine": 0.99, "boxes": 0.5}


def test_settings_without_values_have_defaults() -> None:
    assert (backends({}), precisions({}), threads({}), verify_bounds({}, "fp32")) == (None, None, (0,), {})
    assert bounds("m", {}) == Bounds("m", 0.0, 0, "count")
    assert policy({}) == ShapePolicy("any", 30.0, 128 << 20, 4)


REFUSED = {
    "backends": ("", ",", "tensorflow", "openvino,cuda"),
    "precisions": ("", ",", "fp8", "FP32", "fp32 bf16"),
    "performance": ("", "fast", "auto,latency", "Latency"),
    "threads": ("", "-1", "1025", "1.5", "two", "1 2", "1,", "1e3", "²", "1,2,3,4,5,6,7,8,9", "9" * 5000),
    "limits.seconds": ("0", "nan", "1e9", "soon"),
    "limits.output_mb": ("0", "-1", "1.5"),
    "outputs.finite": ("reject",),
    "shapes.policy": ("Learn", ""),
    "shapes.quiet_s": ("-1", "nan"),
    "shapes.most_mb": ("0", "99999999999999"),
    "shapes.per_hour": ("0", "x" * 9000),
    "verify.boxes": ("", "nan", "inf", "-0.1", "1.01", "x", "1/0", "1e999"),
    **dict.fromkeys(("preprocess", "thresholds", "", "preprocess_scale", "limits.", "shapes."), ("1",)),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in REFUSED.items() for value in values])
def test_validate_invalid_value_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validate({key: value})
    assert key in str(raised.value)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("thread", "threads"),
        ("backend", "backends"),
        ("familly", "family"),
        ("qqqq", "preprocess"),
        ("outputs.finit", "did you mean outputs.finite"),
        ("limits.second", "did you mean limits.seconds"),
        ("shapes.polcy", "did you mean shapes.policy"),
        ("verify.cosin", "did you mean cosine"),
        ("verify.fp16.box_scores", "did you mean box_score"),
        ("verify.qqqq", "known: finite, cosine"),
        ("verify.fp61.cosine", "did you mean fp16"),
        ("verify.fp16", "figure 'fp16'"),
        ("verify.", "figure ''"),
        ("verify.a.b.cosine", "precision 'a.b'"),
        ("verify", "did you mean"),
        ("verify.p99_abs", "figure 'p99_abs'"),  # a figure that is only reported
    ],
)
def test_validate_unknown_key_suggests_the_nearest_or_all(key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        validate({key: "1"})


def test_validate_accepts_every_figure_of_every_precision() -> None:
    assert set(FIGURES) == set(Tolerance.__struct_fields__)
    assert set(ALL_PRECISIONS) == set(TOLERANCES)
    for value in ("0", "0.5", "1"):
        validate({f"verify.{prefix}{figure}": value for prefix in ("", "fp32.", "int8.") for figure in FIGURES})


# -- dimensions that inputs share by name ---------------------------------------------------------------------------


def signature(**shapes: tuple[Dim, ...]) -> Signature:
    return Signature(tuple(TensorSpec(name, "FP32", shape) for name, shape in shapes.items()), ())


def test_ties_join_dimensions_with_equal_names() -> None:
    found = ties(signature(ids=("batch", "seq"), mask=("batch", "seq"), x=(1, "batch"), y=("own", 3)))
    assert list(map(str, found)) == ["batch: ids[0], mask[0], x[1]", "seq: ids[1], mask[1]"]


@pytest.mark.parametrize("name", ["?", "unk__3", "dim_1", "dynamic_axes_2", "None"])
def test_ties_ignore_names_made_up_by_exporters(name: str) -> None:
    assert ties(signature(a=(name, 2), b=(name, 2))) == ()
    assert ties(signature(a=ANY_SHAPE, b=ANY_SHAPE)) == ()


@pytest.mark.parametrize(
    ("model", "shapes", "words"),
    [
        ({"a": ("n", "n")}, {"a": (3, 3)}, ""),
        ({"a": ("n", "n")}, {"a": (3, 4)}, "input 'a' is [3, 4], but its dimension 1 ('n')"),
        ({"ids": ("b", "s"), "mask": ("b", "s")}, {"ids": (2, 7), "mask": (2, 7)}, ""),
        ({"ids": ("b", "s"), "mask": ("b", "s")}, {"ids": (2, 7)}, ""),  # the other input is filled in later
        ({"ids": ("b", "s"), "mask": ("b", "s")}, {"ids": (2, 7), "mask": (2, 8)}, "send [2, 7]"),
    ],
)
def test_unequal_names_input_and_shape(
    model: dict[str, tuple[Dim, ...]], shapes: dict[str, tuple[int, ...]], words: str
) -> None:
    found = unequal(ties(signature(**model)), shapes)
    assert words in found
    assert bool(found) == bool(words)

"""The settings `verify.*`: read for each precision, refused in words that help."""

from __future__ import annotations

import pytest

from edged.errors import ConfigError
from edged.models.settings import ALL_PRECISIONS, FIGURES, read_toml, validate, verify_bounds
from edged.verification.standard import TOLERANCES, Tolerance


def test_every_bound_of_an_engine_and_every_precision_can_be_set() -> None:
    assert set(FIGURES) == set(Tolerance.__struct_fields__)
    assert set(ALL_PRECISIONS) == set(TOLERANCES)


def test_the_more_specific_setting_wins_whatever_comes_first() -> None:
    settings = {"verify.fp16.cosine": "0.9", "verify.cosine": "0.99", "verify.boxes": "1/2"}
    assert verify_bounds(settings, "fp16") == {"cosine": 0.9, "boxes": 0.5}
    assert verify_bounds(settings, "fp32") == {"cosine": 0.99, "boxes": 0.5}
    assert verify_bounds({"threads": "1"}, "fp32") == {}


def test_they_are_read_from_toml_tables() -> None:
    settings = read_toml(b'[verify]\ncosine = "0.99"\n[verify.fp16]\nrelative_l2 = 0.1\n')
    validate(settings)
    assert verify_bounds(settings, "fp16") == {"cosine": 0.99, "relative_l2": 0.1}


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("precision", ["", "fp32.", "int8."])
def test_every_figure_is_accepted_from_none_to_all(precision: str, figure: str) -> None:
    for value in ("0", "0.5", "1"):
        validate({f"verify.{precision}{figure}": value})


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("verify.cosin", "did you mean cosine"),
        ("verify.fp16.box_scores", "did you mean box_score"),
        ("verify.qqqq", "known: finite, cosine"),
        ("verify.fp61.cosine", "did you mean fp16"),
        ("verify.fp16", "figure 'fp16'"),
        ("verify.", "figure ''"),
        ("verify.a.b.cosine", "precision 'a.b'"),
        ("verify", "did you mean"),
        ("verify.p99_abs", "figure 'p99_abs'"),  # told, not decided on
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_the_nearest(key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate({key: "1"})


@pytest.mark.parametrize("value", ["", "nan", "inf", "-0.1", "1.01", "x", "1/0", "1e999"])
def test_a_value_that_no_bound_can_have_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"verify\.boxes"):
        validate({"verify.boxes": value})

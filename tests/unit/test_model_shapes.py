"""The settings `shapes.*`, and dimensions that inputs have in common."""

from __future__ import annotations

import pytest

from edged.backends.contract import Signature
from edged.errors import ConfigError
from edged.models import settings
from edged.models.shapes import ShapePolicy, policy, ties, unequal
from edged.tensors import ANY_SHAPE, Dim, TensorSpec


def signature(**shapes: tuple[Dim, ...]) -> Signature:
    return Signature(tuple(TensorSpec(name, "FP32", shape) for name, shape in shapes.items()), ())


def test_without_a_setting_nothing_is_refused() -> None:
    assert policy({}) == ShapePolicy("any", 30.0, 128 << 20, 4)


def test_the_settings_are_read_in_their_units() -> None:
    said = {"shapes.policy": "learn", "shapes.quiet_s": "0", "shapes.most_mb": "2", "shapes.per_hour": "9"}
    settings.validate(said)
    assert policy(said) == ShapePolicy("learn", 0.0, 2 << 20, 9)


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("shapes.policy", "Learn", "choose from any, refuse, learn"),
        ("shapes.policy", "", "choose from any, refuse, learn"),
        ("shapes.polcy", "any", "did you mean shapes.policy"),
        ("shapes.", "any", "unknown setting"),
        ("shapes.quiet_s", "-1", "quiet_s"),
        ("shapes.quiet_s", "nan", "quiet_s"),
        ("shapes.most_mb", "0", "most_mb"),
        ("shapes.most_mb", "99999999999999", "most_mb"),
        ("shapes.per_hour", "0", "per_hour"),
        ("shapes.per_hour", "x" * 9000, "per_hour"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(key: str, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refusal:
        settings.validate({key: text})
    assert len(str(refusal.value)) < 300


def test_dimensions_of_one_name_are_tied_over_all_inputs() -> None:
    found = ties(signature(ids=("batch", "seq"), mask=("batch", "seq"), x=(1, "batch"), y=("own", 3)))
    assert list(map(str, found)) == ["batch: ids[0], mask[0], x[1]", "seq: ids[1], mask[1]"]


@pytest.mark.parametrize("name", ["?", "unk__3", "dim_1", "dynamic_axes_2", "None"])
def test_names_that_exporters_make_up_tie_nothing(name: str) -> None:
    assert ties(signature(a=(name, 2), b=(name, 2))) == ()
    assert ties(signature(a=ANY_SHAPE, b=ANY_SHAPE)) == ()


def test_an_input_may_have_a_dimension_twice() -> None:
    tied = ties(signature(a=("n", "n")))
    assert unequal(tied, {"a": (3, 3)}) == ""
    assert "input 'a' is [3, 4], and its dimension 1 ('n')" in unequal(tied, {"a": (3, 4)})


def test_what_differs_is_named_with_the_shape_that_would_do() -> None:
    tied = ties(signature(ids=("batch", "seq"), mask=("batch", "seq")))
    assert unequal(tied, {"ids": (2, 7), "mask": (2, 7)}) == ""
    assert unequal(tied, {"ids": (2, 7)}) == ""  # the other is filled in by somebody else
    assert unequal(tied, {"ids": (2, 7), "mask": (2, 8)}) == (
        "input 'mask' is [2, 8], and its dimension 1 ('seq') must equal that of input 'ids', [2, 7]: send [2, 7]"
    )

"""The range of shapes that an engine is built for: from settings, from pictures, and as text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.contract import Signature
from edged.backends.profile import Profile, Range, check
from edged.errors import ConfigError, Unsuitable
from edged.tensors import ANY_SHAPE, Dim, TensorSpec

PICTURE = (640, 480)  # width and height


def signature(**shapes: tuple[Dim, ...]) -> Signature:
    return Signature(tuple(TensorSpec(name, "FP32", shape) for name, shape in shapes.items()), ())


def profile(given: Signature, picture: tuple[int, int] | None = None, **settings: str) -> str:
    return str(Profile.of(given, {f"profile.{name}": text for name, text in settings.items()}, picture))


# -- defaults -------------------------------------------------------------------------------------------------------


def test_profile_of_fixed_shapes_is_empty() -> None:
    found = Profile.of(signature(x=(1, 3, 8, 8), y=()), {}, None)
    assert str(found) == ""
    assert found == Profile.parse("")
    assert found.contains("x", (9, 9))


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (("batch", 3, "height", "width"), "1x3x480x640:1x3x480x640:8x3x480x640"),
        ((1, 3, "?", "?"), "1x3x480x640:1x3x480x640:1x3x480x640"),
        (("?", 3, 480, 640), "1x3x480x640:1x3x480x640:8x3x480x640"),
        (("whatever", "h", "w", 1), "1x480x640x1:1x480x640x1:8x480x640x1"),
    ],
)
def test_profile_of_pictures_has_their_size_and_up_to_eight_rows(shape: tuple[Dim, ...], text: str) -> None:
    assert profile(signature(x=shape), PICTURE) == f"x={text}"


@pytest.mark.parametrize("name", ["batch", "batch_size", "Batch", "N", "bs", "?", "unk__12", "num_images"])
def test_profile_leading_batch_dimension_needs_no_setting(name: str) -> None:
    assert profile(signature(x=(name, 4))) == "x=1x4:1x4:8x4"


@pytest.mark.parametrize("shape", [("tokens", 4), (1, "n_tokens"), ("?",), (1, "?"), (2, "?", "?")])
def test_profile_of_an_unknown_size_is_refused_with_the_setting(shape: tuple[Dim, ...]) -> None:
    with pytest.raises(Unsuitable, match=r'^input x leaves dimension \d \(.*set profile\.x = "[0-9x ]+"') as refusal:
        profile(signature(x=shape))
    assert "\n" not in str(refusal.value)
    example = str(refusal.value).split('"')[1]
    assert profile(signature(x=shape), x=example)


def test_profile_setting_in_the_message_is_valid_toml() -> None:
    with pytest.raises(Unsuitable, match=r'set "profile\.a b"'):
        Profile.of(Signature((TensorSpec("a b", "FP32", (1, "k")),), ()), {}, None)


def test_profile_dimensions_of_one_name_have_one_range() -> None:
    both = signature(ids=("batch", "seq"), mask=("batch", "seq"))
    expected = "ids=1x1:1x64:4x128;mask=1x1:1x64:4x128"
    assert profile(both, ids="1x1 1x64 4x128") == expected
    assert profile(both, mask="1x1 1x64 4x128") == expected


def test_profile_dimensions_without_a_name_are_independent() -> None:
    with pytest.raises(Unsuitable, match="input b"):
        profile(signature(a=("?", "?"), b=("?", "?")), a="1x2")


def test_profile_of_an_input_of_any_rank_is_refused() -> None:
    with pytest.raises(Unsuitable, match="any number of dimensions"):
        profile(signature(x=ANY_SHAPE))


# -- settings -------------------------------------------------------------------------------------------------------


def test_profile_setting_has_three_shapes_or_one_for_all() -> None:
    x = signature(x=("batch", 3, "h", "w"))
    three = "x=1x3x320x320:1x3x640x640:4x3x640x640"
    assert profile(x, x="1x3x320x320 1x3x640x640 4x3x640x640") == three
    assert profile(x, x="1x3x320x320,1x3x640x640,4x3x640x640") == three  # a list in TOML
    assert profile(x, x="  2x3x8x8 ") == "x=2x3x8x8:2x3x8x8:2x3x8x8"


def test_profile_setting_for_a_fixed_shape_must_agree_and_changes_nothing() -> None:
    assert profile(signature(x=(1, 4)), x="1x4") == ""
    with pytest.raises(ConfigError, match="dimension 1 is 4 in the model"):
        profile(signature(x=(1, 4)), x="1x5")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must be one shape or three shapes"),
        ("1x3", "has 2 dimensions, but the model's input has 4"),
        ("1x3x8x8 1x3x8x8", "must be one shape or three shapes"),
        ("1x4x8x8", "dimension 1 is 3 in the model"),
        ("2x3x8x8 1x3x8x8 4x3x8x8", "dimension 0 is 2, 1, 4"),
        ("1x3x8x8 1x3x8x8 4x3x8", "unequal numbers of dimensions"),
        ("1x3x8x0", "only the smallest"),
        ("1x3x-1x8", "must be one shape or three shapes"),
        ("1x3x8x8.5", "must be one shape or three shapes"),
        ("1\u00d73\u00d78\u00d78", "must be one shape or three shapes"),
        ("²x3x8x8", "must be one shape or three shapes"),
        ("99999999999x3x8x8", "must be one shape or three shapes"),
        ("9999999999x3x9999999999x8", "more than 2147483647 elements"),
        ("1" * 5000, "must be one shape or three shapes"),
        ("x" * 5000, "must be one shape or three shapes"),
        ("1x1x1x1x1x1x1x1x1", "must be one shape or three shapes"),
    ],
)
def test_profile_invalid_setting_is_refused_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refusal:
        profile(signature(x=("batch", 3, "h", "w")), x=text)
    assert "profile.x" in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_profile_setting_for_an_unknown_input_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"profile\.image"):
        profile(signature(images=("n", 3)), image="1x3")


def test_profile_dimension_with_two_ranges_is_refused() -> None:
    both = signature(a=("n", 2), b=("n", 2))
    with pytest.raises(ConfigError, match="'n'"):
        profile(both, a="1x2 1x2 8x2", b="1x2 1x2 4x2")
    with pytest.raises(ConfigError, match="different sizes"):
        profile(signature(x=("n", "n")), x="1x2")


def test_profile_setting_that_excludes_the_models_picture_is_refused() -> None:
    x = signature(x=("batch", 3, "h", "w"))
    assert profile(x, PICTURE, x="1x3x320x320 1x3x480x640 1x3x960x960")
    for text in ("1x3x320x320", "2x3x480x640"):
        with pytest.raises(ConfigError, match="excludes 1x3x480x640"):
            profile(x, PICTURE, x=text)


def test_check_without_a_model_refuses_invalid_settings() -> None:
    check({})
    check({"profile.x": "1x3", "profile.a b": "0x1 1x1 2x1", "other": "?"})
    for key, text in (("profile.", "1"), ("profile.x", ""), ("profile.x", "1 2"), ("profile.x", "2 1 3")):
        with pytest.raises(ConfigError):
            check({key: text})


# -- text -----------------------------------------------------------------------------------------------------------


def ranges() -> st.SearchStrategy[Range]:
    sizes = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)).map(sorted)
    dims = st.lists(sizes.map(lambda s: (s[0], max(1, s[1]), max(1, s[2]))), min_size=1, max_size=4)
    return st.builds(
        lambda name, found: Range(name, *(tuple(d[i] for d in found) for i in range(3))),
        st.text(st.characters(blacklist_categories=("Cs",)), max_size=12),
        dims,
    )


@given(st.lists(ranges(), max_size=4, unique_by=lambda r: r.name))
def test_parse_returns_the_profile_of_a_text(found: list[Range]) -> None:
    profile = Profile(tuple(found))
    assert Profile.parse(str(profile)) == profile
    assert "\n" not in str(profile)


@given(st.text(st.sampled_from("x=:;%0123456789ab"), max_size=60))
def test_parse_other_text_is_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert str(Profile.parse(text)) == text


def test_profile_contains_shapes_of_its_range() -> None:
    found = Profile.parse("x=1x3x8x8:1x3x16x16:4x3x32x32")
    assert found.contains("x", (1, 3, 8, 8))
    assert found.contains("x", (4, 3, 32, 9))
    assert not found.contains("x", (5, 3, 8, 8))
    assert not found.contains("x", (1, 3, 8, 7))
    assert not found.contains("x", (1, 3, 8))
    assert found.contains("y", (1,))

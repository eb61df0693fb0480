"""Patterns of tensors, and what differs between a model and a pattern."""

from __future__ import annotations

import pytest

from edged.vision.comparison import Comparison, Tensors, best, compare, nearest_form
from edged.vision.signatures import needs, pattern, patterns
from tests.vision_signatures import tensors

SIZE = (640, 480)  # width, height


def compared(known: str, outputs: str, inputs: str = "", size: tuple[int, int] | None = SIZE) -> Comparison:
    return compare(pattern(known), Tensors.of(tensors(inputs), tensors(outputs), size))


@pytest.mark.parametrize(
    ("known", "outputs"),
    [
        ("[N, 4+classes, cells]", "y [1,84,6300]"),
        ("[N, 4+classes, cells64]", "y [1,84,6380]"),
        ("[N, 3*cells, 5+classes]", "y [1,18900,85]"),
        ("[N, classes+32, H/8, W/8]", "y [8,33,60,80]"),
        ("[N, 2*cells/8, 1]", "y [1,9600,1]"),
        ("[N, scale*H, scale*W]", "y [1,960,1280]"),
        ("[]", "y []"),
        ("a|b [N]", "b [n]"),
        ("a? [N, 7]", "b [1,7]"),
        ("present*, ...", "present.0 [1,2], other [3], present.1 [4,5,6,7]"),
        ("[N, K], boxes [N, K, 4]", "boxes [1,20,4], x [1,20]"),
        ("[N, 4+classes, cells]", "y [batch,84,anchors]"),
    ],
)
def test_compare_matching_tensors_do_not_differ(known: str, outputs: str) -> None:
    found = compared(known, outputs)
    assert (found.cost, found.differences, found.is_readable) == (0, (), True)


@pytest.mark.parametrize(
    ("known", "outputs", "words", "is_readable"),
    [
        ("[N, 4+classes, cells]", "y [1,84,6301]", ("y is [1,84,6301]", "6300"), False),
        ("[N, 4+classes, cells]", "y [1,4,6300]", ("y is [1,4,6300]",), False),
        ("[N, scale*H, scale*W]", "y [1,960,640]", ("y is",), False),
        ("[N, scale*H, scale*W]", "y [1,480,640]", ("y is",), False),
        ("[N, K], [N, K, 4]", "x [1,20], y [1,21,4]", ("y is [1,21,4]",), False),
        ("a [N], b [N]", "a [1]", ("output b is missing",), False),
        ("a [N], b [N], c [N], d [N], e [N]", "x [1,2]", ("a, b, c and 2 more are missing", "1 more output"), False),
        ("a [N]", "x [1]", ("output x is not named a",), True),
        ("a [N]", "a [1], b [2], c [3], d [4], e [5]", ("4 more outputs (b, c, d, ...)",), True),
        ("a", "b [1]", ("output a is missing", "1 more output (b)"), False),
        ("a*", "b [1]", ("output a* is missing",), False),
        ("a [N], [N, 2]", "a [1], b [1,3]", ("b is [1,3], not [N, 2]",), False),
    ],
)
def test_compare_other_tensors_are_named(known: str, outputs: str, words: tuple[str, ...], is_readable: bool) -> None:
    found = compared(known, outputs)
    assert found.cost > 0
    assert found.is_readable == is_readable
    assert all(word in "; ".join(found.differences) for word in words), found.differences


def test_compare_inputs_matter_only_if_the_signature_has_them() -> None:
    assert compared("[N, 2]", "y [1,2]", "x [1,3,8,8], z [1]").cost == 0
    assert compared("x, z [N] -> [N, 2]", "y [1,2]", "x [1,3,8,8], z [1]").cost == 0
    assert "input z is missing" in compared("x, z [N] -> [N, 2]", "y [1,2]", "x [1,3,8,8]").differences
    assert "the model has 1 more input (z)" in compared("x -> [N, 2]", "y [1,2]", "x [1,3,8,8], z [1]").differences


def test_compare_without_a_size_takes_it_from_the_inputs() -> None:
    known = "[N, 3, H, W], [N, 3, H, W] -> [N, 2, H, W]"
    inputs = "a [1,3,48,64], b [1,3,48,64]"
    assert compared(known, "flow [1,2,48,64]", inputs, None).cost == 0
    assert compared(known, "flow [1,2,48,32]", inputs, None).cost > 0
    assert compared("[N, 4+classes, cells]", "y [1,84,77]", size=None).cost == 0


def test_compare_points_count_names_grids_and_numbers() -> None:
    grid, open_grid = compared("[N, 7, cells]", "y [1,7,6300]"), compared("[N, 7, cells]", "y [1,7,anchors]")
    named, common = compared("special [N, 7]", "special [1,7]"), compared("boxes [N, 7]", "boxes [1,7]")
    assert grid.points > open_grid.points
    assert named.points > common.points > compared("[N, 7]", "boxes [1,7]").points


def test_nearest_form_is_the_one_with_the_best_score() -> None:
    known = patterns("a [N, K], b [N, K, 4]", "[N, 7]")
    of_b = Tensors.of((), tensors("a [1,20]"), None)
    assert nearest_form(known, of_b) is known[0]
    assert best(known, of_b) == compare(known[0], of_b)


def test_needs_leaves_out_usual_names_and_cuts_long_texts() -> None:
    assert needs(pattern("output? [N, 7], boxes [N, 4]")) == "[N, 7], boxes [N, 4]"
    assert len(needs(pattern(", ".join(f"output_{i} [N, {i}]" for i in range(1, 99))))) < 200


@pytest.mark.parametrize("text", ["", "a b [N]", "[N, -1]", "[N, a/b]", "[N], "])
def test_pattern_of_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="of a signature"):
        pattern(text)

"""Contents of pictures: their packed form, their messages, their JSON, and the figures that compare them."""

from __future__ import annotations

import base64
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edged.api.grpc.results import fill_content
from edged.client.detection import content_of, labels_of
from edged.client.result import ClassArea, Classification, from_proto
from edged.errors import InvalidInput
from edged.proto import cameras_pb2 as pb
from edged.verification.contents import compare
from edged.vision.content import (
    MOST_AREAS,
    MOST_SIDE,
    MOST_VALUES,
    Anomaly,
    Classes,
    ClassMap,
    Content,
    Depth,
    Embedding,
    Text,
    ValueMap,
    lines,
    pack,
    unpack,
)
from edged.vision.content_json import content_fields
from edged.vision.detections import Detections
from edged.vision.draw import annotate

NAMES = ("road", "car", "sky")
HEAT = ValueMap.of(np.linspace(-1, 3, 12).reshape(3, 4))
CONTENTS: dict[str, Content] = {
    "classes": Classes((2, 0), (0.75, 0.25)),
    "no class": Classes(),
    "class map": ClassMap.of(np.array([[2, 2, 2], [1, 0, 0]])),
    "class map of a part": ClassMap.of(np.array([[2, 0]]), (10, 20, 50, 60)),
    "depth": Depth(HEAT, True, "m"),
    "depth of a part": Depth(ValueMap.of(np.eye(3), (0, 0, 3, 9)), False),
    "embedding": Embedding.of([3, 0, 4]),
    "embedding with a name": Embedding(Embedding.of([3, 0, 4]).data, "Ada", 0.75),
    "embedding of no name": Embedding(Embedding.of([3, 0, 4]).data, "", 0.25),
    "text": Text("KA 17", 0.5),
    "anomaly": Anomaly(0.75, True, HEAT),
    "anomaly without a map": Anomaly(0.25, False),
}
EACH = pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())


def message_of(content: Content) -> pb.Content:
    message = pb.Content()
    fill_content(message, content, NAMES)
    return message


# -- the packed form and the message --------------------------------------------------------------------------------


@EACH
def test_content_packed_and_sent_stays_equal(content: Content) -> None:
    assert unpack(pack(content)) == content
    received = content_of(pb.Content.FromString(message_of(content).SerializeToString()))
    if isinstance(content, Embedding):
        assert isinstance(received, Embedding)
        assert content.cosine(received) == pytest.approx(1)
        assert (received.label, received.similarity) == (content.label, content.similarity)
    else:
        assert received == content


@pytest.mark.parametrize(
    "wrong",
    [
        ["classes", [1], []],
        ["classes", [1], [float("nan")]],
        pytest.param(["classes", [1] * 5000, [0.5] * 5000], id="many classes"),
        pytest.param(["text", "a" * (10 << 20), 0.5], id="a large content"),
        ["class-map", 2, 2, [0], [3]],
        ["class-map", 2, 2, [0, 1], [5, -1]],
        ["class-map", 2, 2, [-1], [4]],
        ["class-map", 1 << 20, 1, [0], [1 << 20]],
        ["class-map", 0, 0, [], []],
        ["class-map", 1, 1, [0], [1], [0, 0, 0, 5]],
        ["class-map", 1, 1, [0], [1], [-1, 0, 5, 5]],
        ["class-map", 1, 1, [0], [1], [0, 0, 5, 1 << 40]],
        ["class-map", 1, 1, [0], [1], [1, 2, 3]],
        ["depth", ["values", 2, 2, 0.0, 1.0, bytes(7)], True, "m"],
        ["depth", ["values", 2, 2, 1.0, 0.0, bytes(8)], True, "m"],
        pytest.param(["depth", ["values", 4096, 2048, 0.0, 1.0, bytes(1 << 24)], True, "m"], id="a large map"),
        ["depth", ["values", 2, 2, 0.0, float("inf"), bytes(8)], True, "m"],
        ["depth", ["values", 2, 2, 0.0, 1e39, bytes(8)], True, "m"],
        ["embedding", b""],
        ["embedding", b"123"],
        ["embedding", np.array([np.nan], np.float32).tobytes()],
        ["embedding", np.array([3e38, -3e38], np.float32).tobytes()],
        ["embedding", np.array([0.5], np.float32).tobytes()],
        pytest.param(["embedding", bytes(4 * (MOST_VALUES + 1))], id="a long embedding"),
        ["embedding", bytes(4), "Ada", float("nan")],
        ["embedding", bytes(4), 5],
        ["text", "a" * 5000, 0.5],
        ["text", "a", float("nan")],
        ["anomaly", float("inf"), True, None],
        ["anomaly", 1e39, True, None],
        ["other"],
        {},
    ],
    ids=str,
)
def test_unpack_invalid_content_raises_value_error(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(msgspec.msgpack.encode(wrong))


@given(st.binary(max_size=64))
def test_unpack_any_bytes_raises_nothing_but_value_error(data: bytes) -> None:
    try:
        unpack(data)
    except ValueError:
        return


def test_client_refuses_an_invalid_content() -> None:
    with pytest.raises(InvalidInput, match="runs of a class map"):
        content_of(pb.Content(class_map=pb.ClassMap(width=2, height=2, class_ids=[1], lengths=[9])))
    with pytest.raises(InvalidInput):
        content_of(pb.Content(class_map=pb.ClassMap(width=1, height=1, class_ids=[1], lengths=[1], box=[1, 2])))


def test_result_labels_classes_and_areas() -> None:
    classified = from_proto(pb.Result(content=message_of(CONTENTS["classes"])))
    assert classified.classes == (Classification(2, "sky", 0.75), Classification(0, "road", 0.25))
    mapped = from_proto(pb.Result(content=message_of(CONTENTS["class map"])))
    assert mapped.areas[0] == ClassArea(2, "sky", 0.5)
    assert [area.label for area in mapped.areas] == ["sky", "road", "car"]
    assert (mapped.classes, classified.areas, from_proto(pb.Result()).content) == ((), (), None)
    assert labels_of(message_of(CONTENTS["text"])) == {}


# -- maps -----------------------------------------------------------------------------------------------------------


@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.integers(0, 3)))
def test_class_map_decodes_to_its_cells_and_shares_add_up(cells: np.ndarray) -> None:
    found = ClassMap.of(cells)
    assert np.array_equal(found.cells(), cells)
    assert sum(share for _, share in found.shares()) == pytest.approx(1)
    assert dict(found.shares()) == {int(n): float(np.mean(cells == n)) for n in np.unique(cells)}


def test_class_map_of_noise_is_made_coarser_until_it_fits() -> None:
    noise = np.random.default_rng(0).integers(0, 150, (512, 512))
    found = ClassMap.of(noise)
    assert (found.width, found.height) == (128, 128)
    assert np.array_equal(found.cells(), noise[::4, ::4])
    assert unpack(pack(found)) == found


@pytest.mark.parametrize(
    ("shape", "coarse"), [((2, MOST_SIDE + 2), (1, MOST_SIDE // 2 + 1)), ((4 * MOST_SIDE, 1), (MOST_SIDE, 1))]
)
def test_maps_with_a_long_side_are_made_coarser(shape: tuple[int, int], coarse: tuple[int, int]) -> None:
    assert ClassMap.of(np.zeros(shape, int)).cells().shape == coarse
    assert ValueMap.of(np.zeros(shape)).values().shape == coarse


def test_value_map_of_very_many_cells_is_made_coarser() -> None:
    values = np.zeros((4096, 4096), np.float32)
    values[2, 4] = 1
    found = ValueMap.of(values)
    assert (found.width, found.height) == (2048, 2048)
    assert found.levels()[1, 2] == found.levels().max()


def test_class_map_with_very_many_classes_has_the_areas_of_the_largest() -> None:
    found = ClassMap.of(np.concatenate((np.arange(5000), [7] * 9))[None])
    assert len(found.shares()) == MOST_AREAS
    assert found.shares()[0] == (7, pytest.approx(10 / 5009))


@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9))), st.integers(1, 20), st.integers(1, 20))
def test_class_map_resized_has_the_class_of_the_nearest_cell(cells: np.ndarray, width: int, height: int) -> None:
    found = ClassMap.of(cells).resized(width, height)
    rows = np.floor((np.arange(height) + 0.5) * cells.shape[0] / height).astype(int)
    columns = np.floor((np.arange(width) + 0.5) * cells.shape[1] / width).astype(int)
    assert np.array_equal(found, cells[np.ix_(rows, columns)])


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.floats(-99, 99, width=32)),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_value_map_resized_is_interpolated(values: np.ndarray, across: int, down: int) -> None:
    map_ = ValueMap.of(values)
    size = map_.width * across, map_.height * down
    expected = cv2.resize(map_.values(), size, interpolation=cv2.INTER_LINEAR)
    np.testing.assert_allclose(map_.resized(*size), expected, atol=1e-3)


@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 9), st.integers(1, 9)),
        elements=st.floats(-1e6, 1e6, width=32) | st.just(float("nan")),
    )
)
def test_value_map_is_exact_to_half_a_level(values: np.ndarray) -> None:
    found, known = ValueMap.of(values), np.isfinite(values)
    error = np.abs(found.values().astype(np.float64) - values)[known]
    assert (error <= (found.high - found.low) / 65535 * 0.51 + 1e-6 * np.abs(values[known])).all()
    assert (found.values()[~known] == np.float32(found.low)).all()


def test_value_map_of_equal_or_no_finite_values() -> None:
    assert ValueMap.of(np.full((2, 3), 7.0)).values().tolist() == [[7.0] * 3] * 2
    assert ValueMap.of(np.array([[1e39, 2, 1]])).values().tolist() == [[1, 2, 1]]
    assert ValueMap.of(np.full((1, 2), np.nan)).values().tolist() == [[0.0, 0.0]]


def test_embedding_has_length_one_and_cosine_similarity() -> None:
    one, other = Embedding.of([3, 4]), Embedding.of([-8, 6])
    assert np.linalg.norm(one.vector()) == pytest.approx(1)
    assert one.cosine(other) == pytest.approx(0, abs=1e-7)
    assert one.cosine(Embedding.of([30, 40])) == pytest.approx(1)
    assert Embedding.of([0, 0]).vector().tolist() == [0, 0]


@pytest.mark.parametrize("scale", [1e-320, 1e-170, 1e170, 1e300])
def test_embedding_of_values_whose_squares_are_out_of_range_has_length_1(scale: float) -> None:
    assert Embedding.of(np.array([3, 4]) * scale).vector().tolist() == pytest.approx([0.6, 0.8], rel=1e-2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_embedding_of_values_that_are_not_finite_raises_value_error(bad: float) -> None:
    with pytest.raises(ValueError, match="length"):
        Embedding.of([1, bad])


# -- for people and programs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    {
        "classes": ["sky 75%", "road 25%"],
        "no class": [],
        "class map": ["sky 50%", "road 33%", "car 17%"],
        "class map of a part": ["road 50%", "sky 50%"],
        "depth": ["inverse depth -1 to 3 m"],
        "depth of a part": ["depth 0 to 1"],
        "embedding": ["embedding of 3 values"],
        "embedding with a name": ["Ada 75%"],
        "embedding of no name": ["unknown 25%"],
        "text": ["KA 17 50%"],
        "anomaly": ["anomaly 0.75"],
        "anomaly without a map": ["normal 0.25"],
    }.items(),
)
def test_lines_say_the_most_important_first(name: str, said: list[str]) -> None:
    assert [line.text for line in lines(CONTENTS[name], NAMES)] == said


def test_json_has_the_fields_of_each_content() -> None:
    fields = {name: content_fields(content, NAMES) for name, content in CONTENTS.items()}
    car = {"class": "car", "class_id": 1, "share": pytest.approx(1 / 6)}
    assert fields["classes"]["top"] == "sky"
    assert fields["no class"] == {"predictions": [], "top": ""}
    assert fields["class map"]["class_map"]["areas"][2] == car
    assert fields["depth"]["depth"]["unit"] == "m"
    assert fields["class map of a part"]["class_map"]["box"] == (10, 20, 50, 60)
    assert base64.b64decode(fields["depth"]["depth"]["map"]["data"]) == HEAT.data
    assert fields["embedding"]["embedding"] == pytest.approx([0.6, 0, 0.8])
    assert fields["embedding"].keys() == {"embedding"}
    assert (fields["embedding with a name"]["label"], fields["embedding with a name"]["similarity"]) == ("Ada", 0.75)
    assert (fields["embedding of no name"]["label"], fields["embedding of no name"]["similarity"]) == ("", 0.25)
    assert fields["text"] == {"text": "KA 17", "confidence": 0.5}
    assert "map" not in fields["anomaly without a map"]["anomaly"]
    msgspec.json.encode(fields)


@EACH
def test_json_without_maps_is_small_and_otherwise_equal(content: Content) -> None:
    def without(fields: Any) -> Any:
        left_out = ("class_ids", "lengths", "data")
        return {k: without(v) for k, v in fields.items() if k not in left_out} if isinstance(fields, dict) else fields

    whole, small = content_fields(content, NAMES), content_fields(content, NAMES, maps=False)
    assert small == without(whole)


def test_annotate_draws_a_map_only_on_its_part() -> None:
    grey = np.full((100, 200, 3), 90, np.uint8)
    for part in (ClassMap.of(np.ones((2, 2), int), (150, 50, 190, 90)), Depth(HEAT, True)):
        if isinstance(part, Depth):
            part = Depth(ValueMap.of(HEAT.values(), (150, 50, 190, 90)), True)
        changed = (annotate(grey, Detections.empty(), NAMES, content=part) != grey).any(axis=2)
        assert changed[50:90, 150:190].all()
        changed[50:90, 150:190] = False
        changed[:40] = False  # the legend
        assert not changed.any()
    outside = ClassMap.of(np.ones((2, 2), int), (500, 500, 600, 600))
    assert not (annotate(grey, Detections.empty(), NAMES, content=outside)[60:] != 90).any()


def test_annotate_lists_up_to_twelve_classes_as_a_legend() -> None:
    grey = np.full((1000, 200, 3), 90, np.uint8)

    def legend(classes: int) -> int:
        """Return the number of rows that the legend darkens or writes on."""
        content = ClassMap.of(np.arange(classes)[:, None].repeat(2, axis=1), (0, 990, 200, 1000))
        drawn = annotate(grey, Detections.empty(), (), content=content)
        return int((drawn[:990] != 90).any(axis=(1, 2)).sum())

    assert legend(1) < legend(8) < legend(12) == legend(20)


def test_annotate_shows_what_is_near_in_red() -> None:
    ramp = ValueMap.of(np.linspace(0, 9, 200)[None])
    grey = np.full((100, 200, 3), 90, np.uint8)
    for content, column in ((Depth(ramp, True), 190), (Depth(ramp, False, "m"), 10)):
        blue, _, red = annotate(grey, Detections.empty(), (), content=content)[90, column]
        assert red > blue + 20


@EACH
def test_annotate_draws_each_content(content: Content) -> None:
    grey = np.full((60, 90, 3), 90, np.uint8)
    drawn = annotate(grey, Detections.empty(), NAMES, content=content)
    assert drawn.shape == grey.shape
    assert np.array_equal(drawn, grey) is (content == Classes())


# -- figures --------------------------------------------------------------------------------------------------------


@EACH
def test_compare_equal_contents_are_perfect(content: Content) -> None:
    figure, value = compare(content, content)
    assert value == pytest.approx(1 if figure in ("class_map", "embedding", "text") else 0, abs=1e-6)


def grid(**cells: int) -> ClassMap:
    return ClassMap.of(np.repeat(list(cells.values()), 50).reshape(len(cells) * 5, 10))


@pytest.mark.parametrize(
    ("expected", "found", "figure"),
    [
        (Classes((0, 1), (0.75, 0.25)), Classes((1, 0), (0.5, 0.5)), ("class_score", 0.25)),
        (Classes((0,), (0.75,)), Classes(), ("class_score", 0.75)),
        (grid(a=0, b=1), grid(a=0, b=0), ("class_map", 0.25)),  # 0: half of it is right; 1: lost
        (grid(a=0, b=1), grid(a=1, b=0), ("class_map", 0.0)),
        (grid(a=0, b=1), ClassMap.of(np.zeros((5, 10), int)), ("class_map", 0.0)),
        (Embedding.of([1, 0]), Embedding.of([3, 4]), ("embedding", 0.6)),
        (Text("ABCD", 1.0), Text("ABXD", 1.0), ("text", 0.75)),
        (Text("ABCD", 1.0), Text("", 1.0), ("text", 0.0)),
        (Anomaly(2.0, True), Anomaly(1.5, True), ("anomaly", 0.25)),
    ],
)
def test_compare_different_contents(expected: Content, found: Content, figure: tuple[str, float]) -> None:
    assert compare(expected, found) == (figure[0], pytest.approx(figure[1], abs=1e-6))


def test_compare_class_map_of_noise_that_one_side_encodes_coarser() -> None:
    fine = np.random.default_rng(0).integers(0, 3, (40, 64))
    for coarse in (fine[::2, ::2], fine[::2, ::2][::2, ::2]):
        assert compare(ClassMap.of(fine), ClassMap.of(coarse)) == ("class_map", 1.0)
        assert compare(ClassMap.of(coarse), ClassMap.of(fine)) == ("class_map", 1.0)
    assert compare(ClassMap.of(fine), ClassMap.of(fine[:20]))[1] == 0
    assert compare(ClassMap.of(fine), ClassMap.of(fine[:, :1]))[1] == 0


RAMP = np.linspace(1, 5, 100).reshape(10, 10)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (RAMP, 0),
        (RAMP + 0.1, 0.1 / RAMP.std()),
        (RAMP * 2, np.sqrt(np.mean(RAMP**2)) / RAMP.std()),
        (RAMP * 0 + RAMP.mean(), 1),
    ],
)
def test_compare_depth_in_metres_counts_scale_and_offset(values: np.ndarray, error: float) -> None:
    ours, theirs = (Depth(ValueMap.of(each), False, "m") for each in (RAMP, values))
    assert compare(ours, theirs) == ("depth", pytest.approx(error, abs=1e-4))


def test_compare_depth_of_one_value() -> None:
    flat = np.full((3, 3), 2.0)
    for unit in ("", "m"):
        assert compare(Depth(ValueMap.of(flat), False, unit), Depth(ValueMap.of(flat), False, unit))[1] == 0
        assert compare(Depth(ValueMap.of(flat), False, unit), Depth(ValueMap.of(np.eye(3)), False, unit))[1] == 1


def test_compare_depth_without_a_unit_ignores_scale_and_offset_but_no_other_shape() -> None:
    ramp = RAMP

    def error(values: np.ndarray) -> float:
        return compare(Depth(ValueMap.of(ramp), True), Depth(ValueMap.of(values), True))[1]

    assert error(ramp * 3 + 7) == pytest.approx(0, abs=1e-4)
    assert error(-ramp) == pytest.approx(1)
    assert error(ramp.T) > 0.8
    assert error(np.ones((10, 10))) == pytest.approx(1)
    assert error(ramp[:5]) == 1

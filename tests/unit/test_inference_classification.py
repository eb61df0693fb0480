"""The best classes of an output, as text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edged.api.inference.classification import classify
from edged.errors import InvalidInput, TooLarge
from edged.raw_contents import to_array, to_bytes
from edged.serving.work import OutputView


def view(array: np.ndarray, datatype: str) -> OutputView:
    return OutputView("y", datatype, array.shape, memoryview(bytes(to_bytes(array))))


def best(array: np.ndarray, datatype: str, classes: int, labels: tuple[str, ...] = (), rows: bool = True) -> list:
    """What is told of each row, or of all."""
    found = classify(view(array, datatype), classes, labels, rows)
    assert found.datatype == "BYTES"
    texts = to_array("y", "BYTES", found.shape, found.data)
    return np.vectorize(lambda text: text.decode(), otypes=[object])(texts).tolist()


def test_the_best_come_first_with_their_labels() -> None:
    scores = np.array([[0.1, 0.7, 0.2], [3, 2, 1]], np.float32)
    assert best(scores, "FP32", 2, ("a", "b")) == [["0.700000:1:b", "0.200000:2"], ["3.000000:0:a", "2.000000:1:b"]]
    assert best(scores, "FP32", 1, rows=False) == ["3.000000:3"]


def test_whole_numbers_are_told_as_such() -> None:
    assert best(np.array([[5, 255, 7]], np.uint8), "UINT8", 3) == [["255:1", "7:2", "5:0"]]
    assert best(np.array([[-5, 2**62 + 1, 2**62]], np.int64), "INT64", 2) == [[f"{2**62 + 1}:1", f"{2**62}:2"]]


def test_halves_of_both_kinds_are_scores() -> None:
    assert best(np.array([[0.5, 2]], np.float16), "FP16", 1) == [["2.000000:1"]]
    upper = (np.array([[0.5, 2]], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert best(upper, "BF16", 2) == [["2.000000:1", "0.500000:0"]]


def test_equal_scores_keep_their_order_and_what_is_no_number_comes_last() -> None:
    scores = np.array([[np.nan, 1, 1, -np.inf, np.nan, 1]], np.float64)
    assert best(scores, "FP64", 6) == [["1.000000:1", "1.000000:2", "1.000000:5", "-inf:3", "nan:0", "nan:4"]]


def test_more_classes_than_there_are_is_all_of_them() -> None:
    assert classify(view(np.zeros((2, 3), np.float32), "FP32"), 99, (), True).shape == (2, 3)
    assert classify(view(np.zeros((0, 3), np.float32), "FP32"), 2, (), True).shape[0] == 0
    assert classify(view(np.zeros((2, 0), np.float32), "FP32"), 2, (), True).shape == (2, 0)


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
def test_what_holds_no_scores_is_refused(datatype: str) -> None:
    with pytest.raises(InvalidInput, match=f"'y' is {datatype}"):
        classify(OutputView("y", datatype, (1,), memoryview(b"\1")), 1, (), False)


@given(hnp.arrays(np.float32, (2, 5), elements=st.floats(width=32, allow_nan=False)), st.integers(1, 7))
def test_the_scores_told_fall(scores: np.ndarray, classes: int) -> None:
    for row, told in zip(scores, best(scores, "FP32", classes), strict=True):
        indexes = [int(text.split(":")[1]) for text in told]
        assert len(set(indexes)) == len(indexes) == min(classes, 5)
        assert sorted(row[indexes], reverse=True) == list(row[indexes])
        assert min(row[indexes]) >= np.delete(row, indexes).max(initial=-np.inf)


def test_a_single_score_has_no_rows() -> None:
    found = classify(view(np.array(0.5, np.float32), "FP32"), 3, (), by_row=True)
    assert (found.shape, bytes(found.data)[4:]) == ((1,), b"0.500000:0")


def test_more_strings_than_are_worth_writing_are_refused() -> None:
    scores = view(np.zeros((300, 300), np.float32), "FP32")
    assert classify(scores, 200, (), by_row=True).shape == (300, 200)
    with pytest.raises(TooLarge, match="'y' would be 90000 classes; ask for fewer"):
        classify(scores, 300, (), by_row=True)

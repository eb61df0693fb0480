"""Responses of inference, made from an engine's outputs."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edged.api.auth.identity import Identity
from edged.api.grpc.wire import Contents
from edged.api.inference.requests import Place, RequestedOutput
from edged.api.inference.responses import Collector, Form, classify
from edged.api.inference.sequences import StateTensor
from edged.api.inference.shared_memory import Regions
from edged.errors import EngineUnusable, InvalidInput, TooLarge
from edged.proto import open_inference_pb2 as pb
from edged.serving.work import OutputView
from edged.tensors import to_array, to_bytes

Response = tuple[pb.ModelInferResponse, list[bytes]]


def write(message: pb.ModelInferResponse, raw: Sequence[Contents]) -> Response:
    return message, [bytes(each) for each in raw]


def output(name: str, array: np.ndarray, datatype: str = "FP32") -> OutputView:
    return OutputView(name, datatype, array.shape, memoryview(array.tobytes()))


def strings(name: str, shape: tuple[int, ...], *texts: bytes) -> OutputView:
    data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return OutputView(name, "BYTES", shape, memoryview(data))


def form(wanted: tuple[RequestedOutput, ...] = (), **changes: object) -> Form:
    return Form(**{"name": "m", "version": "7", "wanted": wanted, **changes})


def collected(form: Form, *outputs: OutputView) -> list[Response]:
    collector = Collector(form, "42", write)
    collector(outputs)
    return collector.responses()


A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 1), np.float32)


def test_response_has_one_raw_entry_for_each_output_and_the_requests_id() -> None:
    ((message, raw),) = collected(form(), output("a", A), output("none", np.zeros((0, 4), np.float32)))
    assert (message.id, message.model_name, message.model_version) == ("42", "m", "7")
    assert [(o.name, o.datatype, list(o.shape)) for o in message.outputs] == [
        ("a", "FP32", [2, 3]),
        ("none", "FP32", [0, 4]),
    ]
    assert raw == [A.tobytes(), b""]
    assert not message.parameters


def test_response_keeps_the_order_of_the_request_and_hides_states() -> None:
    views = (output("a", A), output("b", B), output("state", A))
    assert [o.name for o in collected(form(hidden=frozenset({"state"})), *views)[0][0].outputs] == ["a", "b"]
    asked = form((RequestedOutput("state"), RequestedOutput("a")), hidden=frozenset({"state"}))
    assert [o.name for o in collected(asked, *views)[0][0].outputs] == ["state", "a"]


def test_collector_stores_copies_of_states_by_input_name() -> None:
    collector = Collector(form(states={"hn": "h"}, hidden=frozenset({"hn"})), "42", write, copies=True)
    memory = bytearray(A.tobytes())
    collector((output("a", B), OutputView("hn", "FP32", (2, 3), memoryview(memory))))
    memory[:] = bytes(len(memory))
    assert collector.state == {"h": StateTensor((2, 3), A.tobytes())}
    assert [tensor.data for tensor in collector.outputs] == [B.tobytes(), A.tobytes()]


def test_response_of_output_in_shared_memory_has_its_place_and_an_empty_entry(tmp_path: Path) -> None:
    (tmp_path / "o").write_bytes(bytes(64))
    (tmp_path / "o").chmod(0o600)
    regions = Regions(tmp_path)
    regions.register("r", "o", 0, 64, Identity("own", os.geteuid()))
    place = Place("r", 8, 40)
    wanted = (RequestedOutput("a", place=place), RequestedOutput("b"))
    ((message, raw),) = collected(
        form(wanted, regions={"a": regions.target(place, "output 'a'")}), output("a", A), output("b", B)
    )
    assert raw == [b"", B.tobytes()]
    assert (tmp_path / "o").read_bytes() == bytes(8) + A.tobytes() + bytes(32)
    place_of = message.outputs[0].parameters
    assert place_of["shared_memory_region"].string_param == "r"
    assert place_of["shared_memory_byte_size"].int64_param == 24
    assert place_of["shared_memory_offset"].int64_param == 8
    small = form((RequestedOutput("a", place=Place("r", 8, 23)),), regions={"a": regions.find("r")})
    with pytest.raises(InvalidInput, match="'a'"):
        collected(small, output("a", A))


def test_response_of_classified_output_has_its_labels_by_row() -> None:
    wanted = (RequestedOutput("a", classes=1),)
    labels = {"labels": {"a": ("x", "y", "z")}, "default_labels": ("no",)}
    ((message, (raw,)),) = collected(form(wanted, **labels), output("a", A))
    assert list(message.outputs[0].shape) == [2, 1]
    assert raw == strings("", (), b"2.000000:2:z", b"5.000000:2:z").data
    ((message, (raw,)),) = collected(form(wanted, default_labels=("no",)), output("a", A[0]))
    assert list(message.outputs[0].shape) == [1]
    assert raw == strings("", (), b"2.000000:2").data


def final(responses: list[Response]) -> list[bool | None]:
    return [
        message.parameters["triton_final_response"].bool_param if message.parameters else None
        for message, _ in responses
    ]


def test_responses_of_a_stream_mark_the_last() -> None:
    assert final(collected(form(), output("a", A))) == [None]
    assert final(collected(form(streamed=True), output("a", A))) == [True]
    assert final(collected(form(streamed=True, empty_final=True), output("a", A))) == [True]
    rows = form(streamed=True, rows=True)
    assert final(collected(rows, output("a", A), output("b", B))) == [False, True]
    ended = collected(form(streamed=True, rows=True, empty_final=True), output("a", A), output("b", B))
    assert final(ended) == [False, False, True]
    assert not ended[-1][0].outputs
    assert not ended[-1][1]
    assert ended[-1][0].id == "42"


def test_responses_by_row_have_one_row_each() -> None:
    texts = strings("t", (2, 2), b"", b"ab", b"c", b"defg")
    first, second = collected(form(rows=True, streamed=True), output("a", A), texts)
    assert [list(o.shape) for o in first[0].outputs] == [[1, 3], [1, 2]]
    assert first[1] == [A[0].tobytes(), bytes(strings("", (), b"", b"ab").data)]
    assert second[1] == [A[1].tobytes(), bytes(strings("", (), b"c", b"defg").data)]
    assert collected(form(rows=True, streamed=True), output("a", A[:0])) == []
    assert final(collected(form(rows=True, streamed=True, empty_final=True), output("a", A[:0]))) == [True]


def test_responses_by_row_of_unequal_outputs_are_refused() -> None:
    for other in (np.zeros((3, 1), np.float32), np.float32(1).reshape(())):
        with pytest.raises(EngineUnusable):
            collected(form(rows=True), output("a", A), output("b", other))
    with pytest.raises(TooLarge):
        collected(form(rows=True), output("a", np.zeros((1 << 17, 0), np.float32)))


def test_collector_unexpected_error_is_raised_by_responses_only() -> None:
    def broken(message: pb.ModelInferResponse, raw: Sequence[Contents]) -> Response:
        raise ZeroDivisionError

    collector = Collector(form(), "42", broken)
    collector((output("a", A),))
    with pytest.raises(ZeroDivisionError):
        collector.responses()


def view(array: np.ndarray, datatype: str) -> OutputView:
    return OutputView("y", datatype, array.shape, memoryview(bytes(to_bytes(array))))


def best(array: np.ndarray, datatype: str, classes: int, labels: tuple[str, ...] = (), rows: bool = True) -> list:
    """Return the strings of each row, or of the whole output if `rows` is false."""
    found = classify(view(array, datatype), classes, labels, rows)
    assert found.datatype == "BYTES"
    texts = to_array("y", "BYTES", found.shape, found.data)
    return np.vectorize(lambda text: text.decode(), otypes=[object])(texts).tolist()


BF16 = (np.array([[0.5, 2]], np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize(
    ("scores", "datatype", "classes", "strings"),
    [
        (np.array([[0.1, 0.7, 0.2]], np.float32), "FP32", 2, ["0.700000:1:b", "0.200000:2"]),
        (np.array([[5, 255, 7]], np.uint8), "UINT8", 3, ["255:1:b", "7:2", "5:0:a"]),
        (np.array([[2**62 + 1, -5, 2**62]], np.int64), "INT64", 2, [f"{2**62 + 1}:0:a", f"{2**62}:2"]),
        (np.array([[0.5, 2]], np.float16), "FP16", 1, ["2.000000:1:b"]),
        (BF16, "BF16", 2, ["2.000000:1:b", "0.500000:0:a"]),
        # Equal scores keep their order; NaN comes last.
        (
            np.array([[np.nan, 1, 1, -np.inf, np.nan, 1]], np.float64),
            "FP64",
            6,
            ["1.000000:1:b", "1.000000:2", "1.000000:5", "-inf:3", "nan:0:a", "nan:4"],
        ),
    ],
)
def test_classify_returns_the_best_classes_first_with_labels(
    scores: np.ndarray, datatype: str, classes: int, strings: list[str]
) -> None:
    assert best(scores, datatype, classes, ("a", "b")) == [strings]
    assert best(scores, datatype, classes, ("a", "b"), rows=False) == strings


def test_classify_more_classes_than_values_gives_all() -> None:
    assert classify(view(np.zeros((2, 3), np.float32), "FP32"), 99, (), True).shape == (2, 3)
    assert classify(view(np.zeros((0, 3), np.float32), "FP32"), 2, (), True).shape[0] == 0
    assert classify(view(np.zeros((2, 0), np.float32), "FP32"), 2, (), True).shape == (2, 0)


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
def test_classify_output_without_numbers_is_refused(datatype: str) -> None:
    with pytest.raises(InvalidInput, match=f"'y' is {datatype}"):
        classify(OutputView("y", datatype, (1,), memoryview(b"\1")), 1, (), False)


@given(hnp.arrays(np.float32, (2, 5), elements=st.floats(width=32, allow_nan=False)), st.integers(1, 7))
def test_classify_scores_are_the_highest_in_descending_order(scores: np.ndarray, classes: int) -> None:
    for row, texts in zip(scores, best(scores, "FP32", classes), strict=True):
        indexes = [int(text.split(":")[1]) for text in texts]
        assert len(set(indexes)) == len(indexes) == min(classes, 5)
        assert sorted(row[indexes], reverse=True) == list(row[indexes])
        assert min(row[indexes]) >= np.delete(row, indexes).max(initial=-np.inf)


def test_classify_single_score_has_no_rows() -> None:
    found = classify(view(np.array(0.5, np.float32), "FP32"), 3, (), by_row=True)
    assert (found.shape, bytes(found.data)[4:]) == ((1,), b"0.500000:0")


def test_classify_too_many_strings_is_refused() -> None:
    scores = view(np.zeros((300, 300), np.float32), "FP32")
    assert classify(scores, 200, (), by_row=True).shape == (300, 200)
    with pytest.raises(TooLarge, match="'y'"):
        classify(scores, 300, (), by_row=True)

"""From outputs in memory that is another's to responses."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edged.api.auth.identity import Identity
from edged.api.grpc.wire import Contents
from edged.api.inference.parameters import Place, Wanted
from edged.api.inference.regions import Regions
from edged.api.inference.responses import Collector, Form
from edged.api.inference.sequences import Kept
from edged.errors import EngineUnusable, InvalidInput, TooLarge
from edged.proto import open_inference_pb2 as pb
from edged.serving.work import OutputView

Told = tuple[pb.ModelInferResponse, list[bytes]]


def write(message: pb.ModelInferResponse, raw: Sequence[Contents]) -> Told:
    return message, [bytes(each) for each in raw]


def output(name: str, array: np.ndarray, datatype: str = "FP32") -> OutputView:
    return OutputView(name, datatype, array.shape, memoryview(array.tobytes()))


def strings(name: str, shape: tuple[int, ...], *texts: bytes) -> OutputView:
    data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return OutputView(name, "BYTES", shape, memoryview(data))


def form(wanted: tuple[Wanted, ...] = (), **changes: object) -> Form:
    return Form(**{"name": "m", "version": "7", "id": "42", "wanted": wanted, **changes})


def collected(form: Form, *outputs: OutputView) -> list[Told]:
    collector = Collector(form, write)
    collector(outputs)
    return collector.responses()


A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 1), np.float32)


def test_a_response_has_one_raw_entry_for_each_output_and_the_requests_id() -> None:
    ((message, raw),) = collected(form(), output("a", A), output("none", np.zeros((0, 4), np.float32)))
    assert (message.id, message.model_name, message.model_version) == ("42", "m", "7")
    assert [(o.name, o.datatype, list(o.shape)) for o in message.outputs] == [
        ("a", "FP32", [2, 3]),
        ("none", "FP32", [0, 4]),
    ]
    assert raw == [A.tobytes(), b""]
    assert not message.parameters


def test_outputs_come_in_the_order_of_the_request_and_hidden_ones_only_when_asked_for() -> None:
    views = (output("a", A), output("b", B), output("state", A))
    assert [o.name for o in collected(form(hidden=frozenset({"state"})), *views)[0][0].outputs] == ["a", "b"]
    asked = form((Wanted("state"), Wanted("a")), hidden=frozenset({"state"}))
    assert [o.name for o in collected(asked, *views)[0][0].outputs] == ["state", "a"]


def test_what_the_model_keeps_is_copied_by_the_input_it_goes_back_into() -> None:
    collector = Collector(form(kept={"hn": "h"}, hidden=frozenset({"hn"})), write, copies=True)
    memory = bytearray(A.tobytes())
    collector((output("a", B), OutputView("hn", "FP32", (2, 3), memoryview(memory))))
    memory[:] = bytes(len(memory))
    assert collector.state == {"h": Kept((2, 3), A.tobytes())}
    assert [tensor.data for tensor in collector.outputs] == [B.tobytes(), A.tobytes()]


def test_an_output_in_shared_memory_leaves_an_empty_entry_and_says_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "o").write_bytes(bytes(64))
    (tmp_path / "o").chmod(0o600)
    regions = Regions(tmp_path)
    regions.register("r", "o", 0, 64, Identity("own", os.geteuid()))
    place = Place("r", 8, 40)
    wanted = (Wanted("a", place=place), Wanted("b"))
    ((message, raw),) = collected(
        form(wanted, regions={"a": regions.target(place, "output 'a'")}), output("a", A), output("b", B)
    )
    assert raw == [b"", B.tobytes()]
    assert (tmp_path / "o").read_bytes() == bytes(8) + A.tobytes() + bytes(32)
    told = message.outputs[0].parameters
    assert told["shared_memory_region"].string_param == "r"
    assert told["shared_memory_byte_size"].int64_param == 24
    assert told["shared_memory_offset"].int64_param == 8
    small = form((Wanted("a", place=Place("r", 8, 23)),), regions={"a": regions.find("r")})
    with pytest.raises(InvalidInput, match="output 'a' has 24 bytes, its place in shared memory 'r' 23"):
        collected(small, output("a", A))


def test_classes_are_told_by_row_with_the_labels_of_the_output() -> None:
    wanted = (Wanted("a", classes=1),)
    labels = {"labels": {"a": ("x", "y", "z")}, "default_labels": ("no",)}
    ((message, (raw,)),) = collected(form(wanted, **labels), output("a", A))
    assert list(message.outputs[0].shape) == [2, 1]
    assert raw == strings("", (), b"2.000000:2:z", b"5.000000:2:z").data
    ((message, (raw,)),) = collected(form(wanted, default_labels=("no",)), output("a", A[0]))
    assert list(message.outputs[0].shape) == [1]
    assert raw == strings("", (), b"2.000000:2").data


def final(told: list[Told]) -> list[bool | None]:
    return [
        message.parameters["triton_final_response"].bool_param if message.parameters else None for message, _ in told
    ]


def test_streams_are_told_which_response_is_the_last() -> None:
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


def test_each_row_is_a_response_of_its_own() -> None:
    texts = strings("t", (2, 2), b"", b"ab", b"c", b"defg")
    first, second = collected(form(rows=True, streamed=True), output("a", A), texts)
    assert [list(o.shape) for o in first[0].outputs] == [[1, 3], [1, 2]]
    assert first[1] == [A[0].tobytes(), bytes(strings("", (), b"", b"ab").data)]
    assert second[1] == [A[1].tobytes(), bytes(strings("", (), b"c", b"defg").data)]
    assert collected(form(rows=True, streamed=True), output("a", A[:0])) == []
    assert final(collected(form(rows=True, streamed=True, empty_final=True), output("a", A[:0]))) == [True]


def test_outputs_that_do_not_have_the_same_rows_cannot_be_told_apart() -> None:
    for other in (np.zeros((3, 1), np.float32), np.float32(1).reshape(())):
        with pytest.raises(EngineUnusable, match="unequal numbers"):
            collected(form(rows=True), output("a", A), output("b", other))
    with pytest.raises(TooLarge, match="at most"):
        collected(form(rows=True), output("a", np.zeros((1 << 17, 0), np.float32)))


def test_a_mistake_of_ours_is_told_to_whoever_asked_and_not_to_the_slot() -> None:
    def broken(message: pb.ModelInferResponse, raw: Sequence[Contents]) -> Told:
        raise ZeroDivisionError

    collector = Collector(form(), broken)
    collector((output("a", A),))
    with pytest.raises(ZeroDivisionError):
        collector.responses()

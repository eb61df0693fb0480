"""Parameters of requests, inputs and requested outputs."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.api.inference.parameters import Options, Place, Wanted, options, place, wanted
from edged.errors import InvalidInput
from edged.proto import open_inference_pb2 as pb

VALUES = st.one_of(
    st.builds(lambda v: pb.InferParameter(bool_param=v), st.booleans()),
    st.builds(lambda v: pb.InferParameter(int64_param=v), st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda v: pb.InferParameter(uint64_param=v), st.integers(0, 2**64 - 1)),
    st.builds(lambda v: pb.InferParameter(double_param=v), st.floats()),
    st.builds(lambda v: pb.InferParameter(string_param=v), st.text(max_size=20)),
    st.just(pb.InferParameter()),
)
NUMBERS, FLAGS = ["sequence_id", "priority", "timeout"], ["sequence_start", "sequence_end"]
KEYS = st.sampled_from([*NUMBERS, *FLAGS, "mine", "triton_enable_empty_final_response"])


def given_as(**values: Any) -> dict[str, pb.InferParameter]:
    """Parameters as clients send them: whole numbers signed."""
    fields = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return {key: pb.InferParameter(**{fields[type(value)]: value}) for key, value in values.items()}


def output(name: str, **values: Any) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    return pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=given_as(**values))


def test_a_request_without_parameters_wants_nothing_special() -> None:
    assert options({}) == Options()


def test_every_known_parameter_is_read() -> None:
    found = options(
        given_as(
            sequence_id=7, sequence_start=True, sequence_end=True, priority=2, timeout=1500,
            triton_enable_empty_final_response=True, mine="x", headers=1.5,
        )
    )  # fmt: skip
    assert found == Options(7, True, True, 2, 0.0015, True)


def test_ids_of_sequences_are_numbers_or_text() -> None:
    assert options(given_as(sequence_id="camera 3")).sequence == "camera 3"
    assert options({"sequence_id": pb.InferParameter(uint64_param=2**64 - 1)}).sequence == 2**64 - 1
    assert options({"priority": pb.InferParameter(uint64_param=2**64 - 1)}).priority == 2**64 - 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sequence_id": 1.5}, "'sequence_id' is neither"),
        ({"sequence_id": True}, "'sequence_id' is neither"),
        ({"sequence_id": "x" * 300}, "longer than 256"),
        ({"sequence_start": 1}, "'sequence_start' is not true or false"),
        ({"priority": -1}, "'priority' of the request is not a whole number"),
        ({"priority": True}, "'priority'"),
        ({"timeout": -1}, "'timeout'"),
        ({"timeout": "1"}, "'timeout'"),
        ({"triton_final_response": True}, "reserved"),
        ({"triton_": 1}, "reserved"),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        options(given_as(**values))


@given(st.dictionaries(st.one_of(KEYS, st.text(max_size=8)), VALUES, max_size=6))
def test_any_parameters_are_taken_or_refused(values: dict[str, pb.InferParameter]) -> None:
    with contextlib.suppress(InvalidInput):
        found = options(values)
        assert found.priority >= 0
        assert found.timeout_s >= 0
        assert not any(key.startswith("triton_") for key in values if key != "triton_enable_empty_final_response")


def test_outputs_are_plain_classified_or_written_into_memory() -> None:
    outputs = [
        output("plain", binary_data=False),
        output("best", classification=3),
        output("memory", shared_memory_region="r", shared_memory_byte_size=64, shared_memory_offset=8),
        output("all", classification=0),
    ]
    assert wanted(outputs) == (
        Wanted("plain"),
        Wanted("best", 3),
        Wanted("memory", 0, Place("r", 8, 64)),
        Wanted("all"),
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"classification": -1}, "'classification' of output 'y'"),
        ({"classification": 2**40}, "at most"),
        ({"classification": 1.0}, "'classification'"),
        ({"classification": 1, "shared_memory_region": "r", "shared_memory_byte_size": 4}, "cannot be classified into"),
        ({"shared_memory_region": "r"}, "no shared_memory_byte_size"),
        ({"shared_memory_byte_size": 4}, "name the region"),
        ({"shared_memory_offset": 4}, "name the region"),
        ({"shared_memory_region": "", "shared_memory_byte_size": 4}, "not the name of a region"),
        ({"shared_memory_region": 1, "shared_memory_byte_size": 4}, "not the name of a region"),
        ({"shared_memory_region": "r", "shared_memory_byte_size": -4}, "'shared_memory_byte_size' of output 'y'"),
        (
            {"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": -1},
            "shared_memory_offset",
        ),
    ],
)
def test_a_wrong_parameter_of_an_output_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        wanted([output("y", **values)])


def test_wanted_output_requested_twice_comes_once_as_asked_for_last() -> None:
    assert wanted([output("y"), output("z"), output("y", classification=1)]) == (Wanted("y", 1), Wanted("z"))


def test_a_tensor_without_a_region_has_no_place() -> None:
    assert place(given_as(binary_data_size=4), "input 'x'") is None


def test_a_refusal_is_short_however_long_the_name() -> None:
    with pytest.raises(InvalidInput) as refused:
        wanted([output("y" * 100_000, classification=-1)])
    assert len(str(refused.value)) < 200

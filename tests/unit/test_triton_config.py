"""A model's config.pbtxt: fields with effect, fields without, and invalid ones."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import ConfigError
from edged.models.entries import read_config, read_labels
from edged.models.triton_config import (
    Control,
    DynamicBatching,
    QueuePolicy,
    SequenceBatching,
    State,
    Step,
    TensorConfig,
    TritonConfig,
    VersionPolicy,
    Warmup,
    WarmupInput,
)
from edged.models.triton_text import MOST_BYTES, read_json, read_text, unused
from edged.proto import model_config_pb2 as pb
from tests.waiting import ends_despite_fifo

WHOLE = """
# A comment.
name: "m"
platform: "onnxruntime_onnx"
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "x" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] },
  { name: "text" data_type: TYPE_STRING dims: 1 }
]
output { name: "y", data_type: TYPE_FP16, dims: [ 1000 ], label_filename: "labels.txt" }
version_policy { latest { num_versions: 2 } }
default_model_filename: "net.onnx"
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 500
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1000 max_queue_size: 16 }
  priority_queue_policy { key: 1 value { allow_timeout_override: true } }
}
model_warmup {
  name: "first"
  batch_size: 4
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3, 8, 8 ] random_data: true } }
  inputs { key: "text" value { data_type: TYPE_STRING dims: 1 input_data_file: "text.raw" } }
}
model_transaction_policy { decoupled: true }
"""

SEQUENCE = """
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  oldest { max_candidate_sequences: 4 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  state {
    input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: [ 2, 64 ]
    initial_state { data_type: TYPE_FP32 dims: [ 2, 64 ] data_file: "h0" name: "zero" }
  }
}
"""


def read(text: str) -> TritonConfig:
    return read_text(text.encode(), "m")


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert "inference." not in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


# -- fields with effect ---------------------------------------------------------------------------------------------


def test_read_text_reads_every_field_with_effect() -> None:
    assert read(WHOLE) == TritonConfig(
        max_batch_size=8,
        inputs=(TensorConfig("x", "FP32", (3, -1, -1)), TensorConfig("text", "BYTES", (1,))),
        outputs=(TensorConfig("y", "FP16", (1000,), None, "labels.txt"),),
        versions=VersionPolicy(latest=2),
        dynamic=DynamicBatching(
            preferred=(4, 8),
            max_delay=pytest.approx(0.0005),
            levels=2,
            default_level=2,
            policy=QueuePolicy(16, pytest.approx(0.001), delay=True),
            policies={1: QueuePolicy(allow_override=True)},
        ),
        decoupled=True,
        model_file="net.onnx",
        warmups=(
            Warmup(
                "first",
                4,
                1,
                (
                    WarmupInput("text", "BYTES", (1,), "file", "text.raw"),
                    WarmupInput("x", "FP32", (3, 8, 8), "random"),
                ),
            ),
        ),
    )


def test_read_text_reads_sequences() -> None:
    assert read(SEQUENCE).sequence == SequenceBatching(
        "oldest",
        5.0,
        (Control("START", "start", "INT32", (0.0, 1.0)), Control("ID", "corrid", "UINT64")),
        (State("h", "hn", "FP32", (2, 64), "h0", (2, 64)),),
        4,
    )


def test_read_json_in_either_spelling_equals_text() -> None:
    message = text_format.Parse(WHOLE, pb.ModelConfig())
    for keeps_names in (True, False):
        written = json_format.MessageToJson(message, preserving_proto_field_name=keeps_names)
        assert read_json(written, "m") == read(WHOLE)


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_read_text_empty_is_the_default(text: str) -> None:
    assert read(text) == TritonConfig()


@pytest.mark.parametrize(("shape", "dims"), [("shape: [ 2, 2 ]", (2, 2)), ("", ())])
def test_read_text_reshape_is_the_models_shape(shape: str, dims: tuple[int, ...]) -> None:
    tensor = read(f'input {{ name: "x" dims: [ 4 ] reshape {{ {shape} }} }}').inputs[0]
    assert (tensor.dims, tensor.model_dims) == ((4,), dims)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("version_policy { all { } }", VersionPolicy(latest=0)),
        ("version_policy { latest { } }", VersionPolicy(latest=1)),
        ("version_policy { specific { versions: [ 3, 1 ] } }", VersionPolicy(named=(1, 3))),
        ("version_policy { }", None),
    ],
)
def test_read_text_reads_version_policies(text: str, policy: VersionPolicy | None) -> None:
    assert read(text).versions == policy


# -- fields without effect ------------------------------------------------------------------------------------------


def test_read_unknown_names_are_reported_with_line_or_path() -> None:
    written = {"frobnicate": 3, "input": [{"name": "x", "wibble": {"a": 1}}], "parameters": {}}
    unknown = ("frobnicate: unknown to edged", "input.wibble: unknown to edged")
    assert read_json(json.dumps(written), "m").unused == unknown
    config = read(
        'name: "m"\nfrobnicate: 3\ninput {\n  name: "x"\n  wibble { a: "s" "t" b: [ 1, -2 ] c < d: 1 > }\n}\n'
        "dynamic_batching { preferred_batch_size: [ 1 ]\n strange: [ { a: 1 }, { b: 2 } ] }"
    )
    assert config.unused == (
        "line 2: frobnicate: unknown to edged",
        "line 5: input.wibble: unknown to edged",
        "line 8: dynamic_batching.strange: unknown to edged",
    )
    assert config.inputs == (TensorConfig("x"),)
    assert config.dynamic == DynamicBatching(preferred=(1,))


def test_read_text_unknown_names_after_negative_values_and_in_lists() -> None:
    text = 'wibble: -1\ninput [ { zz: 1 name: "k" }, { name: "l" yy { a: 1 } } ] max_batch_size: 1'
    config = read(text)
    assert [line.split(":")[1].strip() for line in config.unused] == ["wibble", "input.zz", "input.yy"]
    assert [tensor.name for tensor in config.inputs] == ["k", "l"]


def test_read_text_in_one_long_line_takes_about_as_long_as_in_many() -> None:
    def seconds(between: str) -> float:
        text = f"ensemble_scheduling {{step{{{between.join(['}step{'] * 4000)}}}}} #{'-' * 200_000}".encode()
        before = time.process_time()
        with pytest.raises(ConfigError, match="platform"):
            read_text(text, "m")
        return time.process_time() - before

    seconds("\n")  # imports and caches
    assert seconds(" ") < 4 * seconds("\n")


def test_read_name_with_line_break_is_reported_in_one_line() -> None:
    lines = [
        *read_json('{"a\\nb": 1, "parameters": {"c\\nd": {"string_value": "x"}}}', "m").unused,
        *read_text(b'parameters { key: "e\\nf" value { string_value: "x" } }', "m").unused,
    ]
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def test_read_text_endless_wait_is_limited() -> None:
    most = (1 << 64) - 1
    config = read_text(
        f"dynamic_batching {{ max_queue_delay_microseconds: {most} default_queue_policy {{ "
        f"default_timeout_microseconds: {most} }} }}".encode(),
        "m",
    )
    idle = read_text(f"sequence_batching {{ max_sequence_idle_microseconds: {most} }}".encode(), "m").sequence
    assert config.dynamic is not None
    assert idle is not None
    for seconds in (config.dynamic.max_delay, config.dynamic.policy.timeout, idle.idle):
        assert 86400 <= seconds < 1e9
        pb.ModelDynamicBatching(max_queue_delay_microseconds=round(seconds * 1e6))


# Fields with effect, including their parts, and fields that are refused.
_KNOWN = """
name platform backend max_batch_size default_model_filename version_policy model_warmup model_transaction_policy
sequence_batching.max_sequence_idle_microseconds sequence_batching.control_input sequence_batching.state.input_name
sequence_batching.state.output_name sequence_batching.state.data_type sequence_batching.state.dims
sequence_batching.state.initial_state dynamic_batching.preferred_batch_size
dynamic_batching.max_queue_delay_microseconds dynamic_batching.priority_levels dynamic_batching.default_priority_level
dynamic_batching.default_queue_policy dynamic_batching.priority_queue_policy input.name input.data_type input.dims
output.name output.data_type output.dims output.label_filename instance_group.name instance_group.kind
instance_group.gpus batch_input batch_output ensemble_scheduling.step.model_name
ensemble_scheduling.step.model_version ensemble_scheduling.step.input_map ensemble_scheduling.step.output_map
"""
VALUES = {FieldDescriptor.CPPTYPE_STRING: "s", FieldDescriptor.CPPTYPE_BOOL: True, FieldDescriptor.CPPTYPE_DOUBLE: 1.5}


def leaves(message: Descriptor, path: str = "") -> Iterator[tuple[str, dict[str, object]]]:
    """Yield every field below a message, with JSON in which only this field is set."""
    for field in message.fields:
        name, inner = f"{path}{field.name}", field.message_type
        is_map = inner is not None and inner.GetOptions().map_entry
        found: list[tuple[str, object]]
        if inner is not None and is_map:
            found = [(name, {"1": {} if inner.fields_by_name["value"].message_type else "v"})]
        elif inner is not None:
            found = list(leaves(inner, f"{name}."))
        elif field.enum_type is not None:
            if len(field.enum_type.values) == 1:
                continue  # the default
            found = [(name, field.enum_type.values[-1].name)]
        else:
            found = [(name, VALUES.get(field.cpp_type, 2))]
        for deeper, value in found:
            yield deeper, {field.name: [value] if field.is_repeated and not is_map else value}


UNUSED = {
    path: tree
    for path, tree in leaves(pb.ModelConfig.DESCRIPTOR)
    if not any(path == known or path.startswith(f"{known}.") for known in _KNOWN.split())
}


@pytest.mark.parametrize("path", UNUSED)
def test_unused_reports_every_field_without_effect(path: str) -> None:
    lines = unused(json_format.ParseDict(UNUSED[path], pb.ModelConfig()))
    assert any(line.startswith(path) for line in lines), lines
    assert all("\n" not in line for line in lines)


def test_read_text_many_unknown_names_are_cut_short() -> None:
    lines = read("\n".join(f"strange_{number}: 1" for number in range(500))).unused
    assert len(lines) == 51
    assert lines[-1] == "and 450 more"


def test_unused_reports_devices_once() -> None:
    for group in ("kind: KIND_CPU", "kind: KIND_GPU", "gpus: 1"):
        lines = read(f"instance_group [ {{ {group} count: 2 }} ]").unused
        assert [line.partition(":")[0] for line in lines] == ["instance_group.count", "instance_group.kind"]
    assert read("instance_group [ { kind: KIND_AUTO count: 1 } ]").unused == ()


# -- ensembles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ['platform: "ensemble"', 'backend: "ensemble"'])
def test_read_text_ensemble_has_steps(head: str) -> None:
    config = read(
        head
        + """
        input { name: "X" data_type: TYPE_FP32 dims: 4 optional: true }
        ensemble_scheduling {
        step { model_name: "a" model_version: -1 input_map { key: "x" value: "X" } output_map { key: "y" value: "t" } }
        step { model_name: "b" model_version: 3 input_map { key: "x" value: "t" } output_map { key: "y" value: "Y" } }
          max_inflight_requests: 4
        }
        """
    )
    assert config.steps == (Step("a", "", {"x": "X"}, {"y": "t"}), Step("b", "3", {"x": "t"}, {"y": "Y"}))
    assert config.inputs[0].optional
    assert [line.partition(":")[0] for line in config.unused] == ["ensemble_scheduling.max_inflight_requests"]


def test_read_text_model_with_a_file_has_no_steps() -> None:
    assert read("max_batch_size: 1").steps is None
    assert read('platform: "ensemble"').steps == ()


# -- invalid configurations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name: "other"', "'other', not 'm'"),
        ('platform: "tensorrt_plan"', "platform 'tensorrt_plan' is not for ONNX models"),
        ('backend: "python"', "backend 'python' is not for ONNX models"),
        ("ensemble_scheduling { }", 'set platform: "ensemble"'),
        ('platform: "ensemble" backend: "onnxruntime"', "set only one of them"),
        ('platform: "onnxruntime_onnx" backend: "ensemble"', "set only one of them"),
        ('platform: "ensemble" instance_group { count: 2 }', "instance_group cannot be used for an ensemble"),
        ('backend: "ensemble" optimization { }', "optimization cannot be used for an ensemble"),
        ('platform: "ensemble" model_warmup { name: "w" }', "model_warmup cannot be used for an ensemble"),
        ('platform: "ensemble" model_transaction_policy { decoupled: true }', "one response"),
        ('platform: "ensemble" input { name: "X" dims: 1 reshape { shape: 1 } }', "reshape is not supported"),
        ('platform: "ensemble" batch_input { }', "batch_input"),
        ("batch_input { }", "batch_input"),
        ("max_batch_size: -1", "max_batch_size -1"),
        ('default_model_filename: "../../etc/passwd"', "is not the name of a file"),
        ('default_model_filename: "/etc/passwd"', "is not the name of a file"),
        ('output { name: "y" label_filename: "../x" }', "label_filename"),
        ("input { dims: 1 }", "has no name"),
        ('input { name: "x" dims: 0 }', "dims [0]"),
        ('input { name: "x" dims: -2 }', "dims [-2]"),
        ('input { name: "x" data_type: 77 }', "77"),
        ("dynamic_batching { preferred_batch_size: 9 } max_batch_size: 8", "preferred_batch_size 9"),
        ("dynamic_batching { priority_levels: 2 }", "default_priority_level 0"),
        ("dynamic_batching { default_priority_level: 1 }", "default_priority_level 1"),
        ("dynamic_batching { priority_queue_policy { key: 1 value { } } }", "priority_queue_policy has level 1"),
        ("version_policy { specific { } }", "version_policy"),
        ("version_policy { specific { versions: -1 } }", "version_policy"),
        ("version_policy { all { } latest { } }", "another member of oneof"),
        ('sequence_batching { control_input { name: "a" control { } } }', "no values"),
        (
            'sequence_batching { control_input { name: "a" control { int32_false_true: 1 } } }',
            "1 values; give two",
        ),
        ('sequence_batching { state { input_name: "h" } }', "no output_name"),
        (
            'sequence_batching { state { input_name: "h" output_name: "o" initial_state { data_file: "../h" } } }',
            "data_file",
        ),
        ('model_warmup { name: "w" batch_size: 9 } max_batch_size: 8', "batch_size 9"),
        ('model_warmup { name: "w" inputs { key: "x" value { dims: -1 zero_data: true } } }', "dims"),
        ('model_warmup { name: "w" inputs { key: "x" value { dims: 1 } } }', "has no data"),
        ('model_warmup { name: "w" inputs { key: "x" value { input_data_file: "/x" } } }', "input_data_file"),
        ("max_batch_size: 99999999999999", "99999999999999"),
        ('max_batch_size: "x"', "1:17"),
        ("input { name: ", "cannot be parsed"),
        ("}", "cannot be parsed"),
        ("[a.b]: 1", "extensions"),
        ("x { " * 20_000, "nested too deeply"),
        ("x: [" * 50_000, ""),
        ('name: "\\xff"', "cannot be parsed"),
        pytest.param(f'input {{ name: "{"x" * 100_000}" dims: 0 }}', "xxx", id="long name"),
        pytest.param("x" * (MOST_BYTES + 1), "KiB", id="too long"),
    ],
)
def test_read_text_invalid_is_refused_in_one_line(text: str, words: str) -> None:
    assert words in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "nan", "3", '{"input": 3}', '{"input": [3]}', '{"parameters": [1]}', '{"parameters": {"a": 3}}'),
        *('{"a":' * 9000, '{"name": "\\ud800"}', '{"max_batch_size": 1e99}', '{"name": "other"}'),
        *('{"\\ud800": 1}', '{"input": [{"name": "x", "data_type": "TYPE_FOO"}]}', '{"dynamic_batching": "yes"}'),
        *('{"parameters": {"a": "b"}}', '{"input": [{"name": "x", "reshape": "3"}]}'),
        " " * (MOST_BYTES + 1),
    ],
)
def test_read_json_invalid_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_json(text, "m")
    assert "\n" not in str(caught.value)


def test_read_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ConfigError):
        read_text(b"\xff\xfe", "m")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet='{}[]<>:;,"\\#\n xname-1.', max_size=200).map(str.encode))
def test_read_text_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ConfigError):  # no other error is allowed
        read_text(data, "m")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 40), st.text(max_size=5))
def test_read_text_damaged_is_read_or_refused(at: int, cut: int, put: str) -> None:
    damaged = WHOLE[:at] + put + WHOLE[at + cut :]
    with contextlib.suppress(ConfigError):  # no other error is allowed
        read_text(damaged.encode(errors="replace"), "m")


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [field.name for field in pb.ModelConfig.DESCRIPTOR.fields] + ["dims", "value", "key", "name"]
                ),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_read_json_any_tree_is_read_or_refused(tree: object) -> None:
    with contextlib.suppress(ConfigError):  # no other error is allowed
        read_json(json.dumps(tree), "m")


# -- files ----------------------------------------------------------------------------------------------------------


def test_read_config_reads_again_after_a_change(tmp_path: Path) -> None:
    assert read_config(tmp_path, "m") == (None, "")
    place = tmp_path / "config.pbtxt"
    place.write_text("max_batch_size: 2")
    config, problem = read_config(tmp_path, "m")
    assert config is not None
    assert (config.max_batch_size, problem) == (2, "")
    place.write_text("max_batch_size: 16")
    config, _ = read_config(tmp_path, "m")
    assert config is not None
    assert config.max_batch_size == 16


def test_read_config_unreadable_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").mkdir()
    config, problem = read_config(tmp_path, "m")
    assert config is None
    assert problem.startswith("config.pbtxt")


def test_read_config_of_a_fifo_does_not_block(tmp_path: Path) -> None:
    fifo = tmp_path / "config.pbtxt"
    os.mkfifo(fifo)
    assert ends_despite_fifo(lambda: read_config(tmp_path, "m"), fifo)


def test_read_labels_are_the_lines_of_their_file(tmp_path: Path) -> None:
    config = read('output { name: "y" label_filename: "labels.txt" } output { name: "z" }')
    labels, problem = read_labels(tmp_path, config)
    assert labels == {}
    assert "'labels.txt' of output 'y' cannot be read" in problem
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    assert read_labels(tmp_path, config) == ({"y": ("cat", "dog")}, "")

"""A config.pbtxt and its ONNX file: contradictions, declared tensors, batches and warm-ups."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edged.backends.contract import Signature
from edged.engines.plan import tensor_batching
from edged.engines.probe import inputs_of
from edged.errors import ConfigError
from edged.models.entries import ModelEntry
from edged.models.inspection import Inspection
from edged.models.model import Model
from edged.models.triton_check import check, declared, is_batchable, max_batch_size
from edged.models.triton_config import QueuePolicy, TritonConfig
from edged.models.triton_text import read_text
from edged.serving.schedule import Batching, TensorBatching
from edged.tensors import ANY_SHAPE, TensorSpec

BATCHED = Signature(
    (TensorSpec("x", "FP32", ("n", 3, "h", "w")), TensorSpec("text", "BYTES", ("n", 1))),
    (TensorSpec("y", "FP32", ("n", 10)),),
)
FIXED = Signature((TensorSpec("x", "FP32", (1, 4)),), (TensorSpec("y", "FP32", (1, 4)),))


def read(text: str) -> TritonConfig:
    return read_text(text.encode(), "m")


def model(text: str, signature: Signature = BATCHED, folder: str = "", **settings: str) -> Model:
    entry = ModelEntry("m", "1", "/nowhere/m.onnx", settings, "1", folder=folder, triton=read(text))
    return Model.of(entry, Inspection("d", "d", 1, 10, {"": 20}, "tests", {}, signature, {"Identity": 1}, 0, 0, 0, ()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 3, 640, 640 ] }',
        'max_batch_size: 8 input { name: "x" dims: [ 3, -1, -1 ] } output { name: "y" dims: 10 }',
        'input { name: "x" dims: [ -1, 3, 8, 8 ] }',
        'input { name: "x" data_type: TYPE_FP32 }',
        'max_batch_size: 2 input { name: "x" dims: [ 48 ] reshape { shape: [ 3, 4, 4 ] } }',
    ],
)
def test_check_accepts_a_configuration_that_agrees_with_the_file(text: str) -> None:
    check(read(text), BATCHED)


def test_check_fixed_first_dimension_is_no_batch() -> None:
    with pytest.raises(ConfigError, match="'x'"):
        check(read("max_batch_size: 8"), FIXED)
    check(read("max_batch_size: 0"), FIXED)
    assert max_batch_size(FIXED, {"batch.max": "4"}, TritonConfig()) == 0
    assert not is_batchable(FIXED)
    assert not is_batchable(Signature((TensorSpec("x", "FP32", ANY_SHAPE),), BATCHED.outputs))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('input { name: "z" }', "input 'z', which the model does not have; it has x, text"),
        ('output { name: "x" }', "output 'x', which the model does not have; it has y"),
        ('input { name: "x" } input { name: "x" }', "names input 'x' twice"),
        ('input { name: "x" data_type: TYPE_FP16 }', "input 'x' is FP16; in the model it is FP32"),
        ('output { name: "y" data_type: TYPE_INT64 }', "output 'y' is INT64; in the model it is FP32"),
        ('max_batch_size: 8 input { name: "x" dims: [ 1, 8, 8 ] }', "without its batch dimension: [3, -1, -1]"),
        ('max_batch_size: 8 input { name: "x" dims: [ 8, 3, 8, 8 ] }', "input 'x' has dims [8, 3, 8, 8]"),
        ('input { name: "x" dims: [ 3, 8, 8 ] }', "in the model: [-1, 3, -1, -1]"),
        ('input { name: "x" dims: [ -1, -1, 8, 8 ] }', "in the model: [-1, 3, -1, -1]"),
        ('sequence_batching { state { input_name: "h" output_name: "y" } }', "'h', which the model does not have"),
        (
            'sequence_batching { control_input { name: "x" control { int32_false_true: [0, 1] } } }',
            "control input 'x' is INT32; in the model it is FP32",
        ),
        ('model_warmup { name: "w" }', "model_warmup 'w' has no input 'x'"),
        (
            'max_batch_size: 2 model_warmup { name: "w" batch_size: 2'
            ' inputs { key: "x" value { dims: [ 4, 8, 8 ] zero_data: true } }'
            ' inputs { key: "text" value { dims: [ 1 ] zero_data: true } } }',
            "input 'x' is [-1, 3, -1, -1] in the model, not [2, 4, 8, 8]",
        ),
        (
            'max_batch_size: 2 model_warmup { name: "w"'
            ' inputs { key: "x" value { dims: [ 3, 99999, 99999 ] zero_data: true } }'
            ' inputs { key: "text" value { dims: [ 1 ] zero_data: true } } }',
            "MiB",
        ),
    ],
)
def test_check_refuses_a_contradiction_and_names_the_tensor(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(read(text), BATCHED)
    assert words in str(caught.value)


def test_declared_has_the_dims_that_the_configuration_fixes() -> None:
    config = read('max_batch_size: 8 input { name: "x" dims: [ 3, 640, -1 ] }')
    assert [spec.dims for spec in declared(config, BATCHED).inputs] == [(-1, 3, 640, -1), (-1, 1)]
    assert declared(TritonConfig(), BATCHED) == BATCHED
    anything = Signature((TensorSpec("x", "FP32", ANY_SHAPE),), (TensorSpec("y", "FP32", ANY_SHAPE),))
    (spec,) = declared(read('max_batch_size: 4 input { name: "x" dims: [ 3 ] }'), anything).inputs
    assert spec.dims == (-1, 3)


# -- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "settings", "rows"),
    [
        ("", {}, 0),
        ("", {"batch.max": "4"}, 4),
        ("", {"profile.x": "1x3x8x8 1x3x8x8 6x3x8x8"}, 6),
        ("max_batch_size: 8", {}, 8),
        ("max_batch_size: 8", {"batch.max": "4"}, 4),
        ("max_batch_size: 8", {"batch.max": "16"}, 8),
        ('input { name: "x" }', {"batch.max": "4"}, 0),
    ],
)
def test_max_batch_size_depends_on_configuration_and_settings(text: str, settings: dict[str, str], rows: int) -> None:
    assert max_batch_size(BATCHED, settings, read(text)) == rows


@pytest.mark.parametrize(
    ("text", "signature", "most", "is_noted"),
    [
        ('input { name: "x" }', BATCHED, "4", True),
        ('output { name: "y" }', BATCHED, "4", True),
        ('input { name: "x" }', BATCHED, "1", False),
        ('max_batch_size: 8 input { name: "x" }', BATCHED, "4", False),
        ("", BATCHED, "4", False),
        ('input { name: "x" }', FIXED, "4", False),
    ],
)
def test_batch_max_without_effect_is_noted(text: str, signature: Signature, most: str, is_noted: bool) -> None:
    notes = model(text, signature, **{"batch.max": most}).notes
    assert any("batch.max" in note for note in notes) is is_noted


ROWS = Signature((TensorSpec("x", "FP32", ("n", 3, "h", "w")),), (TensorSpec("y", "FP32", ("n", 10)),))


@pytest.mark.parametrize(
    ("signature", "text", "settings", "gain", "rows"),
    [
        (ROWS, "", {}, 1.0, 4),
        (ROWS, "", {}, 0.0, 0),
        (ROWS, "", {"batch.max": "2"}, 1.0, 2),
        (ROWS, "", {"profile.x": "1x3x8x8 1x3x8x8 6x3x8x8"}, 1.0, 6),
        (ROWS, "", {"decoupled": "true"}, 1.0, 0),
        (ROWS, 'input { name: "x" }', {}, 1.0, 0),
        (BATCHED, "", {}, 1.0, 0),
        (FIXED, "", {}, 1.0, 0),
    ],
    ids=["completed", "dependent rows", "set", "by a range", "decoupled", "described", "text", "fixed"],
)
def test_max_batch_size_is_completed_unless_configured_or_impossible(
    signature: Signature, text: str, settings: dict[str, str], gain: float, rows: int
) -> None:
    found = msgspec.structs.replace(model(text, signature, **settings), batch_gain=gain)
    assert found.max_batch_size == rows


@pytest.mark.parametrize(("gain", "limit"), [(0.0, 1), (1.1, 1), (1.3, 4), (3.0, 4)])
def test_tensor_batching_of_a_completed_model_depends_on_the_gain(gain: float, limit: int) -> None:
    assert tensor_batching(msgspec.structs.replace(model("", ROWS), batch_gain=gain)).batching == Batching(limit)


def test_tensor_batching_is_read_from_the_configuration() -> None:
    found = tensor_batching(
        model(
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 2000"
            " priority_levels: 2 default_priority_level: 2 default_queue_policy { max_queue_size: 3 }"
            " priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1000000 } } }"
        )
    )
    assert found == TensorBatching(
        Batching(8, 0.002, (4,)), QueuePolicy(3), 2, 2, {1: QueuePolicy(timeout=1.0, delay=True)}
    )


def test_tensor_batching_has_defaults_and_settings() -> None:
    assert tensor_batching(model("")) == tensor_batching(model("max_batch_size: 8")) == TensorBatching()
    settings = {"batch.max": "4", "batch.wait_ms": "5"}
    assert tensor_batching(model("", **settings)).batching == Batching(4, 0.005)


# -- warm-up --------------------------------------------------------------------------------------------------------

WARM = (
    'max_batch_size: 4 model_warmup { name: "w" batch_size: 2'
    ' inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3, 2, 2 ] %s } }'
    ' inputs { key: "text" value { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } } }'
)


def warm(data: str, folder: str = "") -> dict[str, tuple[tuple[int, ...], bytes]]:
    of = model(WARM % data, folder=folder)
    return {t.name: (t.shape, bytes(t.data)) for t in inputs_of(of.triton.warmups[0], of)}  # type: ignore[arg-type]


def test_warm_up_inputs_are_zeros_or_random() -> None:
    zeros, random = warm("zero_data: true"), warm("random_data: true")
    assert zeros == {"x": ((2, 3, 2, 2), bytes(96)), "text": ((2, 1), bytes(8))}
    assert random["x"][0] == (2, 3, 2, 2)
    assert len(random["x"][1]) == 96
    assert random["x"][1] != bytes(96)
    assert random == warm("random_data: true")


def test_warm_up_inputs_are_read_from_a_file_of_their_size(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "x.raw").write_bytes(bytes(range(96)))
    assert warm('input_data_file: "x.raw"', str(tmp_path))["x"][1] == bytes(range(96))
    (tmp_path / "warmup" / "x.raw").write_bytes(b"short")
    with pytest.raises(ConfigError, match="'w'"):
        warm('input_data_file: "x.raw"', str(tmp_path))


def test_warm_up_inputs_have_controls_and_states() -> None:
    signature = Signature(
        (TensorSpec("x", "FP32", ("n", 2)), TensorSpec("START", "INT32", ("n", 1)), TensorSpec("h", "FP32", ("n", 3))),
        (TensorSpec("y", "FP32", ("n", 2)), TensorSpec("hn", "FP32", ("n", 3))),
    )
    of = model(
        'max_batch_size: 4 sequence_batching { control_input { name: "START"'
        " control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }"
        ' state { input_name: "h" output_name: "hn" data_type: TYPE_FP32 dims: 3 } }'
        ' model_warmup { name: "w" batch_size: 2 inputs { key: "x" value { dims: 2 zero_data: true } } }',
        signature,
    )
    made = {tensor.name: tensor.shape for tensor in inputs_of(of.triton.warmups[0], of)}
    assert made == {"x": (2, 2), "START": (2, 1), "h": (2, 3)}

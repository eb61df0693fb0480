"""A model's state between requests: from settings, from a configuration, or recognised by names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from edged.api.inference.requests import Options
from edged.api.inference.sequences import StateTensor, filled, reads_disk
from edged.backends.contract import Signature
from edged.errors import ConfigError, InvalidInput, InvalidTensor, NotReady
from edged.models import settings
from edged.models.sequencing import Sequencing, is_decoupled, sequencing
from edged.models.triton_config import Control, SequenceBatching, State
from edged.serving.work import InputTensor
from edged.tensors import TensorSpec

# The signatures of two versions of silero-vad.
VOICE = Signature(
    (
        TensorSpec("input", "FP32", ("?", "?")),
        TensorSpec("state", "FP32", (2, "?", 128)),
        TensorSpec("sr", "INT64", ()),
    ),
    (TensorSpec("output", "FP32", ("?", 1)), TensorSpec("stateN", "FP32", ("?", "?", "?"))),
)
OLD_VOICE = Signature(
    (TensorSpec("input", "FP32", (1, 576)), *(TensorSpec(name, "FP32", (1, 1, 128)) for name in ("h", "c"))),
    tuple(TensorSpec(name, "FP32", (1, "d", 128)) for name in ("hn", "cn")),
)
SUM = Signature(
    (
        TensorSpec("x", "INT32", ("n", 1)),
        TensorSpec("total", "INT32", ("n", 1)),
        TensorSpec("first", "FP32", ("n", 1)),
        TensorSpec("who", "INT8", (1,)),
    ),
    (TensorSpec("y", "INT32", ("n", 1)), TensorSpec("sum", "INT32", ("n", 1))),
)
SETTINGS = {"sequence.state.total": "sum", "sequence.control.first": "start", "sequence.control.who": "corrid"}


def of(
    signature: Signature, chosen: dict[str, str] | None = None, configured: SequenceBatching | None = None
) -> Sequencing:
    found = sequencing(signature, chosen or {}, configured)
    assert found is not None
    return found


def test_sequencing_recognises_states_by_names() -> None:
    assert of(VOICE) == Sequencing((State("state", "stateN", "FP32", (2, -1, 128)),), (), 1.0, declared=False)
    assert [(state.input, state.output) for state in of(OLD_VOICE).states] == [("h", "hn"), ("c", "cn")]
    assert of(VOICE).inputs == {"state"}
    assert of(VOICE).outputs == {"stateN"}


@pytest.mark.parametrize(
    "kept",
    [
        TensorSpec("stateN", "FP16", (2, "?", 128)),
        TensorSpec("stateN", "FP32", (3, "?", 128)),
        TensorSpec("stateN", "FP32", (2, "?")),
        TensorSpec("statement", "FP32", (2, "?", 128)),
    ],
)
def test_sequencing_unfit_output_is_not_a_state(kept: TensorSpec) -> None:
    assert sequencing(Signature(VOICE.inputs, (VOICE.outputs[0], kept)), {}) is None
    assert sequencing(Signature(SUM.inputs[:1], SUM.outputs[:1]), {}) is None


def test_sequencing_settings_override_the_configuration() -> None:
    plan = of(SUM, {**SETTINGS, "sequence.idle_ms": "2500"})
    assert plan.states == (State("total", "sum", "INT32", (-1, 1)),)
    assert plan.controls == (Control("first", "start", "FP32"), Control("who", "corrid", "INT8"))
    assert (plan.idle, plan.declared) == (2.5, True)
    configured = SequenceBatching(idle=9.0, states=(State("total", "y", "INT32", (1,)),))
    assert of(SUM, {}, configured).states[0].output == "y"
    assert of(SUM, SETTINGS, configured).states[0].output == "sum"
    assert of(SUM, SETTINGS, configured).idle == 9.0


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"sequence.state.nobody": "sum"}, "the model has no input 'nobody'"),
        ({"sequence.state.total": "nobody"}, "'nobody', which is not an output"),
        ({"sequence.state.first": "sum"}, "the input is FP32, output 'sum' is INT32"),
        ({"sequence.control.nobody": "start"}, "the model has no input 'nobody'"),
        ({"sequence.state.who": "sum"}, "must be equal"),
    ],
)
def test_sequencing_that_does_not_fit_the_model_is_refused(chosen: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sequencing(SUM, chosen)


@pytest.mark.parametrize(("datatype", "kind"), [("BYTES", "start"), ("BYTES", "ready"), ("BF16", "corrid")])
def test_sequencing_control_of_unfit_datatype_is_refused(datatype: str, kind: str) -> None:
    signature = Signature((TensorSpec("c", datatype, (1,)),), (TensorSpec("y", "FP32", (1,)),))
    with pytest.raises(ConfigError, match=f"'c' is {datatype}, which cannot hold the control '{kind}'"):
        sequencing(signature, {"sequence.control.c": kind})


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"sequence.idle_ms": "0"}, "milliseconds from 1"),
        ({"sequence.idle_ms": "-1"}, "milliseconds"),
        ({"sequence.idle_ms": "1" * 99}, "milliseconds"),
        ({"sequence.control.x": "begin"}, "choose from start, ready, end, corrid"),
        ({"sequence.control.": "start"}, "write sequence.state.INPUT"),
        ({"sequence.state.": "y"}, "write sequence.state.INPUT"),
        ({"sequence.state.x": ""}, "write sequence.state.INPUT"),
        ({"sequence.stat.x": "y"}, "write sequence.state.INPUT"),
        ({"decoupled": "yes"}, "choose true or false"),
    ],
)
def test_validate_impossible_sequence_setting_is_refused(chosen: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings.validate(chosen)


def test_is_decoupled_setting_overrides_the_configuration() -> None:
    settings.validate({**SETTINGS, "decoupled": "true"})
    assert is_decoupled({"decoupled": "true"})
    assert is_decoupled({}, configured=True)
    assert not is_decoupled({"decoupled": "false"}, configured=True)
    assert not is_decoupled({})


# -- inputs that edged fills ----------------------------------------------------------------------------------------


def given(name: str, array: np.ndarray, datatype: str = "FP32") -> InputTensor:
    return InputTensor(name, datatype, array.shape, array.tobytes())


def made(
    plan: Sequencing,
    signature: Signature,
    options: Options,
    *tensors: InputTensor,
    state: dict[str, StateTensor] | None = None,
) -> dict[str, InputTensor]:
    return {each.name: each for each in filled(plan, signature, Path("nowhere"), options, tensors, state)}


@pytest.mark.parametrize("rows", [1, 3])
def test_filled_first_request_has_zeros_of_the_batch_size(rows: int) -> None:
    sound = given("input", np.zeros((rows, 512), np.float32))
    rate = given("sr", np.array(16000, np.int64), "INT64")
    state = made(of(VOICE), VOICE, Options(7, True), rate, sound)["state"]
    assert state.shape == (2, rows, 128)
    assert state.data == bytes(4 * 2 * rows * 128)


def test_filled_optional_input_sets_no_size() -> None:
    sound, bias = given("input", np.zeros((3, 512), np.float32)), given("bias", np.zeros(7, np.float32))
    expected = made(of(VOICE), VOICE, Options(7, True), sound)
    assert made(of(VOICE), VOICE, Options(7, True), bias, sound) == expected
    assert expected["state"].shape == (2, 3, 128)


def test_filled_dimensions_of_one_name_are_equal() -> None:
    signature = Signature(
        (TensorSpec("x", "FP32", ("n", "length")), TensorSpec("h", "FP32", ("length", "n"))),
        (TensorSpec("hn", "FP32", ("length", "n")),),
    )
    assert made(of(signature), signature, Options(7, True), given("x", np.zeros((2, 5), np.float32)))["h"].shape == (
        5,
        2,
    )


def test_filled_returns_the_stored_state() -> None:
    kept = {"state": StateTensor((2, 1, 128), b"\1" * 1024)}
    state = made(of(VOICE), VOICE, Options(7), given("input", np.zeros((1, 512), np.float32)), state=kept)["state"]
    assert (state.shape, state.data) == (kept["state"].shape, kept["state"].data)


def test_filled_controls_show_the_position_in_the_sequence() -> None:
    plan = of(SUM, {**SETTINGS, "sequence.control.first": "start"})
    x = given("x", np.zeros((2, 1), np.int32), "INT32")
    inputs = made(plan, SUM, Options(-7, True), x)
    assert inputs["first"].data == np.ones((2, 1), np.float32).tobytes()
    assert inputs["who"].data == np.array([-7], np.int8).tobytes()
    assert made(plan, SUM, Options(7, False), x)["first"].data == bytes(8)
    for kind, options in (("end", Options(7, ends=True)), ("ready", Options(7))):
        assert made(of(SUM, {"sequence.control.first": kind}), SUM, options, x)["first"].data != bytes(8)


def test_filled_controls_have_configured_values() -> None:
    configured = SequenceBatching(controls=(Control("first", "start", "FP32", (-1.0, 5.0)),))
    x = given("x", np.zeros((1, 1), np.int32), "INT32")
    for starts, value in ((True, 5), (False, -1)):
        inputs = made(of(SUM, {}, configured), SUM, Options(7, starts), x)["first"]
        assert inputs.data == np.array([[value]], np.float32).tobytes()


@pytest.mark.parametrize("identifier", [200, -129, "text"])
def test_filled_id_out_of_range_is_refused(identifier: int | str) -> None:
    with pytest.raises(InvalidTensor, match="'who'"):
        made(of(SUM, SETTINGS), SUM, Options(identifier), given("x", np.zeros((1, 1), np.int32), "INT32"))


def test_filled_huge_state_is_refused() -> None:
    signature = Signature(
        (TensorSpec("x", "FP32", ("n", "length")), TensorSpec("h", "FP32", ("length", "n2"))),
        (TensorSpec("hn", "FP32", ("length", "n2")),),
    )
    x = InputTensor("x", "FP32", (0, 1 << 40), b"")
    with pytest.raises(InvalidTensor, match="smaller batch"):
        made(of(signature), signature, Options(7, True), InputTensor("x", "FP32", (1 << 20, 1 << 40), b""))
    assert made(of(signature), signature, Options(7, True), x)["h"].data == b""


def test_filled_first_request_has_the_content_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    x = given("x", np.zeros((1, 1), np.int32), "INT32")

    def first(file: str) -> InputTensor:
        configured = SequenceBatching(states=(State("total", "sum", "INT32", (1,), file, (1,)),))
        plan = of(SUM, {}, configured)
        assert reads_disk(plan, None) == bool(file)
        assert not reads_disk(plan, {"total": StateTensor((1, 1), bytes(4))})
        return filled(plan, SUM, tmp_path, Options(7, True), (x,), None)[0]

    for number in (5, 6):  # the file is read again after a change
        (tmp_path / "initial_state" / "total").write_bytes(np.array([[number]], np.int32).tobytes())
        os.utime(tmp_path / "initial_state" / "total", ns=(number, number))
        assert first("total").data == np.array([[number]], np.int32).tobytes()
    assert first("").data == bytes(4)
    with pytest.raises(NotReady, match="'lost'"):
        first("lost")
    (tmp_path / "initial_state" / "short").write_bytes(b"abc")
    with pytest.raises(InvalidInput, match="'short' has 3 bytes"):
        first("short")

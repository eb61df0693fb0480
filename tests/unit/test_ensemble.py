"""The graph of an ensemble: which configurations are valid, and how tensors pass from step to step."""

from __future__ import annotations

import msgspec
import pytest

from edged.errors import ConfigError
from edged.models import ensemble
from edged.models.ensemble import Part, Port
from edged.models.triton_config import Step, TensorConfig, TritonConfig
from edged.tensors import TensorSpec


def step(model: str, inputs: str, outputs: str, version: str = "") -> Step:
    """Return a step; maps are written as `x=X y=Y`."""
    maps = (dict(pair.split("=") for pair in text.split()) for text in (inputs, outputs))
    return Step(model, version, *maps)


def config(
    *steps: Step, inputs: str = "X", outputs: str = "Y", rows: int = 0, dims: tuple[int, ...] = (4,)
) -> TritonConfig:
    def tensors(names: str) -> tuple[TensorConfig, ...]:
        return tuple(TensorConfig(name, "FP32", dims) for name in names.split())

    return TritonConfig(max_batch_size=rows, inputs=tensors(inputs), outputs=tensors(outputs), steps=steps)


CHAIN = config(step("a", "x=X", "y=t"), step("b", "x=t", "y=Y"))
DIAMOND = config(
    step("last", "l=left r=right", "y=Y"),  # the order of the steps does not matter
    step("one", "x=t", "y=left"),
    step("two", "x=t", "y=right"),
    step("first", "x=X", "y=t"),
)


@pytest.mark.parametrize("good", [CHAIN, DIAMOND, config(step("a", "x=X z=X", "y=Y"))])
def test_check_pipeline_is_accepted(good: TritonConfig) -> None:
    ensemble.check(good)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (config(), "has 0 steps"),
        (config(*[step("a", "x=X", "y=Y")] * 65), "has 65 steps"),
        (config(step("", "x=X", "y=Y")), "step 0 has no model_name"),
        (config(step("a", "", "y=Y")), "step 0 (model 'a') has no input_map"),
        (config(step("a", "x=X", "")), "step 0 (model 'a') has no output_map"),
        (config(step("a", "x=X =X", "y=Y")), "an empty name in its input_map"),
        (config(step("a", "x=X", "y=Y", "0")), "has the invalid model_version 0; set one from 1 on, or -1"),
        (config(step("a", "x=X", "y=Y", "-2")), "has the invalid model_version -2"),
        (
            config(step("a", "x=X", "y=Y"), step("b", "x=X", "y=Y")),
            "'Y' is an output of a step and an output of another",
        ),
        (config(step("a", "x=X", "y=Y z=Y")), "'Y' is an output of a step and an output of another"),
        (config(step("a", "x=X", "y=Y z=X")), "'X' is an output of a step and an input of the ensemble"),
        (config(step("a", "x=X", "y=Y"), inputs="X Z"), "input 'Z' of the ensemble is not in any input_map"),
        (config(step("a", "x=X", "y=Y"), outputs="Y Z"), "output 'Z' of the ensemble is not in any output_map"),
        (config(step("a", "x=X", "y=Y"), outputs="X Y"), "output 'X' of the ensemble is not in any output_map"),
        (config(step("a", "x=X z=lost", "y=Y")), "input 'z' gets tensor 'lost', which is neither"),
        (config(step("a", "x=X", "y=Y z=t")), "tensor 't' is not used; remove output 'z'"),
        (config(step("a", "x=X z=u", "y=Y w=t"), step("b", "x=t", "y=u")), "cycle: each of the tensors 'Y', 't', 'u'"),
        (config(step("a", "x=X z=t", "y=Y w=t")), "the steps form a cycle"),
        (config(step("a", "x=X", "y=Y"), inputs=""), "needs at least one input"),
        (config(step("a", "x=X", "y=Y"), outputs=""), "needs at least one output"),
        (config(step("a", "x=X", "y=Y"), inputs="X X"), "input 'X' of the ensemble is declared twice"),
        (msgspec.structs.replace(CHAIN, inputs=(TensorConfig("X"),)), "has no data_type"),
    ],
)
def test_check_other_configuration_is_refused(wrong: TritonConfig, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ensemble.check(wrong)
    assert words in str(caught.value)


# -- the models of the steps ------------------------------------------------------------------------------------------


def port(name: str, dims: tuple[int, ...] | None = (4,), datatype: str = "FP32", rows: int = 0) -> Port:
    return Port(name, datatype, dims, rows > 0)


def part(rows: int = 0, dims: tuple[int, ...] | None = (4,), datatype: str = "FP32", gives: str = "FP32") -> Part:
    """Return a model with an input `x` and an output `y`."""
    return Part((port("x", dims, datatype, rows),), (port("y", dims, gives, rows),), rows)


OPTIONAL = msgspec.structs.replace(port("z"), is_optional=True)


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (0, (part(), part())),
        (0, (part(dims=(-1,)), part(dims=None))),
        (8, (part(8), part(16))),
        (8, (part(8), part(dims=(-1, 4)))),  # a model without a batch dimension whose shape has the rows
        (1, (part(8), part())),  # rows of 1 are added and removed
        (0, (part(), msgspec.structs.replace(part(), inputs=(port("x"), OPTIONAL)))),
    ],
)
def test_check_parts_that_fit_are_accepted(rows: int, parts: tuple[Part, ...]) -> None:
    ensemble.check_parts(msgspec.structs.replace(CHAIN, max_batch_size=rows), parts)


@pytest.mark.parametrize(
    ("rows", "parts", "words"),
    [
        (0, (part(gives="FP16"), part()), "'t' is FP16 for step 0 (model 'a') and FP32 for step 1 (model 'b')"),
        (0, (part(datatype="INT8"), part()), "'X' is FP32 for the ensemble and INT8 for step 0"),
        (0, (part(), part(gives="BYTES")), "'Y' is FP32 for the ensemble and BYTES for step 1"),
        (0, (part(), part(dims=(5,))), "'t' is [4] for step 0 (model 'a') and [5] for step 1"),
        (0, (part(), part(dims=(4, 1))), "'t' is [4] for step 0 (model 'a') and [4, 1] for step 1"),
        (8, (part(4), part(8)), "max_batch_size 8, but step 0 (model 'a') has only 4"),
        (8, (part(8), part(dims=(-1, 5))), "'t' is [-1, 4] for step 0 (model 'a') and [-1, 5]"),
        (0, (part(), Part((), (port("y"),))), "step 1 (model 'b'): the model has no input 'x'; it has none"),
        (0, (Part((port("x"),), (port("z"),)), part()), "step 0 (model 'a'): the model has no output 'y'; it has z"),
        (0, (part(), Part((port("x"), port("z")), (port("y"),))), "step 1 (model 'b'): input 'z' of the model is"),
        (0, (part(), msgspec.structs.replace(part(), unfit="it is special")), "step 1 (model 'b'): it is special"),
    ],
)
def test_check_parts_that_do_not_fit_names_tensor_and_step(rows: int, parts: tuple[Part, ...], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ensemble.check_parts(msgspec.structs.replace(CHAIN, max_batch_size=rows), parts)
    assert words in str(caught.value)


def test_specs_have_whole_shapes() -> None:
    ports = ensemble.ports((TensorConfig("X", "FP32", (3, -1)),), 8)
    assert ensemble.specs(ports) == (TensorSpec("X", "FP32", ("?", 3, "?")),)
    assert ensemble.specs(ensemble.ports((TensorConfig("X", "FP32", (3,)),), 0)) == (TensorSpec("X", "FP32", (3,)),)


# -- requests ---------------------------------------------------------------------------------------------------------


def test_needed_leaves_out_steps_of_other_outputs() -> None:
    steps = (step("a", "x=X", "y=t z=Z"), step("b", "x=t", "y=Y"), step("c", "x=X", "y=W"))
    assert ensemble.needed(steps, ["Y"]) == {0, 1}
    assert ensemble.needed(steps, ["Z"]) == {0}
    assert ensemble.needed(steps, ["W", "Z"]) == {0, 2}
    assert ensemble.consumers(steps, {0, 1}) == {"X": 1, "t": 1}


def test_ready_steps_have_all_their_inputs() -> None:
    steps = DIAMOND.steps or ()
    assert list(ensemble.ready(steps, {0, 1, 2, 3}, {"X"})) == [3]
    assert list(ensemble.ready(steps, {0, 1, 2}, {"X", "t"})) == [1, 2]
    assert list(ensemble.ready(steps, {0}, {"X", "t", "left"})) == []


@pytest.mark.parametrize(
    ("to", "shape", "rows", "expected"),
    [
        (port("x", (4,), rows=8), (3, 4), 3, (3, 4)),  # both have a batch dimension
        (port("x", (4,)), (4,), 0, (4,)),  # neither has
        (port("x", (4,), rows=8), (4,), 0, (1, 4)),  # it becomes a batch of 1
        (port("x", (4,), rows=8), (3, 4), 0, (3, 4)),  # its first dimension becomes the rows
        (port("x", (-1, 4)), (3, 4), 3, (3, 4)),  # the rows become a dimension
        (port("x", (4,)), (1, 4), 1, (4,)),  # a batch of 1 becomes a tensor without it
        (port("x", (4,)), (3, 4), 3, (3, 4)),  # does not fit; the model says so
        (port("x", None), (1, 4), 1, (1, 4)),
    ],
)
def test_shape_for_adds_or_removes_only_a_first_dimension_of_one(
    to: Port, shape: tuple[int, ...], rows: int, expected: tuple[int, ...]
) -> None:
    assert ensemble.shape_for(to, shape, rows) == expected

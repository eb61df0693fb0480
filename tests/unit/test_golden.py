"""Golden questions: the same in every run, fit for the model, without what cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from edged.backend import registry
from edged.backend.contract import UNOPTIMISED, Order, Recipe, Session, Signature
from edged.build import golden
from edged.build.golden import Sample
from edged.build.standard import TOLERANCES
from edged.build.verify import judge
from edged.errors import BuildFailed, EngineUnusable, InvalidInput
from edged.tensors import Array, TensorSpec, numpy_dtype
from tests import models


class Echo:
    """Answers with its inputs, unless `refuses` has something against them."""

    def __init__(self, refuses: object = None) -> None:
        self._refuses, self.asked = refuses, list[dict[str, tuple[int, ...]]]()

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        self.asked.append({name: array.shape for name, array in inputs.items()})
        if callable(self._refuses) and self._refuses(inputs):
            raise EngineUnusable("not these")
        return dict(inputs)

    def close(self) -> None:
        pass


def signature(*inputs: tuple[str, tuple[int | str, ...]]) -> Signature:
    specs = tuple(TensorSpec(f"x{index}", datatype, shape) for index, (datatype, shape) in enumerate(inputs))
    return Signature(specs, specs)


def session(folder: Path, proto: onnx.ModelProto) -> tuple[Session, Signature]:
    path, sign = models.save(proto, folder / "model.onnx"), models.signature(proto)
    recipe = Recipe("onnxruntime", optimization=UNOPTIMISED)
    return registry.load("onnxruntime").open(Order(str(path), sign, recipe)), sign


def raw(samples: list[Sample]) -> list[object]:
    return [
        {name: (a.dtype.str, a.shape, a.tolist() if a.dtype == object else a.tobytes()) for name, a in side.items()}
        for sample in samples
        for side in (sample.inputs, sample.outputs)
    ]


@pytest.mark.parametrize("datatype", models.ONNX_TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), ("n", 5)])
def test_questions_of_every_datatype_fit_the_signature_and_are_the_same_every_time(
    datatype: str, shape: tuple[int | str, ...]
) -> None:
    wanted = signature((datatype, shape))
    samples = golden.make(Echo(), wanted, None)
    assert len(samples) == 3
    for sample in samples:
        array = sample.inputs["x0"]
        assert array.dtype == numpy_dtype(datatype)
        assert wanted.inputs[0].admits(array.shape)
        assert array.flags.c_contiguous
    assert raw(samples) == raw(golden.make(Echo(), wanted, None))


def test_questions_are_of_several_kinds() -> None:
    samples = golden.make(Echo(), signature(("FP32", (1, 100)), ("INT32", (100,))), None)
    spread = [float(np.abs(s.inputs["x0"]).max()) for s in samples]
    assert spread[0] <= 1 < spread[1] < spread[2]
    highest = [int(np.abs(s.inputs["x1"].astype(np.int64)).max()) for s in samples]
    assert highest[0] <= 1
    assert highest[1] <= 8
    assert highest[2] > 1 << 24


def test_dynamic_dimensions_get_the_pictures_size_first_and_a_batch_of_one() -> None:
    echo = Echo()
    golden.make(echo, signature(("FP32", ("batch", 3, "height", "width"))), (96, 48))
    assert echo.asked[0] == {"x0": (1, 3, 48, 96)}


def test_dynamic_dimensions_get_the_pictures_size_with_channels_last_too() -> None:
    echo = Echo()
    golden.make(echo, signature(("UINT8", ("batch", "height", "width", 3))), (96, 48))
    assert echo.asked[0] == {"x0": (1, 48, 96, 3)}


def test_sizes_are_tried_until_the_reference_takes_one() -> None:
    echo = Echo(refuses=lambda inputs: inputs["x0"].shape[1] != 8)
    samples = golden.make(echo, signature(("FP32", ("n", "m"))), None)
    assert {s.inputs["x0"].shape for s in samples} == {(1, 8)}


def test_a_reference_that_takes_nothing_says_why_first(tmp_path: Path) -> None:
    with pytest.raises(EngineUnusable, match="not these"):
        golden.make(Echo(refuses=lambda inputs: True), signature(("FP32", ("n", "m"))), None)
    echo = Echo(refuses=lambda inputs: True)
    with pytest.raises(EngineUnusable):
        golden.make(echo, signature(("FP32", (1, 2))), None)
    assert len(echo.asked) == 3  # a fixed shape is tried once with each kind


def test_an_input_that_would_fill_the_memory_is_not_made() -> None:
    echo = Echo()
    with pytest.raises(EngineUnusable, match="no golden input fits"):
        golden.make(echo, signature(("FP32", (1 << 20, 1 << 20))), None)
    assert echo.asked == []


def test_an_input_that_the_reference_calls_wrong_is_left_out() -> None:
    class Picky(Echo):
        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            if inputs["x0"].max() > 1:
                raise InvalidInput("too high")
            return dict(inputs)

    assert len(golden.make(Picky(), signature(("INT64", (4,))), None)) == 1


def test_equal_names_get_equal_sizes() -> None:
    echo = Echo()
    golden.make(echo, signature(("FP32", ("n", "seq")), ("FP32", ("seq", 4))), None)
    assert echo.asked[0]["x0"][1] == echo.asked[0]["x1"][0]


def test_a_model_whose_indices_would_be_out_of_range_keeps_the_questions_it_can_answer(tmp_path: Path) -> None:
    reference, sign = session(tmp_path, models.gather())
    samples = golden.make(reference, sign, None)
    assert samples
    assert all(sample.inputs["index"].max() < 4 for sample in samples)
    assert all("y" in sample.outputs for sample in samples)


def test_outputs_that_are_random_by_design_are_left_out(tmp_path: Path) -> None:
    reference, sign = session(tmp_path, models.noisy())
    for sample in golden.make(reference, sign, None):
        assert list(sample.outputs) == ["y"]


def test_a_model_of_which_everything_is_random_is_not_accepted() -> None:
    class Dice(Echo):
        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            return {"x0": np.random.default_rng().random(8).astype(np.float32)}

    samples = golden.make(Dice(), signature(("FP32", (8,))), None)
    verdict = judge(((s.outputs, s.inputs) for s in samples), TOLERANCES["fp32"])
    assert not verdict.accepted
    assert "nothing to compare" in verdict.reason


def test_an_output_that_is_not_a_number_every_time_is_kept() -> None:
    class Nan(Echo):
        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            return {"x0": np.array([np.nan, np.inf, 1], np.float32)}

    assert all("x0" in s.outputs for s in golden.make(Nan(), signature(("FP32", (3,))), None))


def test_answers_are_kept_even_when_the_session_uses_its_arrays_again() -> None:
    class Reusing(Echo):
        answer = np.zeros(4, np.float32)

        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            self.answer[:] = inputs["x0"]
            return {"x0": self.answer}

    for sample in golden.make(Reusing(), signature(("FP32", (4,))), None):
        np.testing.assert_array_equal(sample.inputs["x0"], sample.outputs["x0"])


def test_the_reference_agrees_with_itself_over_every_small_model(tmp_path: Path) -> None:
    for proto in (models.conv(), models.matmul(), models.several(), models.branches(), models.dynamic(), models.text()):
        reference, sign = session(tmp_path, proto)
        samples = golden.make(reference, sign, None)
        verdict = judge(((s.outputs, reference.infer(s.inputs)) for s in samples), TOLERANCES["fp32"])
        assert verdict.accepted, verdict.reason


# -- the file -------------------------------------------------------------------------------------------------------


def test_samples_of_every_datatype_come_back_from_the_file(tmp_path: Path) -> None:
    wanted = signature(*((name, ("n", 3)) for name in models.ONNX_TYPES), ("FP32", ()), ("FP32", (0, 2)))
    samples = golden.make(Echo(), wanted, None)
    golden.save(tmp_path / "deep" / "file", samples)
    assert raw(golden.load(tmp_path / "deep" / "file")) == raw(samples)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93",
        b"garbage",
        b"\x91\x93\x80\x80\x80",
        b"\x91\x90",
        b"\x91\x92\x81\xa1x\x94\xa3bad\x90\xc4\x00\x90\x80",
    ],
)
def test_a_damaged_file_is_removed_so_that_it_is_made_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BuildFailed, match="made anew"):
        golden.load(path)
    assert not path.exists()


def test_a_file_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    golden.save(path, golden.make(Echo(), signature(("FP32", (2,)), ("BYTES", (2,))), None))
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(BuildFailed):
            golden.load(path)


def test_a_file_with_an_altered_answer_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    golden.save(path, golden.make(Echo(), signature(("FP32", (2000,))), None))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 - 100] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(BuildFailed):
        golden.load(path)


def test_a_missing_file_is_made_anew(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed):
        golden.load(tmp_path / "none")

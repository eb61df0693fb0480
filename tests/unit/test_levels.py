"""What each level of ONNX Runtime's optimisation does to answers, found by asking the real runtime.

Two of these models really answer otherwise when they are optimised: the optimiser folds two factors into one (ConvMul
at the level basic, MatMulScale at extended), and a product that overflows as written does so no more. Its answer is the
better one, but it is another one. The third only rounds otherwise, which shows where no rounding is allowed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.backends.contract import UNOPTIMISED, Order, Recipe
from edged.backends.ort import session as ort_levels
from edged.doctor.check import Result
from edged.doctor.models import levels
from edged.ipc import job_messages as jobs
from edged.jobs import tasks
from edged.verification.standard import TOLERANCES, Tolerance
from edged.vision.family import recognise
from tests import models

REFERENCE = Recipe("onnxruntime", optimization=UNOPTIMISED)
NOT_A_BIT = msgspec.structs.replace(TOLERANCES["fp32"], relative_l2=0.0)


def compared(proto: onnx.ModelProto, folder: Path, tolerance: Tolerance = TOLERANCES["fp32"]) -> jobs.ComparedLevels:
    path, signature = models.save(proto, folder / "m.onnx"), models.signature(proto)
    recognition = recognise(signature.inputs, signature.outputs, {}, {}, {})
    job = jobs.CompareLevels(Order(str(path), signature, REFERENCE), recognition, tolerance)
    answer = tasks.do(job, lambda progress: None)
    assert isinstance(answer, jobs.ComparedLevels)
    return answer


def accepted(found: jobs.ComparedLevels) -> dict[str, bool]:
    return {each.level: each.verdict.accepted for each in found.levels}


def test_the_levels_are_told_apart_and_in_order() -> None:
    assert [name for name in ort_levels.NAMES if name != "layout"] == ["basic", "extended", "all"]
    assert UNOPTIMISED not in ort_levels.NAMES


def test_an_ordinary_model_is_the_same_at_every_level(tmp_path: Path) -> None:
    found = compared(models.conv(), tmp_path)
    assert set(accepted(found).values()) == {True}
    (check,) = levels("m", found)
    assert check.result is Result.OK


@pytest.mark.parametrize(
    ("proto", "first"), [(models.scaled_conv(), "basic"), (models.scaled_matmul(), "extended")], ids=["conv", "matmul"]
)
def test_the_first_level_that_changes_the_answer_is_named(proto: onnx.ModelProto, first: str, tmp_path: Path) -> None:
    found = compared(proto, tmp_path)
    before = ort_levels.NAMES[: ort_levels.NAMES.index(first)]
    assert accepted(found) == {level: level in before for level in ort_levels.NAMES}
    (check,) = levels("m", found)
    assert check.result is Result.WARNING
    assert check.message.startswith(f"from level {first} on the optimiser changes its answers: finite ")


def test_compare_rounding_is_no_difference_even_when_none_is_allowed(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    weights = numpy_helper.from_array(random.standard_normal((8, 3, 3, 3)).astype(np.float32), "w")
    scale = numpy_helper.from_array(random.standard_normal((8, 1, 1)).astype(np.float32), "s")
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "s"], ["y"])]
    shape = [1, 8, 14, 14]
    proto = models.model(
        nodes, [models.value("x", "FP32", [1, 3, 16, 16])], [models.value("y", "FP32", shape)], [weights, scale]
    )
    assert set(accepted(compared(proto, tmp_path)).values()) == {True}
    found = compared(proto, tmp_path, NOT_A_BIT)
    assert set(accepted(found).values()) == {True}
    assert found.levels[0].verdict.figures["p99_abs"] > 0


def test_a_model_that_answers_nothing_is_an_error_and_not_a_finding(tmp_path: Path) -> None:
    indices = numpy_helper.from_array(np.array([99], np.int64), "i")
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=1)
    proto = models.model([node], [models.value("x", "FP32", [1, 4])], [models.value("y", "FP32", [1, 1])], [indices])
    with pytest.raises(Exception, match=r"refuses the model|inference failed"):
        compared(proto, tmp_path)

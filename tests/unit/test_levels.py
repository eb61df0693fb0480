"""Comparison of ONNX Runtime's optimisation levels, with the real runtime.

The answers of two models change when they are optimised: the optimiser folds two factors into one (ConvMul at level
basic, MatMulScale at extended), so that a product does not overflow any more. The optimised answer is better, but
different. The answers of a third model differ only by rounding.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from edged.backends.contract import UNOPTIMISED, Order, Recipe
from edged.backends.ort import session as ort_levels
from edged.doctor.check import Result
from edged.doctor.models import levels
from edged.errors import EngineUnusable
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


def test_levels_have_the_names_of_onnx_runtime_in_order() -> None:
    assert [name for name in ort_levels.NAMES if name != "layout"] == ["basic", "extended", "all"]
    assert UNOPTIMISED not in ort_levels.NAMES


def test_compare_ordinary_model_is_the_same_at_every_level(tmp_path: Path) -> None:
    found = compared(models.conv(), tmp_path)
    assert set(accepted(found).values()) == {True}
    (check,) = levels("m", found)
    assert check.result is Result.OK


@pytest.mark.parametrize(
    ("proto", "first"), [(models.scaled_conv(), "basic"), (models.scaled_matmul(), "extended")], ids=["conv", "matmul"]
)
def test_compare_first_level_that_changes_the_answer_is_named(
    proto: onnx.ModelProto, first: str, tmp_path: Path
) -> None:
    found = compared(proto, tmp_path)
    before = ort_levels.NAMES[: ort_levels.NAMES.index(first)]
    assert accepted(found) == {level: level in before for level in ort_levels.NAMES}
    (check,) = levels("m", found)
    assert check.result is Result.WARNING
    assert check.message.startswith(f"from level {first}, the optimiser changes the answers: finite ")


def test_compare_rounding_is_no_difference_even_with_zero_tolerance(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    proto = models.parse(
        "(float[1,3,16,16] x) => (float[1,8,14,14] y) { c = Conv(x, w) y = Mul(c, s) }",
        {
            name: random.standard_normal(shape).astype(np.float32)
            for name, shape in {"w": (8, 3, 3, 3), "s": (8, 1, 1)}.items()
        },
    )
    assert set(accepted(compared(proto, tmp_path)).values()) == {True}
    found = compared(proto, tmp_path, NOT_A_BIT)
    assert set(accepted(found).values()) == {True}
    assert found.levels[0].verdict.figures["p99_abs"] > 0


def test_compare_model_without_an_answer_is_unusable(tmp_path: Path) -> None:
    proto = models.parse("(float[1,4] x) => (float[1,1] y) <int64[1] i = {99}> { y = Gather<axis = 1>(x, i) }")
    with pytest.raises(EngineUnusable):
        compared(proto, tmp_path)

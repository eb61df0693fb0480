"""NaN and infinity in outputs: found in every format, counted by output, over after a quiet while."""

from __future__ import annotations

import numpy as np
import pytest

from edged.errors import NotFinite
from edged.ipc.finite import QUIET_SECONDS, FiniteCheck, Finiteness, is_finite, watched
from edged.models.limits import Bounds, Finite
from edged.tensors import Array, TensorSpec


def of(datatype: str, values: list[float]) -> Array:
    if datatype == "BF16":  # the upper half of a float32
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.array(values, {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}[datatype])


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_every_float_format_is_looked_at(datatype: str) -> None:
    largest = {"FP16": 65504.0, "BF16": 3.38e38, "FP32": 3.4e38, "FP64": 1.7e308}[datatype]
    assert is_finite(of(datatype, [0.0, -0.0, largest, -largest, 1e-7]), datatype)
    assert is_finite(of(datatype, []), datatype)
    assert is_finite(of(datatype, [1.0])[0:1].reshape(()), datatype)
    for bad in (np.nan, -np.nan, np.inf, -np.inf):
        assert not is_finite(of(datatype, [1.0, bad, 2.0]), datatype)
        assert not is_finite(of(datatype, [1.0, bad, 2.0, 4.0]).reshape(2, 2).T, datatype)


def test_a_sum_that_overflows_is_no_output_that_is_not_finite() -> None:
    assert is_finite(np.full(10, 3e38, np.float32), "FP32")


SPECS = (TensorSpec("y", "FP32", ("n", 2)), TensorSpec("i", "INT64", (1,)), TensorSpec("h", "FP16", (1,)))


def check(finite: Finite) -> FiniteCheck:
    return FiniteCheck(Bounds("m", finite=finite), SPECS)


def test_only_floats_are_looked_at_and_only_outputs_that_were_asked_for() -> None:
    outputs = {"y": np.array([[np.nan, 1]], np.float32), "i": np.array([1])}
    assert check("count").bad(outputs) == ("y",)
    assert check("ignore").bad(outputs) == ()
    assert check("count").bad({"h": np.array([np.inf], np.float16)}) == ("h",)


def test_of_several_rows_only_those_that_are_bad_are_blamed() -> None:
    outputs = {"y": np.array([[1, 2], [np.nan, 1], [3, 4]], np.float32)}
    assert [check("count").bad(outputs, row, 3) for row in range(3)] == [(), ("y",), ()]
    # An output that is not in rows is everybody's.
    assert [check("count").bad(outputs, row, 2) for row in range(2)] == [("y",), ("y",)]


def test_refusing_names_the_output_the_model_and_what_to_do() -> None:
    for finite in ("count", "ignore"):
        check(finite).require(("y",))  # type: ignore[arg-type]
    check("refuse").require(())
    with pytest.raises(NotFinite, match="'y'") as caught:
        check("refuse").require(("y", "h"))
    assert caught.value.outputs == ("y", "h")


def test_a_spell_counts_from_its_beginning_and_ends_after_a_quiet_while() -> None:
    finite = Finiteness()
    for at in range(10):
        finite.answered((), float(at))
    assert finite.spells(10) == ()
    finite.answered(("y",), 10)
    finite.answered((), 11)
    finite.answered(("y", "h"), 12)
    y, h = finite.spells(12)
    assert (y.output, y.began, y.last, y.bad, y.answers) == ("y", 10, 12, 2, 3)
    assert (h.output, h.began, h.last, h.bad, h.answers) == ("h", 12, 12, 1, 1)
    assert len(finite.spells(12 + QUIET_SECONDS)) == 2
    assert finite.spells(12.1 + QUIET_SECONDS) == ()
    finite.answered(("y",), 13 + QUIET_SECONDS)  # a new one
    (again,) = finite.spells(13 + QUIET_SECONDS)
    assert (again.began, again.bad, again.answers) == (13 + QUIET_SECONDS, 1, 1)


def test_what_is_counted_in_all_outlives_every_spell() -> None:
    finite = Finiteness()
    assert finite.counts == {}
    finite.answered(("y",), 0.0)
    finite.answered((), 1.0)
    finite.answered(("y", "h"), 2 * QUIET_SECONDS)
    assert finite.counts == {"y": 2, "h": 1}


def test_outputs_that_are_looked_at_are_the_floats_unless_none_is_to_be() -> None:
    assert [spec.name for spec in watched(Bounds("m"), SPECS)] == ["y", "h"]
    assert watched(Bounds("m", finite="ignore"), SPECS) == ()

"""NaN and infinity in outputs: detection in every float format, counts per output, and the end of an episode."""

from __future__ import annotations

import numpy as np
import pytest

from edged.errors import NotFinite
from edged.ipc.finite import QUIET_SECONDS, FiniteCheck, Finiteness, is_finite
from edged.models.limits import Bounds, Finite
from edged.tensors import Array, TensorSpec


def of(datatype: str, values: list[float]) -> Array:
    if datatype == "BF16":  # the upper 16 bits of a float32
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.array(values, {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}[datatype])


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_is_finite_of_every_float_format(datatype: str) -> None:
    largest = {"FP16": 65504.0, "BF16": 3.38e38, "FP32": 3.4e38, "FP64": 1.7e308}[datatype]
    assert is_finite(of(datatype, [0.0, -0.0, largest, -largest, 1e-7]), datatype)
    assert is_finite(of(datatype, [largest] * 10), datatype)  # finite values with an infinite sum
    assert is_finite(of(datatype, []), datatype)
    assert is_finite(of(datatype, [1.0])[0:1].reshape(()), datatype)
    for bad in (np.nan, -np.nan, np.inf, -np.inf):
        assert not is_finite(of(datatype, [1.0, bad, 2.0]), datatype)
        assert not is_finite(of(datatype, [1.0, bad, 2.0, 4.0]).reshape(2, 2).T, datatype)


SPECS = (TensorSpec("y", "FP32", ("n", 2)), TensorSpec("i", "INT64", (1,)), TensorSpec("h", "FP16", (1,)))


def check(finite: Finite) -> FiniteCheck:
    return FiniteCheck(Bounds("m", finite=finite), SPECS)


def test_bad_checks_only_requested_float_outputs() -> None:
    outputs = {"y": np.array([[np.nan, 1]], np.float32), "i": np.array([1])}
    assert check("count").bad(outputs) == ("y",)
    assert check("ignore").bad(outputs) == ()
    assert check("count").bad({"h": np.array([np.inf], np.float16)}) == ("h",)


def test_bad_of_a_row_checks_that_row() -> None:
    outputs = {"y": np.array([[1, 2], [np.nan, 1], [3, 4]], np.float32)}
    assert [check("count").bad(outputs, row, 3) for row in range(3)] == [(), ("y",), ()]
    # An output without rows belongs to all rows.
    assert [check("count").bad(outputs, row, 2) for row in range(2)] == [("y",), ("y",)]


def test_require_raises_for_models_that_refuse() -> None:
    for finite in ("count", "ignore"):
        check(finite).require(("y",))  # type: ignore[arg-type]
    check("refuse").require(())
    with pytest.raises(NotFinite, match="'y'") as caught:
        check("refuse").require(("y", "h"))
    assert caught.value.outputs == ("y", "h")


def test_spell_counts_from_its_beginning_and_ends_after_a_while() -> None:
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
    finite.answered(("y",), 13 + QUIET_SECONDS)  # a new episode
    (again,) = finite.spells(13 + QUIET_SECONDS)
    assert (again.began, again.bad, again.answers) == (13 + QUIET_SECONDS, 1, 1)
    assert finite.counts == {"y": 3, "h": 1}

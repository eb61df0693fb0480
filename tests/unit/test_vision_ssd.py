"""The forms of SSD exports, and what looks like them."""

from __future__ import annotations

import pytest

from edged.errors import ConfigError
from tests.vision_exports import EXPORTS, see, spec


def test_names_of_an_ssd_may_leave_the_background_out() -> None:
    names = "bus,cat,dog,man,sun"
    expected = ("background", *names.split(","))
    assert see(EXPORTS["ssd, priors"], {"names": names}).names == expected
    assert see(EXPORTS["ssd, priors"], {"names": f"background,{names}"}).names == expected
    with pytest.raises(ConfigError, match="names lists 1 classes"):
        see(EXPORTS["ssd, priors"], {"names": "bus"})


def test_tables_of_different_lengths_are_no_ssd() -> None:
    outputs = (spec("scores", 1, 100, 6), spec("boxes", 1, 99, 4))
    assert see(EXPORTS["ssd, priors"], outputs=outputs).family is None
    with pytest.raises(ConfigError, match=r"family=ssd needs .*; the model has scores \[1,100,6\], boxes \[1,99,4\]"):
        see(EXPORTS["ssd, priors"], {"family": "ssd"}, outputs=outputs)


def test_three_classes_and_the_background_are_told_by_name() -> None:
    outputs = (spec("scores", 1, 99, 4), spec("boxes", 1, 99, 4))
    assert see(EXPORTS["ssd, priors"], outputs=outputs).reading.outputs == ("scores", "boxes")
    same = (spec("a", 1, 99, 4), spec("b", 1, 99, 4))
    assert see(EXPORTS["ssd, priors"], outputs=same).family is None


def test_four_nameless_outputs_are_tflites_order_by_the_setting() -> None:
    outputs = tuple(
        spec(f"StatefulPartitionedCall:{i}", *shape) for i, shape in enumerate(((1, 10, 4), (1, 10), (1, 10), (1,)))
    )
    found = see(EXPORTS["ssd, tflite"], {"family": "ssd"}, outputs=outputs)
    assert [name[-1] for name in found.reading.outputs] == ["3", "0", "2", "1"]
    assert "family=ssd" in see(EXPORTS["ssd, tflite"], outputs=outputs).reason

"""How long a child may be silent, by the model, the backend and what admission saw."""

from __future__ import annotations

import msgspec
import pytest

from edged.config.limits import Limits
from edged.engines.child_watch import patience, quiet_seconds
from edged.models.model import Model
from tests.unit.control_room import model

MB = 1 << 20


def of(size_mb: int, nodes: int) -> Model:
    known = model()
    inspection = msgspec.structs.replace(known.inspection, size=size_mb * MB, operators={"Conv": nodes})
    return msgspec.structs.replace(known, inspection=inspection)


@pytest.mark.parametrize(
    ("size_mb", "nodes", "trial", "least", "most"),
    [
        (0, 75, 0.01, 120, 180),  # a few nested Ifs
        (12, 250, 0.1, 120, 300),  # a small detector
        (12, 250, 5.0, 600, 900),  # the same on a board of which admission saw how slow it is
        (1200, 3000, 4.0, 1500, 3600),  # a large transformer
    ],
)
def test_quiet_seconds_follow_size_nodes_and_trial(
    size_mb: int, nodes: int, trial: float, least: float, most: float
) -> None:
    assert least <= quiet_seconds(of(size_mb, nodes), trial) <= most


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_patience_with_a_silent_compiler_never_exceeds_the_limit(backend: str) -> None:
    short = Limits(seconds=60)
    assert patience(of(12, 250), backend, 0.1, short).quiet_seconds == 60
    usual = patience(of(12, 250), backend, 0.1, Limits())
    assert usual.quiet_seconds == usual.step_seconds < Limits().seconds / 10
    assert usual.progress_seconds == 0


@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt_rtx"])
def test_patience_with_tensorrt_lets_it_be_silent_for_the_whole_limit_and_go_on_while_it_tells(backend: str) -> None:
    limits = Limits()
    given = patience(of(12, 250), backend, 0.1, limits)
    assert given.quiet_seconds == limits.seconds
    assert given.step_seconds == limits.stall_seconds
    assert given.progress_seconds >= limits.seconds

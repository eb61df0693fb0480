"""The child that answers a served frame with the reference: what it compares, keeps and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import msgspec
import numpy as np
import onnx
import pytest

from edged.backends.contract import REFERENCE, Order
from edged.config.child_limits import Limits
from edged.engines.child import run
from edged.errors import InvalidInput, Superseded
from edged.host.pipeline import Pipeline, Shot
from edged.ipc import job_messages as jobs
from edged.models.identity import file_digest
from edged.shapes import MODEL_PATH, Scene
from edged.verification.served import compare_boxes, compare_content
from edged.vision.content import Classes
from edged.vision.detections import Detections
from edged.vision.families.contract import Classifier, Reading
from edged.vision.families.decoding import Outputs
from edged.vision.family import Family, Recognition, Thresholds, open_family, recognise
from edged.vision.image import decode
from edged.vision.placement import Fit, Region, Roi, place
from tests import engines, models

PIXELS = Scene(3).frame(0)[0]
JPEG = cv2.imencode(".jpg", PIXELS)[1].tobytes()
ROI = Roi(Region(0, 0, 500, 400))


@pytest.fixture
def order(tmp_path: Path) -> Order:
    place = Path(shutil.copy(MODEL_PATH, tmp_path / "model.onnx"))
    return Order(str(place), models.signature(onnx.load(place)), REFERENCE, digest=file_digest(place))


def recognition(order: Order) -> Recognition:
    metadata = {each.key: each.value for each in onnx.load(order.model).metadata_props}
    return recognise(order.signature.inputs, order.signature.outputs, metadata, {})


def served(order: Order, shot: Shot) -> Detections:
    """Return what the reference answers as an engine in a host."""
    pipeline = Pipeline(engines.opened(order), order.signature, recognition(order))
    (outcome,) = pipeline.infer(pipeline.prepare([shot]))
    pipeline.close()
    assert not isinstance(outcome, Exception)
    assert outcome.detections is not None
    return outcome.detections


async def check(order: Order, folder: Path, shot: Shot, answer: Detections, **fields: object) -> jobs.Shadowed:
    (folder / "frame").write_bytes(shot.data)
    (folder / "out").mkdir(exist_ok=True)
    job = jobs.Shadow(
        order,
        recognition(order),
        str(folder / "frame"),
        str(folder / "out"),
        shot.pixel_format,
        shot.width,
        shot.height,
        shot.stride,
        shot.roi,
        shot.thresholds,
        answer.pack(),
        slack=0.01,
    )
    return await run(msgspec.structs.replace(job, **fields), jobs.Shadowed, Limits(seconds=60.0))


async def test_right_answer_agrees_exactly(order: Order, tmp_path: Path) -> None:
    shot = Shot(JPEG, roi=ROI, thresholds=Thresholds(score=0.4))
    answer = served(order, shot)
    assert len(answer) >= 2
    found = await check(order, tmp_path, shot, answer)
    assert found.comparison.figures == {"boxes": 1.0, "box_score": pytest.approx(0, abs=1e-5)}
    assert (found.comparison.common, found.objects) == (len(answer), len(answer))
    assert found.comparison.shift == pytest.approx(0, abs=1e-5)
    assert found.score == pytest.approx(float(answer.scores.mean()), abs=1e-3)
    assert found.picture.contrast == pytest.approx(float(cv2.cvtColor(PIXELS, cv2.COLOR_BGR2GRAY).std()), rel=0.2)
    assert 0 < found.cpu_s < 60
    assert not list((tmp_path / "out").iterdir())


async def test_suspect_frame_is_kept_with_both_answers(order: Order, tmp_path: Path) -> None:
    height, width = PIXELS.shape[:2]
    shot = Shot(PIXELS.tobytes(), "bgr", width, height)
    answer = served(order, shot)
    wrong = answer.select(slice(1, None))
    found = await check(order, tmp_path, shot, wrong, keeps=True)
    assert found.comparison.figures["boxes"] == pytest.approx(1 - 1 / len(answer))
    kept = decode((tmp_path / "out" / "picture.png").read_bytes())
    assert np.array_equal(kept, PIXELS), "without loss"
    answers = json.loads((tmp_path / "out" / "answers.json").read_text())
    assert (len(answers["served"]), len(answers["reference"])) == (len(wrong), len(answer))
    assert answers["reference"][0].keys() == {"box", "score", "class"}


async def test_picture_that_cannot_be_decoded_is_an_error(order: Order, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        await check(order, tmp_path, Shot(JPEG[:200]), Detections.empty())


async def test_replaced_model_makes_the_check_void(order: Order, tmp_path: Path) -> None:
    with pytest.raises(Superseded):
        await check(msgspec.structs.replace(order, digest="0" * 64), tmp_path, Shot(JPEG), Detections.empty())


# -- the comparison ---------------------------------------------------------------------------------------------------


def outputs(order: Order) -> dict[str, np.ndarray]:
    canvas = cv2.resize(PIXELS, (320, 320)).astype(np.float32)[:, :, ::-1] / 255
    inputs = {order.signature.inputs[0].name: np.ascontiguousarray(canvas.transpose(2, 0, 1)[None])}
    session = engines.opened(order)
    found = {name: array.copy() for name, array in session.infer(inputs).items()}
    session.close()
    return found


def test_only_clear_detections_must_have_been_served(order: Order) -> None:
    family, raw = open_family(recognition(order)), outputs(order)
    assert isinstance(family, Family)
    where = place(320, 320, 320, 320, Fit.STRETCH)
    own = family.boxes(raw, 0, where, Thresholds())
    least = float(own.scores[-1])
    near = Thresholds(score=least - 0.005)
    assert len(family.boxes(raw, 0, where, near)) == len(own)
    without = own.select(slice(0, -1))
    assert compare_boxes(family, raw, where, near, without, 0.01)[0].figures["boxes"] == 1.0
    clear = compare_boxes(family, raw, where, Thresholds(score=least - 0.05), without, 0.01)[0]
    assert clear.figures["boxes"] < 1.0


def test_lower_scores_are_a_shift_although_every_detection_is_found(order: Order) -> None:
    family, raw = open_family(recognition(order)), outputs(order)
    assert isinstance(family, Family)
    where = place(320, 320, 320, 320, Fit.STRETCH)
    own = family.boxes(raw, 0, where, Thresholds())
    lower = msgspec.structs.replace(own, scores=own.scores - np.float32(0.004))
    found = compare_boxes(family, raw, where, Thresholds(), lower, 0.01)[0]
    assert found.figures["boxes"] == 1.0
    assert found.shift == pytest.approx(-0.004, abs=1e-5)
    nothing = compare_boxes(family, raw, where, Thresholds(score=0.999), Detections.empty(), 0.0)[0]
    assert nothing.figures == {}


class _Classes(Classifier, frozen=True):
    """Classes with the scores of the output `y`."""

    def classify(self, outputs: Outputs, index: int, thresholds: Thresholds) -> Classes:
        scores = outputs["y"][index]
        best = np.argsort(-scores)[: thresholds.max_detections]
        best = best[scores[best] >= thresholds.score]
        return Classes.of(best, scores[best])


@pytest.mark.parametrize(
    ("answer", "figure"),
    [
        (Classes((2, 0), (0.6, 0.3)), 0.0),  # the third class was not sent
        (Classes((2, 0), (0.55, 0.3)), 0.05),
        (Classes((0,), (0.3,)), 0.6),  # without the best one
    ],
)
def test_only_classes_that_a_client_gets_are_compared(order: Order, answer: Classes, figure: float) -> None:
    preprocess = recognition(order).preprocess
    assert preprocess is not None
    reader = _Classes(preprocess, (), Reading())
    raw = {"y": np.array([[0.3, 0.1, 0.6, *[0.0] * 5000]], np.float32)}
    where = place(4, 4, 4, 4, Fit.STRETCH)
    found, _ = compare_content(reader, raw, where, Thresholds(0.0, max_detections=2), answer)
    assert found.figures["class_score"] == pytest.approx(figure, abs=1e-6)

"""JPEGs decoded at a reduced scale: when, by which step, and without loss of accuracy."""

from __future__ import annotations

import cv2
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import InvalidImage, InvalidInput, TooLarge
from edged.shapes import MODEL_PATH, Counts, Prediction, Scene, match
from edged.tensors import TensorSpec
from edged.vision.family import Thresholds, open_family, recognise
from edged.vision.image import MAX_PIXELS, Decoded, decode, decode_reduced
from edged.vision.placement import Fit, Region, Roi
from edged.vision.prepare import Preparer
from edged.vision.preprocess import Preprocess
from tests.unit.test_vision_image import with_exif_orientation

RNG = np.random.default_rng(13)


def jpeg(picture: np.ndarray, quality: int = 95) -> bytes:
    return cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def flat(width: int, height: int) -> bytes:
    return jpeg(np.full((height, width, 3), 90, np.uint8))


def preparer(width: int, height: int, fit: Fit = Fit.LETTERBOX, **more: object) -> Preparer:
    shape = {"layout": "NHWC", "datatype": "UINT8", "color": "bgr"}
    return Preparer(Preprocess(width, height, fit=fit, pad=0, **{"reduce": True, **shape, **more}))


def step(preparer: Preparer, encoded: bytes, roi: Roi | None = None) -> int:
    return decode_reduced(encoded, lambda width, height: preparer.reduction(width, height, roi)).step


@pytest.mark.parametrize("step", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [(640, 480), (641, 479), (1, 1), (3, 17), (8, 9)])
@pytest.mark.parametrize("more", [(), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)], ids=["baseline", "progressive"])
def test_decode_reduced_rounds_up_and_has_the_true_size(size, step, more):
    picture = np.full((size[1], size[0], 3), 90, np.uint8)
    found = decode_reduced(cv2.imencode(".jpg", picture, list(more))[1].tobytes(), lambda width, height: step)
    assert (found.width, found.height, found.step) == (*size, step)
    assert found.image.shape == (-(-size[1] // step), -(-size[0] // step), 3)
    assert np.abs(found.image.astype(int) - 90).max() <= 2


@pytest.mark.parametrize(
    ("size", "shape", "fit", "wanted"),
    [
        ((1920, 1080), (640, 640), Fit.LETTERBOX, 2),  # three times smaller
        ((1280, 720), (640, 640), Fit.LETTERBOX, 2),
        ((1279, 720), (640, 640), Fit.LETTERBOX, 1),
        ((2560, 1440), (320, 320), Fit.LETTERBOX, 8),
        ((2560, 1440), (320, 320), Fit.STRETCH, 4),  # the height is 4.5 times smaller
        ((640, 480), (640, 640), Fit.LETTERBOX, 1),
        ((320, 240), (640, 640), Fit.LETTERBOX, 1),
        ((9999, 999), (64, 64), Fit.STRETCH, 8),
        ((1280, 720), (224, 224), Fit.CENTER_CROP, 2),  # 720 pixels of the width are used
    ],
)
def test_reduction_is_the_largest_that_does_not_enlarge(size, shape, fit, wanted):
    assert step(preparer(*shape, fit), flat(*size)) == wanted


def test_reduction_depends_on_the_size_of_the_region():
    small, encoded = preparer(320, 320), flat(2560, 1440)
    assert step(small, encoded, Roi(Region(0, 0, 1280, 1280))) == 4
    assert step(small, encoded, Roi(Region(500, 300, 640, 300), 90)) == 2
    assert step(small, encoded, Roi(Region(500, 300, 320, 300))) == 1
    assert step(small, encoded, Roi(rotation=90)) == 8
    with pytest.raises(InvalidInput):
        step(small, encoded, Roi(Region(9999, 0)))


def test_decode_reduced_gray_and_oriented_pictures_are_reduced():
    gray = decode_reduced(jpeg(np.full((480, 640), 90, np.uint8)), lambda width, height: 4)
    assert gray.image.shape == (120, 160, 3)
    turned = with_exif_orientation(flat(640, 480), 6)
    assert decode_reduced(turned, lambda width, height: 4).image.shape == (120, 160, 3)


def test_decode_reduced_other_formats_are_not_reduced():
    picture = RNG.integers(0, 256, (480, 640, 3), dtype=np.uint8)
    for suffix in (".png", ".bmp"):
        found = decode_reduced(cv2.imencode(suffix, picture)[1].tobytes(), lambda width, height: 8)
        assert (found.step, found.width, found.height) == (1, 640, 480)
        assert np.array_equal(found.image, picture)


def test_decode_reduced_invalid_pictures_are_refused():
    encoded = jpeg(RNG.integers(0, 256, (480, 640, 3), dtype=np.uint8))
    for wrong in (b"", b"junk", encoded[: len(encoded) // 2]):
        with pytest.raises(InvalidImage):
            decode_reduced(wrong, lambda width, height: 4)
    side = int(MAX_PIXELS**0.5) + 1
    huge = bytearray(flat(16, 16))
    at = huge.index(b"\xff\xc0") + 5
    huge[at : at + 4] = side.to_bytes(2, "big") * 2
    with pytest.raises(TooLarge):
        decode_reduced(bytes(huge), lambda width, height: 8)


@settings(max_examples=120, deadline=None)
@given(st.data(), st.sampled_from([2, 4, 8]), st.sampled_from([0, 90, 180, 270]), st.booleans())
def test_decode_reduced_rectangle_stays_in_place(data, step, rotation, is_region):
    width, height = data.draw(st.integers(330, 700)), data.draw(st.integers(330, 700))
    x1, y1 = data.draw(st.integers(40, 120)), data.draw(st.integers(40, 120))
    x2, y2 = data.draw(st.integers(180, width - 40)), data.draw(st.integers(180, height - 40))
    picture = np.zeros((height, width, 3), np.uint8)
    picture[y1:y2, x1:x2] = 255
    left, top = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30))
    region = Region(left, top, width - 31 - left, height - 29 - top)
    roi = Roi(region if is_region else None, rotation)
    sides = (width, height)[:: -1 if rotation % 180 else 1]
    wanted = preparer(sides[0] // step - 9, sides[1] // step - 9, Fit.STRETCH)
    decoded = decode_reduced(jpeg(picture), lambda width, height: step)
    assert decoded.step == step
    # A fifth of a pixel of the input. 0.165 was measured: for example, 330 pixels are not a multiple of eight.
    assert np.abs(located(wanted, decoded, roi) - (x1, y1, x2, y2)).max() < 0.2 * step


def located(wanted: Preparer, picture: np.ndarray | Decoded, roi: Roi | None) -> np.ndarray:
    """Return the edges, in fractions of pixels, of a white rectangle in a black picture, computed from the input."""
    out = np.empty(wanted.preprocess.shape, np.uint8)
    placement = wanted.prepare(picture, out, roi)
    value = out[:, :, 0].astype(float) / 255
    edges = []
    for profile in (value[:, value.sum(axis=0).argmax()], value[value.sum(axis=1).argmax()]):
        length = profile.sum()
        centre = (profile * (np.arange(len(profile)) + 0.5)).sum() / length
        edges.append((centre - length / 2, centre + length / 2))
    (top, bottom), (left, right) = edges
    return placement.to_original(np.array([[left, top, right, bottom]], np.float32))[0]


# --- the detector that comes with edged

SIZE = 320
UNSEEN = 2_000_000_000  # training draws its seeds below 1_000_000_000


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(MODEL_PATH), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("size", [(1280, 720), (1922, 1082)], ids=str)
def test_embedded_detector_finds_as_much_at_a_reduced_scale(session, size):
    metadata = session.get_modelmeta().custom_metadata_map
    specs = (TensorSpec("images", "FP32", (1, 3, SIZE, SIZE)),), (TensorSpec("output0", "FP32", (1, 9, 2100)),)
    recognition = recognise(*specs, metadata, {"preprocess.reduce": "true"})
    family, prepare = open_family(recognition), Preparer(recognition.preprocess)
    tensor = np.empty((1, 3, SIZE, SIZE), np.float32)
    counts, steps = {"whole": Counts(), "reduced": Counts()}, set()
    for number in range(15):
        picture, truths = Scene(UNSEEN + number, *size, shapes=1 + number % 8).frame(10)
        encoded = jpeg(picture, 80)
        reduced = decode_reduced(encoded, prepare.reduction)
        steps.add(reduced.step)
        for name, pixels in (("whole", decode(encoded)), ("reduced", reduced)):
            placement = prepare.prepare(pixels, tensor[0])
            outputs = dict(zip(("output0",), session.run(None, {"images": tensor}), strict=True))
            found = family.decode(outputs, 0, placement, Thresholds(score=0.4, iou=0.5, class_agnostic=True))
            rows = zip(found.class_ids.tolist(), found.scores.tolist(), found.boxes.tolist(), strict=True)
            counts[name] += match([Prediction(c, s, *box) for c, s, box in rows], truths)
    assert steps == {4}
    assert counts["reduced"].recall >= counts["whole"].recall - 0.02, counts
    assert counts["reduced"].precision >= counts["whole"].precision - 0.02, counts
    assert min(counts["reduced"].recall, counts["reduced"].precision) >= 0.95, counts


def test_reduction_is_off_by_default() -> None:
    assert step(preparer(320, 320, reduce=False), flat(1280, 960)) == 1
    assert step(preparer(320, 320, reduce=True), flat(1280, 960)) == 4

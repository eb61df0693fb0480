"""Golden answers: the probes, answers that are left out, and the file format."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import cv2
import msgspec
import numpy as np
import onnx
import pytest

from edged.backends import registry
from edged.backends.contract import UNOPTIMISED, Order, Recipe, Session, Signature
from edged.errors import BuildFailed, EngineUnusable, InvalidInput
from edged.tensors import ANY_SHAPE, Array, TensorSpec, numpy_dtype
from edged.verification import golden, pictures
from edged.verification.golden import Golden, Sample
from edged.verification.probes import PICTURE, WIDE
from edged.verification.shape_range import ShapeRange
from edged.verification.standard import TOLERANCES
from edged.verification.verify import Pair, judge
from edged.vision.family import Recognition, Thresholds, recognise
from edged.vision.image import decode
from edged.vision.prepare import Preparer
from tests import models

Arrays: TypeAlias = Mapping[str, Array]
Shape: TypeAlias = tuple[int | str, ...]
TENSORS = Recognition(None, "", None, "", (), Thresholds())  # a model without picture input


def echo(inputs: Arrays) -> Arrays:
    return inputs


class Reference:
    """A session that answers with a function of the inputs, or raises if `refuses` returns true."""

    def __init__(
        self, answer: Callable[[Arrays], Arrays] = echo, refuses: Callable[[Arrays], bool] = lambda inputs: False
    ) -> None:
        self._answer, self._refuses, self.asked = answer, refuses, list[dict[str, tuple[int, ...]]]()

    def infer(self, inputs: Arrays, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        self.asked.append({name: array.shape for name, array in inputs.items()})
        if self._refuses(inputs):
            raise EngineUnusable("refused")
        return dict(self._answer(inputs))

    def close(self) -> None:
        pass


class Counter(Reference):
    """A session that answers small inputs, and runs until it is stopped for large ones."""

    def __init__(self) -> None:
        super().__init__()
        self._stopped, self.stops = threading.Event(), 0

    def infer(self, inputs: Arrays, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        if abs(int(inputs["x0"])) > 1000:
            assert self._stopped.wait(30)
            raise EngineUnusable("stopped")
        assert not self._stopped.is_set(), "an earlier stop must not stop this inference"
        return super().infer(inputs, outputs)

    def stop(self) -> None:
        self.stops += 1
        self._stopped.set()

    def go_on(self) -> None:
        self._stopped.clear()


def signature(*inputs: tuple[str, Shape]) -> Signature:
    specs = tuple(TensorSpec(f"x{index}", datatype, shape) for index, (datatype, shape) in enumerate(inputs))
    return Signature(specs, specs)


RGB = signature(("FP32", ("batch", 3, "height", "width")))


def ask(session: Session, signature: Signature) -> list[Sample]:
    return golden.make(session, signature, TENSORS).samples


def pictures_of(signature: Signature, width: int, height: int, **more: str) -> Recognition:
    """Return the recognition of a model whose settings make it take pictures of this size."""
    settings = {"preprocess.width": str(width), "preprocess.height": str(height), **more}
    return recognise(signature.inputs, signature.outputs, {}, settings)


def picture(path: Path, seed: int = 1) -> Path:
    """Write a small picture of noise, as JPEG or PNG depending on the name."""
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    assert cv2.imwrite(str(path), pixels)
    return path


def reference(folder: Path, proto: onnx.ModelProto) -> tuple[Session, Signature]:
    path, sign = models.save(proto, folder / "model.onnx"), models.signature(proto)
    recipe = Recipe("onnxruntime", optimization=UNOPTIMISED)
    return registry.load("onnxruntime").open(Order(str(path), sign, recipe)), sign


def raw(samples: list[Sample]) -> list[object]:
    return [
        {name: (a.dtype.str, a.shape, a.tolist() if a.dtype == object else a.tobytes()) for name, a in side.items()}
        for sample in samples
        for side in (sample.inputs, sample.outputs)
    ]


def dice(inputs: Arrays) -> Arrays:
    return {"dice": np.random.default_rng().random(8).astype(np.float32)}


# -- tensors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", models.ONNX_TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), ("n", 5)])
def test_make_every_datatype_fits_the_signature_and_repeats(datatype: str, shape: Shape) -> None:
    wanted = signature((datatype, shape))
    samples = ask(Reference(), wanted)
    assert len(samples) == 3
    for sample in samples:
        array = sample.inputs["x0"]
        assert array.dtype == numpy_dtype(datatype)
        assert wanted.inputs[0].admits(array.shape)
        assert array.flags.c_contiguous
    assert raw(samples) == raw(ask(Reference(), wanted))


def test_make_probes_are_small_usual_and_wide() -> None:
    samples = ask(Reference(), signature(("FP32", (1, 100)), ("INT32", (100,))))
    floats = [float(np.abs(s.inputs["x0"]).max()) for s in samples]
    assert floats[0] <= 1 < floats[1] < floats[2]
    integers = [int(np.abs(s.inputs["x1"].astype(np.int64)).max()) for s in samples]
    assert integers[0] <= 1
    assert integers[1] <= 8
    assert integers[2] > 1 << 24


def test_make_endless_answer_is_stopped_and_left_out() -> None:
    counter = Counter()
    made = golden.make(counter, signature(("INT64", ())), TENSORS, least_seconds=0.05)
    assert [sample.kind for sample in made.samples] == ["unit", "normal"]
    assert counter.stops == 1
    assert counter.infer({"x0": np.array(3)})


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [(("batch", 3, "height", "width"), (1, 3, 48, 96)), (("batch", "height", "width", 3), (1, 48, 96, 3))],
)
def test_make_dynamic_dimensions_get_one_picture_of_the_set_size(shape: Shape, wanted: tuple[int, ...]) -> None:
    session, given = Reference(), signature(("FP32", shape))
    golden.make(session, given, pictures_of(given, 96, 48))
    assert {each["x0"] for each in session.asked} == {wanted}


def test_make_tries_sizes_until_the_reference_accepts_one() -> None:
    session = Reference(refuses=lambda inputs: inputs["x0"].shape[1] != 8)
    assert {s.inputs["x0"].shape for s in ask(session, signature(("FP32", ("n", "m"))))} == {(1, 8)}


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        pytest.param((1, 2), 5, id="each kind and each constant once"),
        pytest.param((1 << 20, 1 << 20), 0, id="would fill the memory"),
    ],
)
def test_make_without_an_answer_is_unusable(shape: Shape, count: int) -> None:
    session = Reference(refuses=lambda inputs: True)
    with pytest.raises(EngineUnusable):
        ask(session, signature(("FP32", shape)))
    assert len(session.asked) == count


def test_make_input_that_the_reference_calls_invalid_is_left_out() -> None:
    def picky(inputs: Arrays) -> Arrays:
        if inputs["x0"].max() > 1:
            raise InvalidInput("too high")
        return inputs

    assert len(ask(Reference(picky), signature(("INT64", (4,))))) == 1


def test_make_equal_names_of_dimensions_get_equal_sizes() -> None:
    session = Reference()
    ask(session, signature(("FP32", ("n", "seq")), ("FP32", ("seq", 4))))
    assert session.asked[0]["x0"][1] == session.asked[0]["x1"][0]


def test_make_indices_out_of_range_are_left_out(tmp_path: Path) -> None:
    samples = ask(*reference(tmp_path, models.gather()))
    assert samples
    assert all(sample.inputs["index"].max() < 4 and "y" in sample.outputs for sample in samples)


def test_make_random_output_is_left_out(tmp_path: Path) -> None:
    assert {tuple(sample.outputs) for sample in ask(*reference(tmp_path, models.noisy()))} == {("y",)}


def test_make_model_with_only_random_outputs_is_never_accepted() -> None:
    samples = ask(Reference(dice), signature(("FP32", (8,))))
    assert not judge((Pair(s.outputs, s.inputs) for s in samples), TOLERANCES["fp32"]).accepted


def test_make_answer_with_nan_is_a_sample() -> None:
    session = Reference(lambda inputs: {"x0": np.array([np.nan, np.inf, 1], np.float32)})
    assert all("x0" in s.outputs for s in ask(session, signature(("FP32", (3,)))))


def test_make_copies_answers_of_a_session_that_reuses_its_arrays() -> None:
    answer = np.zeros(4, np.float32)

    def reuse(inputs: Arrays) -> Arrays:
        answer[:] = inputs["x0"]
        return {"x0": answer}

    for sample in ask(Reference(reuse), signature(("FP32", (4,)))):
        np.testing.assert_array_equal(sample.inputs["x0"], sample.outputs["x0"])


@pytest.mark.parametrize(
    "make", [models.conv, models.matmul, models.several, models.branches, models.dynamic, models.text]
)
def test_judge_accepts_the_reference_itself(tmp_path: Path, make: Callable[[], onnx.ModelProto]) -> None:
    session, sign = reference(tmp_path, make())
    pairs = [Pair(s.outputs, session.infer(s.inputs)) for s in ask(session, sign)]
    verdict = judge(pairs, TOLERANCES["fp32"])
    assert verdict.accepted, verdict.reason


# -- a range of shapes ----------------------------------------------------------------------------------------------


def asked(
    given: Signature, settings: dict[str, str], session: Reference | None = None, known: Recognition = TENSORS
) -> list[dict[str, tuple[int, ...]]]:
    """Return the distinct shapes of a model's probes, in order. Check that all golden answers are in its range."""
    size = (known.preprocess.width, known.preprocess.height) if known.preprocess else None
    shape_range, session = ShapeRange.read(given, settings, size), session or Reference()
    for sample in golden.make(session, given, known, (), shape_range).samples:
        assert shape_range.contains({name: array.shape for name, array in sample.inputs.items()})
    return [shapes for place, shapes in enumerate(session.asked) if shapes not in session.asked[:place]]


@pytest.mark.parametrize(
    ("shape", "text", "wanted"),
    [
        (("batch", "seq"), "1x128", [(1, 128)]),
        (("n", "seq"), "2x16 4x128 4x512", [(4, 128), (2, 16), (4, 512)]),
        ((4, "mel", "time"), "4x80x3000", [(4, 80, 3000)]),
        (("n", 4), "1x4 1x4 16x4", [(1, 4), (16, 4)]),
        (ANY_SHAPE, "1x3x5", [(1, 3, 5)]),
        (("n", 4), "0x4 2x4 16x4", [(2, 4), (16, 4)]),  # a probe needs at least one element
        (("n", 4), "1x4 2x4 4194304x4", [(2, 4), (1, 4)]),  # the largest batch would take 64 MiB
        ((2, 3), "2x3", [(2, 3)]),
        (("batch", 4), "", [(1, 4)]),
    ],
)
def test_make_probes_have_the_shapes_of_the_setting(shape: Shape, text: str, wanted: list[tuple[int, ...]]) -> None:
    found = asked(signature(("FP32", shape)), {"profile.x0": text} if text else {})
    assert found == [{"x0": each} for each in wanted]


def test_make_refused_shape_is_replaced_by_others_of_the_range() -> None:
    picky = Reference(refuses=lambda inputs: inputs["x0"].shape != (1, 8))
    found = asked(signature(("FP32", ("n", "m"))), {"profile.x0": "1x4 1x48 4x48"}, picky)
    assert [each["x0"] for each in found] == [(1, 48), (1, 32), (1, 16), (1, 8), (4, 48), (1, 4)]


def test_make_reference_that_refuses_the_whole_range_gets_shapes_outside_it() -> None:
    given = signature(("FP32", ("n", "m")))
    shape_range = ShapeRange.read(given, {"profile.x0": "1x48"}, None)
    picky = Reference(refuses=lambda inputs: inputs["x0"].shape[1] != 2)
    made = golden.make(picky, given, TENSORS, (), shape_range)
    assert {sample.inputs["x0"].shape for sample in made.samples} == {(1, 2)}


def test_make_inputs_that_share_dimensions_grow_together() -> None:
    given = signature(("FP32", ("n", "seq")), ("FP32", ("n", "seq")), ("FP32", (1, "n")), ("FP32", (7,)))
    assert asked(given, {"profile.x0": "1x8 1x96 3x128"}) == [
        {"x0": (n, seq), "x1": (n, seq), "x2": (1, n), "x3": (7,)} for n, seq in [(1, 96), (3, 96), (1, 8), (3, 128)]
    ]


def test_make_incomplete_range_has_the_shapes_of_no_setting() -> None:
    given = signature(("FP32", ("n", "m")), ("FP32", ("n", "other")))
    assert asked(given, {"profile.x0": "1x128"}) == [{"x0": (1, 64), "x1": (1, 64)}]


def test_make_pictures_and_tensors_are_in_the_range() -> None:
    known = pictures_of(RGB, 96, 48)
    found = asked(RGB, {"profile.x0": "1x3x32x32 2x3x64x128 4x3x64x128"}, known=known)
    assert [each["x0"] for each in found] == [(2, 3, 64, 128), (4, 3, 64, 128), (1, 3, 32, 32), (1, 3, 48, 96)]
    assert asked(RGB, {}, known=known) == [{"x0": (1, 3, 48, 96)}]


# -- pictures -------------------------------------------------------------------------------------------------------


def test_make_model_of_pictures_gets_drawn_pictures() -> None:
    made = golden.make(Reference(), RGB, pictures_of(RGB, 96, 48))
    shown = [sample for sample in made.samples if sample.kind == PICTURE]
    assert [sample.name for sample in shown] == [f"drawn picture {n}" for n in range(1, pictures.COUNT + 1)]
    assert all(sample.inputs["x0"].shape == (1, 3, 48, 96) for sample in shown)
    assert made.samples[0].kind != PICTURE


def test_make_user_picture_is_prepared_as_in_serving(tmp_path: Path) -> None:
    known = pictures_of(RGB, 96, 48, **{"preprocess.fit": "letterbox", "preprocess.mean": "0.5", "preprocess.std": "2"})
    path = picture(tmp_path / "hall.png")
    made = golden.make(Reference(), RGB, known, [str(path)])
    (sample,) = (sample for sample in made.samples if sample.name == "hall.png")
    assert known.preprocess is not None
    wanted = np.empty(known.preprocess.shape, np.float32)
    placement = Preparer(known.preprocess).prepare(decode(path.read_bytes()), wanted)
    np.testing.assert_array_equal(sample.inputs["x0"][0], wanted)
    assert sample.placement == placement
    assert made.skipped == ()


@pytest.mark.parametrize(
    ("datatype", "shape"), [("UINT8", (1, 8, 8, 3)), ("FP16", (1, 1, 8, 8)), ("FP32", (4, 3, 8, 8))]
)
def test_make_pictures_fit_inputs_of_every_kind(tmp_path: Path, datatype: str, shape: tuple[int, ...]) -> None:
    wanted = signature((datatype, shape))
    known = recognise(wanted.inputs, wanted.outputs, {}, {})
    made = golden.make(Reference(), wanted, known, [str(picture(tmp_path / "a.png"))])
    samples = [sample for sample in made.samples if sample.kind == PICTURE]
    assert len(samples) == 1 + pictures.COUNT
    for sample in samples:
        array = sample.inputs["x0"]
        assert (array.dtype, array.shape) == (numpy_dtype(datatype), shape)
        assert array[0].any()
        assert not array[1:].any()  # a fixed batch has one picture in its first row, as in serving


BAD: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a picture"),
    "half": lambda path: path.write_bytes(picture(path.with_name("whole.jpg")).read_bytes()[:300]),
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "too large": lambda path: path.write_bytes(bytes((16 << 20) + 1)),
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_make_unreadable_sample_is_skipped_in_one_line(tmp_path: Path, make: Callable[[Path], object]) -> None:
    bad, good = tmp_path / "bad.jpg", picture(tmp_path / "good.png")
    make(bad)
    made = golden.make(Reference(), RGB, pictures_of(RGB, 8, 8), [str(bad), str(good)])
    (reason,) = made.skipped
    assert "bad.jpg" in reason
    assert "\n" not in reason
    assert "good.png" in [sample.name for sample in made.samples]


def test_make_model_of_tensors_ignores_pictures(tmp_path: Path) -> None:
    assert golden.make(Reference(), signature(("FP32", (3,))), TENSORS, [str(tmp_path / "gone.jpg")]).skipped == ()


def test_make_picture_that_the_reference_refuses_is_skipped(tmp_path: Path) -> None:
    dark = tmp_path / "dark.png"
    cv2.imwrite(str(dark), np.zeros((8, 8, 3), np.uint8))
    session = Reference(refuses=lambda inputs: not inputs["x0"].any())
    made = golden.make(session, RGB, pictures_of(RGB, 8, 8), [str(dark)])
    assert made.skipped == ("sample dark.png is left out, because the reference does not answer it: refused",)


def test_make_beyond_the_limit_of_bytes_prefers_the_users_pictures(tmp_path: Path) -> None:
    one = 2 * 3 * 8 * 8 * 4  # bytes of a picture with its answer
    samples = [str(picture(tmp_path / f"{n}.png", n)) for n in range(4)]
    made = golden.make(Reference(), RGB, pictures_of(RGB, 8, 8), samples, most_bytes=3 * one)
    assert [s.name for s in made.samples if s.kind == PICTURE] == ["0.png", "1.png", "2.png"]
    (reason,) = made.skipped
    assert "3.png" in reason


def test_make_random_output_of_pictures_is_left_out(tmp_path: Path) -> None:
    session = Reference(lambda inputs: {**inputs, **dice(inputs)})
    made = golden.make(session, RGB, pictures_of(RGB, 8, 8), [str(picture(tmp_path / "a.png"))])
    assert {tuple(sample.outputs) for sample in made.samples} == {("x0",)}
    # 1: the user's picture, to time the reference. 3 each: three tensors and the first picture, asked twice and once
    # with inputs moved by one step. 2 each: all other pictures, asked once and once with moved inputs.
    assert len(session.asked) == 1 + 3 * 3 + 3 + 2 * pictures.COUNT


# -- the file -------------------------------------------------------------------------------------------------------


def test_load_returns_what_was_saved(tmp_path: Path) -> None:
    wanted = signature(*((name, ("n", 3)) for name in models.ONNX_TYPES), ("FP32", ()), ("FP32", (0, 2)))
    tensors = Golden(ask(Reference(), wanted))
    samples = [str(picture(tmp_path / "a.png")), str(tmp_path / "gone.png")]
    for made in (tensors, golden.make(Reference(), RGB, pictures_of(RGB, 8, 8), samples)):
        golden.save(tmp_path / "deep" / "file", made.samples, made.skipped)
        loaded = golden.load(tmp_path / "deep" / "file")
        assert loaded.skipped == made.skipped
        assert raw(loaded.samples) == raw(made.samples)
        wanted_names = [(s.kind, s.name, s.placement) for s in made.samples]
        assert [(s.kind, s.name, s.placement) for s in loaded.samples] == wanted_names
        for sample in loaded.samples:
            assert all(array.flags.aligned and array.flags.c_contiguous for array in sample.inputs.values())


_OLD_FORMAT = msgspec.msgpack.encode([[{}, {}]])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="missing"),
        pytest.param(b"", id="empty"),
        pytest.param(b"garbage", id="short"),
        pytest.param(b"\x91\x92\x81\xa1x\x94\xa3bad\x90\xc4\x00\x90\x80", id="without digest"),
        pytest.param(hashlib.sha256(_OLD_FORMAT).digest() + _OLD_FORMAT, id="another format"),
    ],
)
def test_load_damaged_file_fails_and_removes_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BuildFailed):
        golden.load(path)
    assert not path.exists()


def test_load_cut_or_altered_file_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    golden.save(path, ask(Reference(), signature(("FP32", (2,)), ("BYTES", (2,)))))
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[len(altered) // 2] ^= 0x40
    for content in [*(whole[:length] for length in range(0, len(whole), 7)), altered]:
        path.write_bytes(content)
        with pytest.raises(BuildFailed):
            golden.load(path)


def test_prune_removes_older_answers_of_the_same_model_only(tmp_path: Path) -> None:
    one, other = "a" * 64, "b" * 64
    kept = [f"{one}-2.golden", f"{other}-1.golden", f"{one}-1.other", "file"]
    names = [*kept, f"{one}-1.golden", f"{one}.golden"]
    for name in names:
        (tmp_path / name).touch()
    for pruned, left in (("file", names), (f"{one}-2.golden", kept)):
        golden.prune(tmp_path / pruned)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(left)


# -- deciding answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arithmetic", "kinds", "wanted"),
    [
        ("fp32", ["unit", WIDE, PICTURE], ["unit", WIDE, PICTURE]),
        *((precision, ["unit", WIDE, PICTURE, PICTURE], [PICTURE] * 2) for precision in ("tf32", "fp16", "int8")),
        ("bf16", ["unit", "normal", WIDE], ["unit", "normal"]),
        ("int8", [WIDE], [WIDE]),
    ],
)
def test_deciding_of_lower_precision_prefers_pictures_then_usual_values(
    arithmetic: str, kinds: list[str], wanted: list[str]
) -> None:
    assert [s.kind for s in golden.deciding([Sample({}, {}, kind) for kind in kinds], arithmetic)] == wanted

"""Golden probes: the same in every run, fit for the model, without what cannot be compared."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
from edged.verification.golden import Sample
from edged.verification.probes import PICTURE, WIDE
from edged.verification.shape_range import ShapeRange
from edged.verification.standard import TOLERANCES
from edged.verification.verify import Pair, judge
from edged.vision.family import Recognition, Thresholds, recognise
from edged.vision.image import decode
from edged.vision.prepare import Preparer
from tests import models

TENSORS = Recognition(None, "", None, "", (), Thresholds())  # of a model that takes no pictures


class Echo:
    """Answers with its inputs, unless `refuses` has something against them."""

    def __init__(self, refuses: object = None) -> None:
        self._refuses, self.asked = refuses, list[dict[str, tuple[int, ...]]]()

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        self.asked.append({name: array.shape for name, array in inputs.items()})
        if callable(self._refuses) and self._refuses(inputs):
            raise EngineUnusable("not these")
        return dict(inputs)

    def close(self) -> None:
        pass


class Counter(Echo):
    """Counts as far as it is told, until it is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._stopped, self.stops = threading.Event(), 0

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        if abs(int(inputs["x0"])) > 1000:
            assert self._stopped.wait(30)
            raise EngineUnusable("stopped")
        assert not self._stopped.is_set(), "what stopped the one before must not stop this one"
        return super().infer(inputs, outputs)

    def stop(self) -> None:
        self.stops += 1
        self._stopped.set()

    def go_on(self) -> None:
        self._stopped.clear()


def signature(*inputs: tuple[str, tuple[int | str, ...]]) -> Signature:
    specs = tuple(TensorSpec(f"x{index}", datatype, shape) for index, (datatype, shape) in enumerate(inputs))
    return Signature(specs, specs)


def test_a_number_that_keeps_the_reference_busy_is_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "_LEAST_SECONDS", 0.05)
    counter = Counter()
    asked = ask(counter, signature(("INT64", ())))
    assert [sample.kind for sample in asked] == ["unit", "normal"]
    assert counter.stops == 1
    assert counter.infer({"x0": np.int64(3)})  # it goes on


def ask(session: Session, signature: Signature) -> list[Sample]:
    return golden.make(session, signature, TENSORS).samples


def pictures_of(signature: Signature, width: int, height: int, **more: str) -> Recognition:
    """What is known of a model with such an input, set to take pictures of that size."""
    settings = {"preprocess.width": str(width), "preprocess.height": str(height), **more}
    return recognise(signature.inputs, signature.outputs, {}, settings)


def picture(path: Path, seed: int = 1, size: tuple[int, int] = (32, 24)) -> Path:
    """A small file of noise, JPEG or PNG as its name says."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*reversed(size), 3), dtype=np.uint8)
    assert cv2.imwrite(str(path), pixels)
    return path


def session(folder: Path, proto: onnx.ModelProto) -> tuple[Session, Signature]:
    path, sign = models.save(proto, folder / "model.onnx"), models.signature(proto)
    recipe = Recipe("onnxruntime", optimization=UNOPTIMISED)
    return registry.load("onnxruntime").open(Order(str(path), sign, recipe)), sign


def raw(samples: list[Sample]) -> list[object]:
    return [
        {name: (a.dtype.str, a.shape, a.tolist() if a.dtype == object else a.tobytes()) for name, a in side.items()}
        for sample in samples
        for side in (sample.inputs, sample.outputs)
    ]


@pytest.mark.parametrize("datatype", models.ONNX_TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), ("n", 5)])
def test_questions_of_every_datatype_fit_the_signature_and_are_the_same_every_time(
    datatype: str, shape: tuple[int | str, ...]
) -> None:
    wanted = signature((datatype, shape))
    samples = ask(Echo(), wanted)
    assert len(samples) == 3
    for sample in samples:
        array = sample.inputs["x0"]
        assert array.dtype == numpy_dtype(datatype)
        assert wanted.inputs[0].admits(array.shape)
        assert array.flags.c_contiguous
    assert raw(samples) == raw(ask(Echo(), wanted))


def test_questions_are_of_several_kinds() -> None:
    samples = ask(Echo(), signature(("FP32", (1, 100)), ("INT32", (100,))))
    spread = [float(np.abs(s.inputs["x0"]).max()) for s in samples]
    assert spread[0] <= 1 < spread[1] < spread[2]
    highest = [int(np.abs(s.inputs["x1"].astype(np.int64)).max()) for s in samples]
    assert highest[0] <= 1
    assert highest[1] <= 8
    assert highest[2] > 1 << 24


def test_dynamic_dimensions_get_the_pictures_size_first_and_a_batch_of_one() -> None:
    echo = Echo()
    wanted = signature(("FP32", ("batch", 3, "height", "width")))
    golden.make(echo, wanted, pictures_of(wanted, 96, 48))
    assert set(map(str, echo.asked)) == {str({"x0": (1, 3, 48, 96)})}


def test_dynamic_dimensions_get_the_pictures_size_with_channels_last_too() -> None:
    echo = Echo()
    wanted = signature(("UINT8", ("batch", "height", "width", 3)))
    golden.make(echo, wanted, pictures_of(wanted, 96, 48))
    assert set(map(str, echo.asked)) == {str({"x0": (1, 48, 96, 3)})}


def test_sizes_are_tried_until_the_reference_takes_one() -> None:
    echo = Echo(refuses=lambda inputs: inputs["x0"].shape[1] != 8)
    samples = ask(echo, signature(("FP32", ("n", "m"))))
    assert {s.inputs["x0"].shape for s in samples} == {(1, 8)}


def test_a_reference_that_takes_nothing_says_why_first(tmp_path: Path) -> None:
    with pytest.raises(EngineUnusable, match="not these"):
        ask(Echo(refuses=lambda inputs: True), signature(("FP32", ("n", "m"))))
    echo = Echo(refuses=lambda inputs: True)
    with pytest.raises(EngineUnusable):
        ask(echo, signature(("FP32", (1, 2))))
    assert len(echo.asked) == 5  # a fixed shape is tried once with each kind, and with constants


def test_an_input_that_would_fill_the_memory_is_not_made() -> None:
    echo = Echo()
    with pytest.raises(EngineUnusable, match="no golden input fits"):
        ask(echo, signature(("FP32", (1 << 20, 1 << 20))))
    assert echo.asked == []


def test_an_input_that_the_reference_calls_wrong_is_left_out() -> None:
    class Picky(Echo):
        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            if inputs["x0"].max() > 1:
                raise InvalidInput("too high")
            return dict(inputs)

    assert len(ask(Picky(), signature(("INT64", (4,))))) == 1


def test_equal_names_get_equal_sizes() -> None:
    echo = Echo()
    ask(echo, signature(("FP32", ("n", "seq")), ("FP32", ("seq", 4))))
    assert echo.asked[0]["x0"][1] == echo.asked[0]["x1"][0]


def test_a_model_whose_indices_would_be_out_of_range_keeps_the_questions_it_can_answer(tmp_path: Path) -> None:
    reference, sign = session(tmp_path, models.gather())
    samples = ask(reference, sign)
    assert samples
    assert all(sample.inputs["index"].max() < 4 for sample in samples)
    assert all("y" in sample.outputs for sample in samples)


def test_outputs_that_are_random_by_design_are_left_out(tmp_path: Path) -> None:
    reference, sign = session(tmp_path, models.noisy())
    for sample in ask(reference, sign):
        assert list(sample.outputs) == ["y"]


def test_a_model_of_which_everything_is_random_is_not_accepted() -> None:
    class Dice(Echo):
        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            return {"x0": np.random.default_rng().random(8).astype(np.float32)}

    samples = ask(Dice(), signature(("FP32", (8,))))
    verdict = judge((Pair(s.outputs, s.inputs) for s in samples), TOLERANCES["fp32"])
    assert not verdict.accepted
    assert "nothing to compare" in verdict.reason


def test_an_output_that_is_not_a_number_every_time_is_kept() -> None:
    class Nan(Echo):
        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            return {"x0": np.array([np.nan, np.inf, 1], np.float32)}

    assert all("x0" in s.outputs for s in ask(Nan(), signature(("FP32", (3,)))))


def test_answers_are_kept_even_when_the_session_uses_its_arrays_again() -> None:
    class Reusing(Echo):
        answer = np.zeros(4, np.float32)

        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            self.answer[:] = inputs["x0"]
            return {"x0": self.answer}

    for sample in ask(Reusing(), signature(("FP32", (4,)))):
        np.testing.assert_array_equal(sample.inputs["x0"], sample.outputs["x0"])


def test_the_reference_agrees_with_itself_over_every_small_model(tmp_path: Path) -> None:
    for proto in (models.conv(), models.matmul(), models.several(), models.branches(), models.dynamic(), models.text()):
        reference, sign = session(tmp_path, proto)
        samples = ask(reference, sign)
        verdict = judge((Pair(s.outputs, reference.infer(s.inputs)) for s in samples), TOLERANCES["fp32"])
        assert verdict.accepted, verdict.reason


# -- a range of shapes ----------------------------------------------------------------------------------------------


def asked(
    given: Signature, settings: dict[str, str], refuses: object = None, known: Recognition = TENSORS
) -> list[dict[str, tuple[int, ...]]]:
    """The shapes that a model with settings is asked with, in order, once each; checked to be in its range."""
    picture = (known.preprocess.width, known.preprocess.height) if known.preprocess else None
    shape_range, echo = ShapeRange.read(given, settings, picture), Echo(refuses)
    made = golden.make(echo, given, known, (), shape_range)
    for sample in made.samples:
        assert shape_range.contains({name: array.shape for name, array in sample.inputs.items()})
    return [shapes for place, shapes in enumerate(echo.asked) if shapes not in echo.asked[:place]]


@pytest.mark.parametrize(
    ("shape", "text", "wanted"),
    [
        (("batch", "seq"), "1x128", [(1, 128)]),
        (("n", "seq"), "2x16 4x128 4x512", [(4, 128), (2, 16), (4, 512)]),
        ((4, "mel", "time"), "4x80x3000", [(4, 80, 3000)]),
        (("n", 4), "1x4 1x4 16x4", [(1, 4), (16, 4)]),
        (ANY_SHAPE, "1x3x5", [(1, 3, 5)]),
        (("n", 4), "0x4 2x4 16x4", [(2, 4), (16, 4)]),  # nothing can be asked with no elements
        (("n", 4), "1x4 2x4 4194304x4", [(2, 4), (1, 4)]),  # that batch would take 64 MiB
        ((2, 3), "2x3", [(2, 3)]),
    ],
)
def test_a_setting_for_shapes_says_what_is_asked(
    shape: tuple[int | str, ...], text: str, wanted: list[tuple[int, ...]]
) -> None:
    found = asked(signature(("FP32", shape)), {"profile.x0": text})
    assert found == [{"x0": each} for each in wanted]


def test_what_the_reference_refuses_is_asked_with_other_shapes_of_the_range() -> None:
    found = asked(signature(("FP32", ("n", "m"))), {"profile.x0": "1x4 1x48 4x48"}, lambda i: i["x0"].shape != (1, 8))
    assert [each["x0"] for each in found] == [(1, 48), (1, 32), (1, 16), (1, 8), (4, 48), (1, 4)]


def test_a_reference_that_takes_nothing_of_the_range_is_asked_beyond_it() -> None:
    given = signature(("FP32", ("n", "m")))
    made = golden.make(
        Echo(lambda i: i["x0"].shape[1] != 2), given, TENSORS, (), ShapeRange.read(given, {"profile.x0": "1x48"}, None)
    )
    assert {sample.inputs["x0"].shape for sample in made.samples} == {(1, 2)}


def test_inputs_that_share_dimensions_are_asked_together_and_grow_together() -> None:
    given = signature(("FP32", ("n", "seq")), ("FP32", ("n", "seq")), ("FP32", (1, "n")), ("FP32", (7,)))
    found = asked(given, {"profile.x0": "1x8 1x96 3x128"})
    one = {"x0": (1, 96), "x1": (1, 96), "x2": (1, 1), "x3": (7,)}
    batch = {"x0": (3, 96), "x1": (3, 96), "x2": (1, 3), "x3": (7,)}
    least = {"x0": (1, 8), "x1": (1, 8), "x2": (1, 1), "x3": (7,)}
    most = {"x0": (3, 128), "x1": (3, 128), "x2": (1, 3), "x3": (7,)}
    assert found == [one, batch, least, most]


def test_a_batch_that_no_setting_wants_is_not_asked_with() -> None:
    assert asked(signature(("FP32", ("batch", 4))), {}) == [{"x0": (1, 4)}]


def test_a_model_whose_range_nothing_tells_is_asked_as_without() -> None:
    given = signature(("FP32", ("n", "m")), ("FP32", ("n", "other")))
    assert asked(given, {"profile.x0": "1x128"}) == [{"x0": (1, 64), "x1": (1, 64)}]


def test_pictures_and_tensors_of_a_model_of_pictures_are_in_its_range() -> None:
    found = asked(RGB, {"profile.x0": "1x3x32x32 2x3x64x128 4x3x64x128"}, known=pictures_of(RGB, 96, 48))
    assert [each["x0"] for each in found] == [(2, 3, 64, 128), (4, 3, 64, 128), (1, 3, 32, 32), (1, 3, 48, 96)]
    assert [each["x0"] for each in asked(RGB, {}, known=pictures_of(RGB, 96, 48))] == [(1, 3, 48, 96)]


# -- pictures -------------------------------------------------------------------------------------------------------


RGB = signature(("FP32", ("batch", 3, "height", "width")))


def test_a_model_that_takes_pictures_is_asked_about_drawn_ones() -> None:
    made = golden.make(Echo(), RGB, pictures_of(RGB, 96, 48))
    shown = [sample for sample in made.samples if sample.kind == PICTURE]
    assert [sample.name for sample in shown] == [f"drawn picture {n}" for n in range(1, pictures.COUNT + 1)]
    assert all(sample.inputs["x0"].shape == (1, 3, 48, 96) for sample in shown)
    assert made.samples[0].kind != PICTURE


def test_the_users_pictures_are_prepared_as_in_serving(tmp_path: Path) -> None:
    known = pictures_of(RGB, 96, 48, **{"preprocess.fit": "letterbox", "preprocess.mean": "0.5", "preprocess.std": "2"})
    path = picture(tmp_path / "hall.png")
    made = golden.make(Echo(), RGB, known, [str(path)])
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
def test_pictures_fit_inputs_of_every_kind(tmp_path: Path, datatype: str, shape: tuple[int, ...]) -> None:
    wanted = signature((datatype, shape))
    made = golden.make(
        Echo(), wanted, recognise(wanted.inputs, wanted.outputs, {}, {}), [str(picture(tmp_path / "a.png"))]
    )
    samples = [sample for sample in made.samples if sample.kind == PICTURE]
    assert len(samples) == 1 + pictures.COUNT
    for sample in samples:
        array = sample.inputs["x0"]
        assert (array.dtype, array.shape) == (numpy_dtype(datatype), shape)
        assert array[0].any()
        assert not array[1:].any()  # with a fixed batch only the first is a picture, as in serving


BAD: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a picture"),
    "half": lambda path: path.write_bytes(picture(path.with_name("whole.jpg")).read_bytes()[:300]),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "too large": lambda path: path.write_bytes(bytes((16 << 20) + 1)),
}


@pytest.mark.parametrize("what", BAD)
def test_a_sample_that_cannot_be_read_is_left_out_and_told_in_one_line(tmp_path: Path, what: str) -> None:
    bad, good = tmp_path / "bad.jpg", picture(tmp_path / "good.png")
    BAD[what](bad)
    made = golden.make(Echo(), RGB, pictures_of(RGB, 8, 8), [str(bad), str(good)])
    (reason,) = made.skipped
    assert "bad.jpg" in reason
    assert "\n" not in reason
    assert "good.png" in [sample.name for sample in made.samples]


def test_pictures_of_a_model_that_takes_none_are_not_looked_at(tmp_path: Path) -> None:
    made = golden.make(Echo(), signature(("FP32", (3,))), TENSORS, [str(tmp_path / "gone.jpg")])
    assert made.skipped == ()


def test_a_picture_that_the_reference_refuses_is_left_out(tmp_path: Path) -> None:
    dark = tmp_path / "dark.png"
    cv2.imwrite(str(dark), np.zeros((8, 8, 3), np.uint8))
    made = golden.make(Echo(lambda inputs: not inputs["x0"].any()), RGB, pictures_of(RGB, 8, 8), [str(dark)])
    assert made.skipped == ("sample dark.png is refused by the reference: not these",)


def test_golden_answers_take_a_bounded_room_and_the_users_pictures_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = 2 * 3 * 8 * 8 * 4  # bytes of a picture with its answer, which is an echo
    monkeypatch.setattr(golden, "_MOST_BYTES", 3 * one)
    samples = [str(picture(tmp_path / f"{n}.png", n)) for n in range(4)]
    made = golden.make(Echo(), RGB, pictures_of(RGB, 8, 8), samples)
    assert [s.name for s in made.samples if s.kind == PICTURE] == ["0.png", "1.png", "2.png"]
    (reason,) = made.skipped
    assert "3.png is one too many" in reason


def test_an_output_that_was_random_before_is_left_out_of_pictures_which_are_asked_once(tmp_path: Path) -> None:
    class Dice(Echo):
        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            super().infer(inputs)
            return {"x0": inputs["x0"], "dice": np.random.default_rng().random(8).astype(np.float32)}

    dice = Dice()
    made = golden.make(dice, RGB, pictures_of(RGB, 8, 8), [str(picture(tmp_path / "a.png"))])
    assert {tuple(sample.outputs) for sample in made.samples} == {("x0",)}
    # Numbers and the first picture twice, the others once; each once more with inputs that are moved by one step. The
    # user's picture first of all, to see how long it takes.
    assert len(dice.asked) == 1 + 3 * 3 + 3 + 2 * pictures.COUNT


# -- the file -------------------------------------------------------------------------------------------------------


def test_samples_of_every_datatype_come_back_from_the_file(tmp_path: Path) -> None:
    wanted = signature(*((name, ("n", 3)) for name in models.ONNX_TYPES), ("FP32", ()), ("FP32", (0, 2)))
    samples = ask(Echo(), wanted)
    golden.save(tmp_path / "deep" / "file", samples)
    assert raw(golden.load(tmp_path / "deep" / "file").samples) == raw(samples)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93",
        b"garbage",
        b"\x91\x93\x80\x80\x80",
        b"\x91\x90",
        b"\x91\x92\x81\xa1x\x94\xa3bad\x90\xc4\x00\x90\x80",
    ],
)
def test_a_damaged_file_is_removed_so_that_it_is_made_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BuildFailed, match="made again"):
        golden.load(path)
    assert not path.exists()


def test_a_file_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    golden.save(path, ask(Echo(), signature(("FP32", (2,)), ("BYTES", (2,)))))
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(BuildFailed):
            golden.load(path)


def test_a_file_with_an_altered_answer_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    golden.save(path, ask(Echo(), signature(("FP32", (2000,)))))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 - 100] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(BuildFailed):
        golden.load(path)


def test_a_missing_file_is_made_anew(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed):
        golden.load(tmp_path / "none")


def test_names_placements_and_what_was_left_out_come_back_from_the_file(tmp_path: Path) -> None:
    samples = [str(picture(tmp_path / "a.png")), str(tmp_path / "gone.png")]
    made = golden.make(Echo(), RGB, pictures_of(RGB, 8, 8), samples)
    golden.save(tmp_path / "file", made.samples, made.skipped)
    loaded = golden.load(tmp_path / "file")
    assert loaded.skipped == made.skipped != ()
    assert [(s.kind, s.name, s.placement) for s in loaded.samples] == [
        (s.kind, s.name, s.placement) for s in made.samples
    ]
    for sample in loaded.samples:
        assert all(array.flags.aligned and array.flags.c_contiguous for array in sample.inputs.values())


def test_a_whole_file_of_another_format_is_made_anew(tmp_path: Path) -> None:
    body = msgspec.msgpack.encode([[{}, {}]])  # as it was once
    (tmp_path / "file").write_bytes(hashlib.sha256(body).digest() + body)
    with pytest.raises(BuildFailed, match="made again"):
        golden.load(tmp_path / "file")


def test_old_answers_of_the_same_model_are_removed_and_no_others(tmp_path: Path) -> None:
    one, other = "a" * 64, "b" * 64
    names = [f"{one}-1.golden", f"{one}-2.golden", f"{one}.golden", f"{other}-1.golden", f"{one}-1.other", "file"]
    for name in names:
        (tmp_path / name).touch()
    golden.prune(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    golden.prune(tmp_path / f"{one}-2.golden")
    kept = [f"{one}-2.golden", f"{other}-1.golden", f"{one}-1.other", "file"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


# -- which answers decide -------------------------------------------------------------------------------------------


def kinds(precision: str, *given: str) -> list[str]:
    return [sample.kind for sample in golden.deciding([Sample({}, {}, kind) for kind in given], precision)]


def test_an_engine_as_precise_as_the_model_is_judged_by_everything() -> None:
    assert kinds("fp32", "unit", WIDE, PICTURE) == ["unit", WIDE, PICTURE]


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16", "int8"])
def test_one_of_fewer_digits_is_judged_by_pictures_otherwise_by_what_a_model_may_meet(precision: str) -> None:
    assert kinds(precision, "unit", WIDE, PICTURE, PICTURE) == [PICTURE, PICTURE]
    assert kinds(precision, "unit", "normal", WIDE) == ["unit", "normal"]
    assert kinds(precision, WIDE) == [WIDE]

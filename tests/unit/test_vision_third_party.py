"""Families of other packages: which classes edged accepts, and what it does with everything that they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from edged import family_packages
from edged.errors import ConfigError, EngineUnusable, FamilyFailed, Unsupported
from edged.family_packages import Package
from edged.tensors import TensorSpec
from edged.vision.content import Classes, Content, Depth, Embedding, Text, ValueMap
from edged.vision.detections import Detections
from edged.vision.families.contract import CONTRACT, Claim, ContentFamily, Evidence, Family, Reading
from edged.vision.families.decoding import Outputs, Thresholds, picture_tensor
from edged.vision.families.testing import FamilyTest
from edged.vision.families.third_party import ThirdParty
from edged.vision.family import FAMILIES, Recognition, is_decoded_here, open_family, recognise
from edged.vision.placement import Placement
from edged.vision.signatures import patterns

INPUTS = (TensorSpec("images", "FP32", (1, 3, 64, 64)),)
OUTPUTS = (TensorSpec("found", "FP32", (1, "n", 6)),)
PACKAGE = Package("strange-package", "1.2", "digest")
BOX, NOTHING = np.array([[1, 2, 3, 4]], np.float32), np.empty((0, 4), np.float32)
SCORE, CLASS = np.array([0.5], np.float32), np.array([1], np.int32)
GOOD = Detections(BOX, SCORE, CLASS)


class Good(Family, frozen=True):
    """Returns `answer` for every picture."""

    contract = 1
    name = "good"
    signatures = patterns("found [N, R, columns]")
    answer: ClassVar[object] = GOOD

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        return self.answer() if callable(self.answer) else self.answer  # type: ignore[no-any-return, return-value]

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        return Claim(cls.name, reason, Reading(("found",), is_list=True), 3)

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        return cls.claim(evidence, "by its shape")


class GoodContent(ContentFamily, frozen=True):
    contract = 1
    name = "good-content"
    signatures = patterns("found [N, R, columns]")
    answer: ClassVar[object] = Classes((1,), (0.5,))

    def content(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Content:
        return self.answer() if callable(self.answer) else self.answer  # type: ignore[no-any-return, return-value]

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        return Claim(cls.name, reason, Reading(("found",)))


def changed(base: type[Any] = Good, **attributes: Any) -> type[Any]:
    """Return a subclass with other class attributes or methods."""
    found: type[Any] = type(base)("Changed", (base,), {"__module__": __name__, **attributes})
    return found


def see(*others: type[Any], outputs: tuple[TensorSpec, ...] = OUTPUTS, **settings: str) -> Recognition:
    loaded = [ThirdParty.of(each, each.name, PACKAGE) for each in others]
    return recognise(INPUTS, outputs, {}, settings, others=loaded)


def detect(kind: type[Any], outputs: Mapping[str, Any] | None = None) -> Detections:
    return FamilyTest(kind, INPUTS, OUTPUTS).detect(outputs or {}, width=64, height=64)


# -- classes ---------------------------------------------------------------------------------------------------------


def test_of_good_class_is_accepted_with_checked_methods() -> None:
    other = ThirdParty.of(Good, "good", PACKAGE)
    assert (other.name, other.package) == ("good", PACKAGE)
    assert issubclass(other.kind, Good)
    assert detect(Good).boxes.tolist() == BOX.tolist()


@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (CONTRACT + 1, "update edged"),
        (CONTRACT - 1, "install a newer version of strange-package"),
        (None, "names no version"),
        ("1", "names no version"),
        (True, "names no version"),
    ],
)
def test_of_other_contract_says_which_package_and_what_to_do(contract: object, words: str) -> None:
    with pytest.raises(FamilyFailed) as caught:
        ThirdParty.of(changed(contract=contract), "good", PACKAGE)
    assert "family good of package strange-package 1.2" in str(caught.value)
    assert words in str(caught.value)


def test_built_in_families_name_no_contract() -> None:
    assert not any(hasattr(family, "contract") for family in FAMILIES.values())


@pytest.mark.parametrize(
    "found",
    [
        None,
        Good.claim,
        Detections,
        changed(name="other"),
        changed(signatures=3),
        changed(thresholds=0.5),
        changed(thresholds=Thresholds(score="high")),  # type: ignore[arg-type]
        changed(thresholds=Thresholds(iou=float("nan"))),
        changed(thresholds=Thresholds(max_detections=5000)),
        changed(own_inputs="x"),
        changed(own_inputs=(1,)),
        changed(feed={"scale": float("inf")}),
        changed(feed={"std": (1.0, 0.0, 1.0)}),
        changed(feed={"size": 3}),
        changed(feed={"width": 3}),
        changed(feed={"mean": "red"}),
        changed(feed=3),
        changed(claim=3),
        changed(by_names=3),
    ],
)
def test_of_class_that_breaks_the_contract_is_refused(found: object) -> None:
    with pytest.raises(FamilyFailed, match=r"family good of package strange-package 1\.2"):
        ThirdParty.of(found, "good", PACKAGE)


# -- recognition -----------------------------------------------------------------------------------------------------


def test_recognise_names_the_package_and_is_plain_data() -> None:
    found = see(Good)
    assert (found.family, found.package, found.is_set) == ("good", PACKAGE, False)
    assert found.reason == "by its shape (package strange-package 1.2)"
    assert found.other_family == "family good of package strange-package 1.2"
    assert msgspec.json.decode(msgspec.json.encode(found), type=Recognition) == found
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Recognition) == found


def test_recognise_setting_names_the_family() -> None:
    assert see(Good, family="good").is_set
    assert see(changed(by_shape=None), family="good").family == "good"
    assert see(changed(by_shape=None)).family is None
    assert see(Good, family="raw").package is None
    with pytest.raises(ConfigError, match="tensors like found"):
        see(changed(claim=classmethod(lambda cls, evidence, reason: None)), family="good")


def test_recognise_model_of_edged_is_not_left_to_a_package() -> None:
    outputs = (TensorSpec("output0", "FP32", (1, 9, 84)),)  # a column for each cell of an input of 64 x 64 pixels
    assert see(outputs=outputs).family == "ultralytics"
    assert see(Good, outputs=outputs) == see(outputs=outputs)


def test_recognise_undecided_model_is_left_to_a_package() -> None:
    six = (TensorSpec("found", "FP32", (1, 300, 6)),)
    assert "set family=" in see(outputs=six).reason
    assert see(Good, outputs=six).family == "good"


def test_recognise_rules_are_asked_by_kind_and_order() -> None:
    by_names = changed(name="named", by_names=classmethod(lambda cls, evidence: cls.claim(evidence, "by its names")))
    assert see(Good, by_names).family == "named"
    assert see(Good, changed(name="second")).family == "good"


def _claims(**fields: Any) -> Callable[[], Claim]:
    return lambda: Claim(**{"family": "good", "reason": "x", "reading": Reading(("found",)), **fields})


def _raise() -> Claim:
    raise KeyError("anchor")


@pytest.mark.parametrize(
    "make",
    [
        _raise,
        lambda: 3,
        _claims(family="yolov5"),
        _claims(reading=Reading()),
        _claims(reading=Reading(("missing",))),
        _claims(reading=Reading(("found",), dense=("missing",))),
        _claims(reading=Reading(("found",), anchors="x")),  # type: ignore[arg-type]
        _claims(reading=3),
        _claims(reading=Reading(("found",), anchors=((float("nan"),),))),
        _claims(reading=Reading(("found",), extras=(("images", (2,)),))),
        _claims(reading=Reading(("found",), constants=(("images", ((1,), (2, 3))),))),
        _claims(reading=Reading(("\ud800",))),
        _claims(classes=-1),
        _claims(classes=2.5),
        _claims(background=-1),
        _claims(names=(1, 2)),
        _claims(reason=None),
    ],
)
def test_recognise_invalid_claim_names_the_package(make: Callable[[], object]) -> None:
    kind = changed(claim=classmethod(lambda cls, evidence, reason: make()))
    for settings in ({}, {"family": "good"}):
        with pytest.raises(FamilyFailed, match=r"family good of package strange-package 1\.2") as caught:
            see(kind, **settings)
        assert caught.value.family == "good"


def test_recognise_invalid_setting_of_a_package_is_a_config_error() -> None:
    def claim(cls: type[Any], evidence: Evidence, reason: str) -> Claim | None:
        raise ConfigError("decode.boxes=x is invalid")

    with pytest.raises(ConfigError, match="decode"):
        see(changed(claim=classmethod(claim)), family="good")


def test_recognise_long_reason_is_one_short_line() -> None:
    kind = changed(claim=classmethod(lambda cls, evidence, reason: _claims(reason="a\nb " * 900)()))
    assert len(see(kind).reason) < 500
    assert "\n" not in see(kind).reason


def test_open_family_without_permission_is_unsupported() -> None:
    found = see(Good)
    assert not is_decoded_here(found)
    with pytest.raises(Unsupported):
        open_family(found)
    family_packages.permit()
    try:
        assert is_decoded_here(found)
    finally:
        family_packages.permit(False)


# -- answers ---------------------------------------------------------------------------------------------------------


def _mask(*runs: Any) -> np.ndarray[Any, Any]:
    return np.array(runs, np.uint32)


@pytest.mark.parametrize(
    "answer",
    [
        Detections.empty(),
        Detections(BOX.astype(np.float64), SCORE.astype(np.float16), CLASS.astype(np.int64)),
        Detections(BOX, SCORE, CLASS, keypoints=np.zeros((1, 5, 3), np.float32)),
        Detections(BOX, SCORE, CLASS, corners=np.zeros((1, 4, 2), np.float32)),
        Detections(BOX, SCORE, CLASS, masks=(_mask(0, 64),)),
    ],
)
def test_decode_valid_answer_is_packed(answer: Detections) -> None:
    found = detect(changed(answer=answer))
    assert (found.boxes.dtype, found.scores.dtype, found.class_ids.dtype) == (np.float32, np.float32, np.int32)
    assert len(Detections.unpack(found.pack())) == len(answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "NoneType"),
        ([[1, 2, 3, 4]], "list"),
        (Classes((1,), (0.5,)), "Classes"),
        (Detections(BOX * np.nan, SCORE, CLASS), "boxes holds NaN"),
        (Detections(BOX, SCORE * np.inf, CLASS), "scores holds NaN"),
        (Detections(BOX[:, :3], SCORE, CLASS), r"boxes has shape \[1, 3\]"),
        (Detections(BOX, SCORE[:0], CLASS), "boxes has shape"),
        (Detections(BOX, SCORE, CLASS[:0]), "class_ids has shape"),
        (Detections(BOX, SCORE, SCORE), "class_ids is float32"),  # type: ignore[arg-type]
        (Detections(BOX, SCORE[0], CLASS), "scores"),
        (Detections(BOX.tolist(), SCORE, CLASS), "boxes is list"),  # type: ignore[arg-type]
        (Detections(BOX.astype(object), SCORE, CLASS), "boxes is object"),
        (Detections(BOX, SCORE, CLASS, keypoints=np.zeros((1, 5, 2), np.float32)), "keypoints has shape"),
        (Detections(BOX, SCORE, CLASS, corners=np.full((1, 4, 2), np.nan, np.float32)), "corners holds NaN"),
        (Detections(BOX, SCORE, CLASS, masks=()), "0 masks"),
        (Detections(BOX, SCORE, CLASS, masks=(np.zeros(2, np.float32),)), "mask is float32"),  # type: ignore[arg-type]
        (Detections(BOX, SCORE, CLASS, tracker_ids=np.zeros(1, np.int64)), "tracker_ids"),
        (Detections(BOX.repeat(301, 0), SCORE.repeat(301), CLASS.repeat(301)), "301 detections"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: picture_tensor({}, "found", 0), "did not return output found"),
    ],
)
def test_decode_invalid_answer_names_the_package(answer: object, words: str) -> None:
    answer = staticmethod(answer) if callable(answer) else answer
    with pytest.raises(FamilyFailed, match=rf"family good of package under-test 0: decode: .*{words}"):
        detect(changed(answer=answer))


@pytest.mark.parametrize("kind", [SystemExit, BaseException, GeneratorExit])
def test_decode_error_that_would_end_a_thread_names_the_package(kind: type[BaseException]) -> None:
    def leave() -> None:
        raise kind

    with pytest.raises(FamilyFailed, match=kind.__name__):
        detect(changed(answer=staticmethod(leave)))


@pytest.mark.parametrize("kind", [MemoryError, KeyboardInterrupt])
def test_decode_lack_of_memory_and_interrupt_stay_what_they_are(kind: type[BaseException]) -> None:
    def leave() -> None:
        raise kind

    with pytest.raises(kind):
        detect(changed(answer=staticmethod(leave)))


def test_boxes_of_a_package_are_checked_too() -> None:
    other = ThirdParty.of(changed(answer=None), "good", PACKAGE)
    found = recognise(INPUTS, OUTPUTS, {}, {}, others=[other])
    assert found.preprocess is not None
    family = other.kind(found.preprocess, found.names, found.reading)
    assert isinstance(family, Family)
    with pytest.raises(FamilyFailed):
        family.boxes({}, 0, Placement(1, 1, 0, 0, 64, 64), Thresholds())


_MAP = ValueMap.of(np.array([[0.0, 1.0]]))


@pytest.mark.parametrize("answer", [Classes((1,), (0.5,)), Depth(_MAP, True), Text("x", 0.5), Embedding.of([3.0, 4.0])])
def test_content_valid_answer_is_returned(answer: Content) -> None:
    kind = changed(GoodContent, answer=answer)
    assert FamilyTest(kind, INPUTS, OUTPUTS).content({}, width=64, height=64) == answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "NoneType"),
        (GOOD, "Detections"),
        (lambda: Classes((1,), (float("nan"),)), "must be finite"),
        (lambda: Classes((1, 2), (0.5,)), "2 classes with 1 scores"),
        (Classes(("one",), (0.5,)), "Expected `int`"),  # type: ignore[arg-type]
        (lambda: Text(3, 0.5), "TypeError"),  # type: ignore[arg-type]
        (Depth(3, True), "Expected"),  # type: ignore[arg-type]
    ],
)
def test_content_invalid_answer_names_the_package(answer: object, words: str) -> None:
    answer = staticmethod(answer) if callable(answer) else answer
    with pytest.raises(FamilyFailed, match=f"family good-content of package under-test 0: content: .*{words}"):
        FamilyTest(changed(GoodContent, answer=answer), INPUTS, OUTPUTS).content({}, width=64, height=64)


@pytest.mark.parametrize(
    "inputs",
    [
        None,
        {},
        {"sizes": np.zeros((2, 2), np.int64)},
        {"sizes": np.zeros((1, 3), np.int64)},
        {"sizes": [[1, 2]]},
        {"sizes": np.full((1, 2), np.nan)},
        {"sizes": np.zeros((1, 2)), "more": np.zeros(1)},
    ],
)
def test_extra_inputs_invalid_answer_names_the_package(inputs: object) -> None:
    kind = changed(extra_inputs=lambda self, placements: inputs)
    other = ThirdParty.of(kind, "good", PACKAGE)
    found = recognise(INPUTS, OUTPUTS, {}, {}, others=[other])
    assert found.preprocess is not None
    family = other.kind(found.preprocess, (), Reading(("found",), extras=(("sizes", (2,)),)))
    with pytest.raises(FamilyFailed, match="extra_inputs"):
        family.extra_inputs([Placement(1, 1, 0, 0, 64, 64)])


def test_open_error_names_the_package() -> None:
    def refuse(self: object) -> None:
        raise ValueError("no anchors")

    with pytest.raises(FamilyFailed, match=r"family good of package under-test 0: opening .*no anchors"):
        detect(changed(__post_init__=refuse))


def test_recognise_own_input_is_filled_if_the_reading_has_it() -> None:
    inputs = (*INPUTS, TensorSpec("sizes", "INT64", (1, 2)))
    reading = Reading(("found",), extras=(("sizes", (2,)),))
    claim = classmethod(lambda cls, evidence, reason: _claims(reading=reading)())
    filling = changed(own_inputs=("sizes",), claim=claim)
    assert FamilyTest(filling, inputs, OUTPUTS).recognition.reading.extras == (("sizes", (2,)),)
    with pytest.raises(FamilyFailed, match="own_inputs"):
        FamilyTest(changed(own_inputs=("sizes",)), inputs, OUTPUTS)


def test_own_input_with_constant_values_and_several_rows_for_a_picture_is_filled() -> None:
    inputs = (*INPUTS, TensorSpec("ids", "INT64", ("P", 3)))
    reading = Reading(("found",), constants=(("ids", ((1, 2, 3), (4, 5, 6))),))
    rows = np.array(reading.constants[0][1])
    kind = changed(
        own_inputs=("ids",),
        claim=classmethod(lambda cls, evidence, reason: _claims(reading=reading)()),
        extra_inputs=lambda self, placements: {"ids": np.tile(rows, (len(placements), 1))},
    )
    other = ThirdParty.of(kind, "good", PACKAGE)
    found = recognise(inputs, OUTPUTS, {}, {}, others=[other])
    assert found.reading.constants == reading.constants
    assert found.preprocess is not None
    family = other.kind(found.preprocess, (), found.reading)
    placements = [Placement(1, 1, 0, 0, 64, 64)] * 2
    assert family.extra_inputs(placements)["ids"].tolist() == [*rows.tolist(), *rows.tolist()]


def test_family_test_unrecognised_model_says_why() -> None:
    test = FamilyTest(changed(by_shape=None), INPUTS, OUTPUTS, settings={})
    with pytest.raises(AssertionError, match="not recognised"):
        test.detect({}, width=64, height=64)
    with pytest.raises(EngineUnusable):
        FamilyTest(changed(name=3), INPUTS, OUTPUTS)

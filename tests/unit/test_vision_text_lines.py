"""Readers of a line of text: random scores, decoded step by step; lists of characters; how a line is fitted."""

from __future__ import annotations

import math
import string
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edged
from edged.errors import ConfigError, EngineUnusable
from edged.models.settings import validate
from edged.tensors import Dim, TensorSpec
from edged.verification.contents import ContentMatcher
from edged.verification.verify import matcher_for
from edged.vision import characters
from edged.vision.content import MOST_TEXT, Classes, Text
from edged.vision.family import ContentFamily, Recognition, Thresholds, open_family, recognise
from edged.vision.metadata import read_metadata
from edged.vision.placement import Fit, Region, Roi, place
from edged.vision.prepare import Preparer
from edged.vision.preprocess import Preprocess
from tests.vision_exports import Export, spec
from tests.vision_graphs import graph

Floats = npt.NDArray[np.float32]
LETTERS = "0123456789ABC"
CLASSES = len(LETTERS) + 1
STEPS = 20
HALVES = (0.5, 0.5, 0.5)
LINE = (spec("x", "n", 3, 48, "w"),)
WHOLE = place(320, 48, 320, 48, Fit.LINE)
ANY = Thresholds(score=0.0)


def see(
    *shape: Dim,
    inputs: tuple[TensorSpec, ...] = LINE,
    metadata: dict[str, str] | None = None,
    head: str = "Softmax",
    **settings: str,
) -> Recognition:
    outputs = (spec("y", *(shape or ("n", "t", CLASSES))),)
    return recognise(inputs, outputs, metadata or {}, settings, ("Conv", "Softmax"), {"y": head})


def test_recognise_classifier_with_labels_where_readers_have_characters() -> None:
    inputs, labels = (spec("x", "n", 3, 224, 224),), {"character": "0\n90\n180\n270"}
    assert see("n", 4, inputs=inputs, metadata=labels, names="0,90,180,270").family == "classification"
    assert see("n", 4, inputs=inputs, metadata=labels).family is None


def read(recognition: Recognition, table: Floats, index: int = 0, thresholds: Thresholds = ANY) -> Text:
    family = open_family(recognition)
    assert isinstance(family, ContentFamily)
    found = family.content({"y": table}, index, WHOLE, thresholds)
    assert isinstance(found, Text)
    return found


def ctc(**settings: str) -> Recognition:
    return see(**{"family": "ctc", "decode.characters": LETTERS, **settings})


def softmax(values: Floats) -> Floats:
    powers = np.exp(values.astype(np.float64))
    return (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)


def random(seed: int, pictures: int = 3, classes: int = CLASSES) -> Floats:
    """Return logits [N, T, C] with clear winners, which are often blank or repeated."""
    numbers = np.random.default_rng(seed)
    values = numbers.normal(0, 1, (pictures, STEPS, classes)).astype(np.float32)
    winners = np.repeat(numbers.choice((0, 0, *range(classes)), (pictures, STEPS // 2)), 2, axis=1)
    np.put_along_axis(values, winners[..., None], numbers.uniform(3, 9, (pictures, STEPS, 1)), axis=2)
    return values


def as_published(table: Floats, letters: str, blank: int) -> tuple[str, float]:
    """Decode probabilities [T, C] as CTCLabelDecode of PaddleOCR does, one step after the other."""
    text, scores = "", []
    before = -1
    for step in table.tolist():
        best = step.index(max(step))
        if best not in (blank, before):
            text += letters[best - (1 if blank == 0 else 0)]
            scores.append(step[best])
        before = best
    return text, math.fsum(scores) / len(scores) if scores else 0.0


# -- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("blank", ["first", "last"])
@pytest.mark.parametrize("head", ["Softmax", "Add"])
def test_ctc_reads_as_the_authors_script(seed: int, blank: str, head: str) -> None:
    logits = random(seed)
    if blank == "last":
        logits = np.roll(logits, -1, axis=2)
    found = see(head=head, **{"family": "ctc", "decode.characters": LETTERS, "decode.blank": blank})
    for index in range(len(logits)):
        seen = read(found, softmax(logits) if head == "Softmax" else logits, index)
        text, score = as_published(softmax(logits[index]), LETTERS, 0 if blank == "first" else CLASSES - 1)
        assert seen.text == text
        assert seen.score == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(("layout", "order"), [("NTC", (0, 1, 2)), ("TNC", (1, 0, 2)), ("NCT", (0, 2, 1))])
def test_ctc_reads_axes_in_the_set_order(layout: str, order: tuple[int, int, int]) -> None:
    table = softmax(random(7))
    shape = np.array(("n", "t", CLASSES), object)[list(order)]
    found = see(*shape, **{"family": "ctc", "decode.characters": LETTERS, "decode.layout": layout})
    for index in range(len(table)):
        assert read(found, table.transpose(order), index) == read(ctc(), table, index)


def test_ctc_steps_first_are_recognised_by_the_batch() -> None:
    given = {"family": "ctc", "decode.characters": LETTERS}
    assert see(26, "n", CLASSES, **given).reading.form == "TNC"
    assert see(26, 1, CLASSES, inputs=(spec("x", 1, 1, 32, 100),), **given).reading.form == "TNC"
    assert see(1, 26, CLASSES, inputs=(spec("x", 1, 1, 32, 100),), **given).reading.form == "NTC"
    assert see("a", "b", CLASSES, **given).reading.form == "NTC"


def test_ctc_without_declared_rank_needs_the_layout() -> None:
    """Some exporters declare a wrong shape, as that of ddddocr does."""
    given = {"family": "ctc", "decode.characters": LETTERS}
    with pytest.raises(ConfigError, match=r"decode\.layout"):
        see(1, "t", **given)
    found = see(1, "t", head="Reshape", **given, **{"decode.layout": "TNC"})
    logits = random(3)
    assert read(found, logits.transpose(1, 0, 2), 2) == read(see(head="Add", **given), logits, 2)


@pytest.mark.parametrize(("rows", "text"), [("", ""), ("0000", ""), ("1122", "01"), ("10110", "00"), ("0aA00", "")])
def test_ctc_repeats_and_blanks(rows: str, text: str) -> None:
    best = [int(each) if each.isdecimal() else 0 for each in rows]
    table = np.eye(CLASSES, dtype=np.float32)[best][None]
    seen = read(ctc(), table.reshape(1, len(best), CLASSES))
    assert seen == Text(text, 1.0 if text else 0.0)


def test_text_below_the_threshold_is_empty() -> None:
    table = softmax(random(1))
    score = read(ctc(), table).score
    assert read(ctc(), table, thresholds=Thresholds(score=score - 0.01)).text
    assert read(ctc(), table, thresholds=Thresholds(score=score + 0.01)) == Text("", 0.0)
    assert ctc(**{"thresholds.score": "0.4"}).thresholds.score == 0.4


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("head", ["Softmax", "Add"])
def test_steps_that_are_not_finite_have_no_character(bad: float, head: str) -> None:
    found = see(head=head, **{"family": "ctc", "decode.characters": LETTERS})
    table = softmax(random(2))
    assert read(found, np.full_like(table, bad)) == Text("", 0.0)
    spoiled = table.copy()
    spoiled[0, ::3] = bad
    assert 0 < len(read(found, spoiled).text) < STEPS
    spoiled = table.copy()
    spoiled[0, :, 3] = bad
    assert 0 <= read(found, spoiled).score <= 1


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([1e-3, 1, 100, 1e30]), st.floats(0, 1))
def test_any_values_give_a_text_of_the_characters(seed: int, scale: float, holes: float) -> None:
    numbers = np.random.default_rng(seed)
    table = (numbers.standard_normal((1, STEPS, CLASSES)) * scale).astype(np.float32)
    table[numbers.random(table.shape) < holes * 0.1] = np.nan
    for head in ("Softmax", "Add"):
        seen = read(see(head=head, **{"family": "ctc", "decode.characters": LETTERS}), table)
        assert set(seen.text) <= set(LETTERS)
        assert 0 <= seen.score <= 1


def test_text_is_cut_at_the_limit() -> None:
    best = np.tile((1, 2), MOST_TEXT)
    assert len(read(ctc(), np.eye(CLASSES, dtype=np.float32)[best][None]).text) == MOST_TEXT
    listed = "ab\ncdef\n" + "\n".join(LETTERS)
    found = see("n", "t", 16, **{"family": "ctc", "decode.characters": listed})
    long = read(found, np.eye(16, dtype=np.float32)[np.tile((1, 2), MOST_TEXT)][None])
    assert len(long.text) == MOST_TEXT
    assert long.text.startswith("abcdefab")


@pytest.mark.parametrize("shape", [(1, STEPS, CLASSES + 1), (1, CLASSES), (0, STEPS, CLASSES)])
def test_scores_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EngineUnusable, match="y"):
        read(ctc(), np.zeros(shape, np.float32))


def test_half_precision_reads_the_same() -> None:
    table = softmax(random(4))
    seen = read(ctc(), table.astype(np.float16))
    assert seen.text == read(ctc(), table).text
    assert seen.score == pytest.approx(read(ctc(), table).score, abs=1e-3)


def test_parseq_end_may_be_the_last_class() -> None:
    logits = random(1)
    first, last = (
        see(head="Add", **{"family": "parseq", "decode.characters": LETTERS, "decode.blank": each})
        for each in ("first", "last")
    )
    one, other = read(last, np.roll(logits, -1, axis=2)), read(first, logits)
    assert one.text == other.text
    assert one.score == pytest.approx(other.score)  # the order of a sum may differ


@pytest.mark.parametrize("seed", range(5))
def test_parseq_ends_at_the_first_class_0(seed: int) -> None:
    logits = random(seed)
    found = see(head="Add", **{"family": "parseq", "decode.characters": LETTERS})
    for index in range(len(logits)):
        best = logits[index].argmax(axis=1).tolist()
        end = best.index(0) if 0 in best else STEPS
        scores = softmax(logits[index]).max(axis=1)[:end]
        seen = read(found, logits, index)
        assert seen.text == "".join(LETTERS[each - 1] for each in best[:end])
        assert seen.score == pytest.approx(float(scores.mean()) if end else 0.0, abs=1e-5)


def test_parseq_of_95_classes_has_the_characters_of_its_authors() -> None:
    found = see("n", 26, 95, inputs=(spec("input", "n", 3, "h", "w"),), family="parseq")
    assert found.names[1:] == tuple(string.digits + string.ascii_letters + string.punctuation)
    assert found.preprocess == Preprocess(128, 32, mean=HALVES, std=HALVES)
    with pytest.raises(ConfigError, match=r"decode\.characters"):
        see("n", 26, 37, family="parseq")


# -- the characters of the classes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("", ()),
        ("abc", ("a", "b", "c")),
        ("abc\n", ("a", "b", "c")),
        ("a\nb\nc", ("a", "b", "c")),
        ("\ufeffa\r\nb\r\n", ("a", "b")),
        ("a\n \n\u3000\n", ("a", " ", "\u3000")),
        ("\na\nbc", ("", "a", "bc")),
        ("a\x1b[2J\nb", ("a\ufffd[2J", "b")),
        ("a\x85\u2028\u202f", ("a", "\ufffd", "\ufffd", "\u202f")),
        ("x" * (characters.MOST_LISTED + 1), ()),
    ],
)
def test_parse_lines_or_characters(text: str, listed: tuple[str, ...]) -> None:
    assert characters.parse(text) == listed


@pytest.mark.parametrize(
    ("listed", "classes", "last", "names"),
    [
        ("ab", 3, False, ("", "a", "b")),
        ("ab", 3, True, ("a", "b", "")),
        ("ab", 4, False, ("", "a", "b", " ")),
        ("ab", 4, True, ("a", "b", " ", "")),
        ("ab", None, False, ("", "a", "b")),
        ("a\n\nb", 3, False, ("a", "", "b")),
        ("a\n\nb", None, True, ("a", "", "b")),
        ("a\n\nb", 4, False, None),
        ("ab", 2, False, None),
        ("ab", 5, False, None),
        ("", 1, False, None),
        ("a\n\n\nb", 4, False, None),
    ],
)
def test_by_class_adds_the_blank_and_the_space(
    listed: str, classes: int | None, last: bool, names: tuple[str, ...] | None
) -> None:
    assert characters.by_class(characters.parse(listed), classes, nothing_last=last) == names


# -- recognition -----------------------------------------------------------------------------------------------------

RAPID = {"character": "\n".join(LETTERS)}
MANY = "".join(map(chr, range(0x4E00, 0x4E00 + 18_708)))


def test_recognise_rapidocr_by_its_metadata() -> None:
    found = see("n", "t", CLASSES + 1, metadata=RAPID)
    assert (found.family, found.is_set) == ("ctc", False)
    assert "320 x 48 pixels by default" in found.picture
    assert found.names == ("", *LETTERS, " ")
    assert found.preprocess == Preprocess(320, 48, color="bgr", fit=Fit.LINE, pad=127, mean=HALVES, std=HALVES)
    assert found.thresholds.score == 0.0


def test_recognise_thousands_of_characters() -> None:
    found = see("n", "t", 18_710, **{"decode.characters": MANY})
    assert found.family == "ctc"
    assert len(found.names) == 18_710
    assert read(found, np.eye(18_710, dtype=np.float32)[[18_708, 18_709, 1]][None]).text == f"{MANY[-1]} {MANY[0]}"


def test_recognise_setting_has_precedence_over_the_file() -> None:
    found = see("n", "t", CLASSES, metadata=RAPID, **{"decode.characters": LETTERS[::-1]})
    assert found.names == ("", *LETTERS[::-1])


@pytest.mark.parametrize(
    ("shape", "metadata", "settings", "words"),
    [
        (("n", "t", 9), RAPID, {}, "13 entries; the model has 9 classes, so list 8"),
        (("n", "t", 9), RAPID, {"decode.characters": "\na\nb"}, "3 entries; the model has 9 classes, so list 9"),
        (("n", "t", 6625), {}, {}, "set decode.characters"),
        (("n", "t", CLASSES), RAPID, {"names": "a,b"}, "decode.characters"),
    ],
)
def test_recognise_without_fitting_characters_is_told(
    shape: tuple[Dim, ...], metadata: dict[str, str], settings: dict[str, str], words: str
) -> None:
    found = see(*shape, metadata=metadata, **settings)
    assert found.family is None
    assert words in found.reason
    with pytest.raises(ConfigError, match=r"decode\.characters"):
        see(*shape, metadata=metadata, family="ctc", **settings)


def test_recognise_other_tensors_of_three_axes_are_not_claimed() -> None:
    for inputs, head in (((spec("images", 1, 3, 640, 640),), "Softmax"), (LINE, "Concat")):
        found = see(1, 300, CLASSES, inputs=inputs, head=head)
        assert found.family is None
        assert "text" not in found.reason


@pytest.mark.parametrize(
    "settings",
    [
        {"decode.blank": "middle"},
        {"decode.layout": "CTN"},
        {"decode.activation": "sigmoid"},
        {"decode.characters": "ab"},
    ],
)
def test_recognise_invalid_settings_are_refused(settings: dict[str, str]) -> None:
    validate(settings)  # the names are known
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ctc(**settings)


def test_read_metadata_has_the_characters() -> None:
    assert read_metadata(RAPID).characters == tuple(LETTERS)
    assert read_metadata({}).characters == ()


# -- a line in the input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(100, 30), (320, 48), (33, 47), (1, 500), (2000, 40), (500, 75), (5, 5)])
def test_place_line_as_paddleocr(size: tuple[int, int]) -> None:
    """The formula is that of `resize_norm_img`: width rounded up, at most that of the input."""
    width, height = size
    found = place(width, height, 320, 48, Fit.LINE)
    assert found.inner == (min(math.ceil(48 * (width / float(height))), 320), 48)
    assert (found.pad_x, found.pad_y) == (0, 0)


def test_prepare_line_is_at_the_left_and_zero_to_the_right() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (60, 150, 3), np.uint8)
    out = np.empty((3, 48, 320), np.float32)
    fed = see("n", "t", CLASSES + 1, metadata=RAPID).preprocess
    assert fed is not None
    Preparer(fed).prepare(picture, out, Roi(Region(10, 6, 100, 48)))
    np.testing.assert_allclose(out[:, :, :100], picture[6:54, 10:110].transpose(2, 0, 1) / 127.5 - 1, atol=1e-5)
    assert np.abs(out[:, :, 100:]).max() < 0.005


# -- lines that are upside down --------------------------------------------------------------------------------------


def test_ppocr_cls_classifies_and_is_told_apart() -> None:
    inputs, output = (spec("x", "n", 3, "h", "w"),), "save_infer_model/scale_0.tmp_1"
    told = recognise(inputs, (spec(output, "n", 2),), {}, {}, ("Conv",), {output: "Softmax"})
    assert told.family is None
    assert "family=ppocr-cls, family=classification or family=raw" in told.reason
    found = recognise(inputs, (spec(output, "n", 2),), {}, {"family": "ppocr-cls"}, ("Conv",), {output: "Softmax"})
    assert found.names == ("0", "180")
    assert found.preprocess == Preprocess(192, 48, color="bgr", fit=Fit.LINE, pad=127, mean=HALVES, std=HALVES)
    family = open_family(found)
    assert isinstance(family, ContentFamily)
    seen = family.content({output: np.array(((0.25, 0.75),), np.float32)}, 0, WHOLE, found.thresholds)
    assert seen == Classes((1, 0), (0.75, 0.25))
    with pytest.raises(ConfigError, match="family=ppocr-cls needs"):
        recognise(inputs, (spec(output, "n", 3),), {}, {"family": "ppocr-cls"})


# -- verification ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sure", "figure"), [(0.5, None), (0.95, ("text", 0.0))])
def test_verification_compares_only_texts_that_are_read_clearly(sure: float, figure: tuple[str, float] | None) -> None:
    """Pictures without text give characters that the last bit of a value decides."""
    rest = (1 - sure) / (CLASSES - 1)
    expected, found = (np.full((1, 1, CLASSES), rest, np.float32) for _ in range(2))
    expected[..., 1], found[..., 2] = sure, sure
    matcher = matcher_for(ctc(), 0.1)
    assert isinstance(matcher, ContentMatcher)
    assert matcher.figure({"y": expected}, {"y": found}, None) == figure


# -- the whole path --------------------------------------------------------------------------------------------------


def test_load_recogniser_reads_the_planted_text(tmp_path: Path) -> None:
    best = [0, 1, 1, 0, 1, 4, 14, 14, 3, 0]
    output = spec("y", 1, len(best), CLASSES + 1)
    export = Export("ctc", (output,), lambda _: {}, metadata=RAPID, inputs=(spec("x", 1, 3, 48, 64),))
    table = np.eye(CLASSES + 1, dtype=np.float32)[best][None] * 8
    file = graph(export, {"y": table}, tmp_path / "rec.onnx")
    with edged.load(file, cache=tmp_path / "cache", build=False) as model:
        result = model.infer(cv2.merge([np.zeros((30, 90), np.uint8)] * 3))
    assert isinstance(result.content, Text)
    assert result.content.text == "003 2"
    assert result.content.score == pytest.approx(float(softmax(table).max()), abs=1e-4)

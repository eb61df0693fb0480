"""The page about an engine: well-formed, self-contained, safe with hostile names, and bounded in size."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from edged.api.report import charts
from edged.api.report.page import Report, page
from edged.api_types import Composition, EngineInfo, JudgementInfo, Speed, Verdict
from edged.store.judgement import Box, Judgement, Point, Tally, WorstFrame
from edged.store.record import Blocks

HOSTILE = """<script>alert("x")</script><img src=x onerror='y'>&amp;"'"""
VOID = {"meta", "img", "link", "br", "hr", "input"}
JPEG = b"\xff\xd8 a picture"


class Checked(HTMLParser):
    """Checks that tags are closed in order; collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def engine(text: str = "doors", **changes: Any) -> EngineInfo:
    verdict = Verdict(False, f"recall 0.5 is below 0.9; class {text!r}: lost", {"cosine": 0.99, "boxes": 0.5})
    made = Composition({"int8": 20, "fp32": 3}, {}, (text,), (f"Softmax {text}: small",), (text,))
    info = EngineInfo(
        *("a1b2" * 16, text, "openvino", "int8", "rejected", text, {}, 5.0, 12.0, 1, 1e9, 1.0, "cpu", verdict),
        composition=made,
        speeds=(Speed(1, 0, 5.0, 5.0, 12.0),),
    )
    return msgspec.structs.replace(info, **changes)


def judgement(text: str = "person", frames: int = 12) -> Judgement:
    boxes = tuple(Box(1.5, 2, 30, 40, 0.9, text) for _ in range(24))
    figures = {"recall": 0.5, "precision": 0.95}
    worst = tuple(WorstFrame(f"{n}-{text}.jpg", text, figures, boxes, boxes[:2]) for n in range(frames))
    tallies = (Tally(text, 10, 5, figures), Tally("other", 3, 3, {"recall": 1.0}))
    curve = tuple(Point(score / 20, 0.9, 1 - score / 20) for score in range(1, 20))
    about = ("c1", "different", text, 200, 3, 900, figures, {"recall": 0.9, "precision": 0.9})
    return Judgement(*about, tallies, tallies, curve, worst)  # type: ignore[arg-type]


def made(text: str = "person", size: int = 20) -> str:
    found = judgement(text)
    times = Blocks((5.1, 5.2, 5.0, 7.5), (12.0, 12.4, 11.9, 14.0))
    report = Report(engine(text), (text,), {"cosine": 0.98, "boxes": 0.85}, found, times)
    return page(report, {frame.name: (JPEG * size, JPEG * size) for frame in found.worst})


def test_page_is_well_formed_and_has_every_part() -> None:
    found = Checked(made())
    words = (
        "Refused",
        "recall",
        "at least 0.9, not kept",
        "900 objects",
        "By class",
        "By camera",
        "3 frames could not",
    )
    for word in (
        *words,
        "Softmax person: small",
        "2.40 times the reference",
        "fp32: 24 detections",
        "int8: 2 detections",
    ):
        assert word in found.text, word
    assert sum(tag == "svg" for tag, _ in found.tags) == 2
    assert sum(tag == "img" for tag, _ in found.tags) == 24
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in found.tags


def test_page_refers_to_nothing_outside() -> None:
    text = made()
    for tag, attributes in Checked(text).tags:
        assert tag not in ("script", "link", "iframe", "object", "form", "a"), tag
        assert not any(name.startswith("on") for name in attributes)
        assert "href" not in attributes
        assert (attributes.get("src") or "data:").startswith("data:")
    assert not re.search(r"https?:|url\(|@import|//[a-z]", text)


def test_page_escapes_names_of_models_classes_and_cameras() -> None:
    text = made(HOSTILE)
    found = Checked(text)
    assert "<script" not in text
    assert not any(tag == "img" and (attributes.get("src") or "").startswith("x") for tag, attributes in found.tags)
    assert found.text.count('<script>alert("x")</script>') > 20
    assert all(set(attributes) <= {"alt", "src"} for tag, attributes in found.tags if tag == "img")


def test_page_size_is_bounded_by_its_pictures() -> None:
    found = judgement()
    half = (3 << 19) // 24
    report = Report(engine(), ("doors",), {}, found)
    text = page(report, {frame.name: (b"x" * half, b"x" * half) for frame in found.worst})
    assert len(text) < 3 << 20
    assert len(page(report, {})) < 60_000


def test_page_without_pictures_says_why_and_shows_the_figures() -> None:
    report = Report(engine(), ("doors",), {}, judgement(), no_pictures="12 of 12 frames have no picture")
    found = Checked(page(report, {}))
    assert "12 of 12 frames have no picture" in found.text
    assert not any(tag == "img" for tag, _ in found.tags)
    assert "0-person.jpg" in found.text


@pytest.mark.parametrize(
    ("precision", "judged", "word"),
    [
        ("int8", None, "not verified yet"),
        ("fp32", None, "by rounding only"),
        ("int8", Judgement("c1", "no_frames"), "collection c1 no longer exist"),
    ],
)
def test_page_of_an_engine_that_was_not_judged_says_why(precision: str, judged: Judgement | None, word: str) -> None:
    info = None if judged is None else JudgementInfo("c1", judged.outcome, "", 0, 0, 0, {}, {})
    shown = engine(precision=precision, verdict=None, speeds=(), judgement=info)
    report = Report(shown, ("doors",), {}, judged)
    found = Checked(page(report, {}))
    assert word in found.text
    assert "not verified yet" in found.text
    assert "The engine was not timed." in found.text


def test_engine_says_why_it_was_not_judged_on_frames() -> None:
    assert "rejected before" in engine().unjudged
    assert engine(verdict=Verdict(True, "", {})).unjudged.endswith("edged samples collect doors")
    assert engine(judgement=JudgementInfo("c1", "alike", "", 9, 0, 60, {}, {})).unjudged == ""


@pytest.mark.parametrize(("reason", "is_deciding"), [("", False), ("top1 0.3 is below 0.9, against", True)])
def test_page_shows_no_limit_of_a_figure_that_did_not_decide(reason: str, is_deciding: bool) -> None:
    verdict = Verdict(not reason, reason, {"top1": 0.3, "boxes": 0.95})
    found = Checked(page(Report(engine(verdict=verdict), ("doors",), {"top1": 0.9, "boxes": 0.85}), {}))
    assert ("not kept" in found.text) is is_deciding
    assert "at least 0.85" in found.text


def test_page_of_a_content_shows_its_lines() -> None:
    frame = WorstFrame("1.jpg", "hall", {"top1": 0.0}, (), (), ("cat 90%",), ("dog 80%", "cat 10%"))
    found = Checked(page(Report(engine(), ("doors",), {}, Judgement("c1", "alike", worst=(frame,), frames=1)), {}))
    assert "fp32: cat 90%" in found.text
    assert "int8: dog 80%; cat 10%" in found.text


def numbers(svg: str) -> list[float]:
    return [float(number) for number in re.findall(r' (?:x|y|x1|x2|y1|y2|cx|cy|width)="([^"]*)"', svg)]


@pytest.mark.parametrize(
    ("engine", "reference"),
    [
        ((5.0,), (12.0,)),
        ((5.0, 5.0), (5.0, 5.0)),
        ((0.001, 0.002), (900.0, 1000.0)),
        ((math.nan, 0.0, 3.0), (math.inf, 4.0)),
        (tuple(range(1, 201)), ()),
    ],
)
def test_latencies_chart_stays_in_its_frame(engine: tuple[float, ...], reference: tuple[float, ...]) -> None:
    svg = charts.latencies(engine, reference)
    Checked(svg)
    assert all(0 <= number <= 360 for number in numbers(svg))
    assert svg.count('class="grid"') >= 2


def test_charts_without_values_are_empty() -> None:
    assert charts.latencies((), ()) == charts.latencies((math.nan,), ()) == charts.score_curves(()) == ""


def test_score_curves_stay_in_their_frame() -> None:
    svg = charts.score_curves([Point(0.05, 1.4, 0.0), Point(0.95, -1.0, 1.0)])
    Checked(svg)
    points = [float(number) for pair in re.findall(r'points="([^"]*)"', svg) for number in re.split("[ ,]", pair)]
    assert all(0 <= number <= 360 for number in points)

"""The two runs of the demonstration's daemon: when they are settled, their events, and the report."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rich.console import Console
from rich.text import Text

from edged.api_types import EngineInfo, ModelInfo, Verdict
from edged.client.requests import FrameCounts as StreamCounts
from edged.demo.life import Life, Story, is_cache_hit
from edged.demo.report import CameraCounts, EngineFigures, FrameCounts, Outcome, Totals, make_report
from edged.demo.view import render, wrapped
from edged.shapes import Prediction, Truth


def engine(key: str, state: str, latency: float | None = None, **changes: Any) -> EngineInfo:
    """Return an engine: `ref` is the reference, any other key an optimised engine. One with a latency is built."""
    made = latency is not None
    found = EngineInfo(
        key=key,
        model="shapes",
        backend="onnxruntime" if key == "ref" else key,
        precision="fp32",
        state=state,
        reason="",
        parts={"recipe.optimization": "none" if key == "ref" else "all"},
        latency_ms=latency,
        reference_ms=9.0 if made else None,
        bytes=10 if made else 0,
        created_unix_s=1000.0 if made else 0.0,
        build_s=0.5 if made else None,
        device="cpu",
        verdict=Verdict(True, "", {"cosine": 1.0}) if made else None,
    )
    return msgspec.structs.replace(found, **changes)


def model(swaps: int) -> ModelInfo:
    return ModelInfo("shapes", "1", "d", "ready", "", "ultralytics", "", "", (), (), {}, swaps)


def stream(sent: int, answered: int = 0, skipped: int = 0, failed: int = 0) -> StreamCounts:
    counts = StreamCounts()
    counts.sent, counts.answered, counts.skipped, counts.failed = sent, answered, skipped, failed
    return counts


def shown() -> tuple[FrameCounts, Life, Life]:
    """Return the counts and both runs of a demonstration without problems."""
    counts = FrameCounts(["cam1"], judged=False)
    counts.ages = [10.0, 20.0]
    counts.cameras[0].streams.append(stream(4, answered=2, skipped=2))
    cold, warm = Life(), Life()
    engines = [engine("ref", "ready", 9.0), engine("openvino", "serving", 4.0)]
    for key, at in (("ref", 0.9), ("openvino", 3.4)):
        cold.answer(key, at)
    cold.look(model(1), engines, 5.0)
    warm.answer("openvino", 0.8)
    warm.look(model(0), engines, 2.0)
    cold.streamed_s, warm.streamed_s = 6.0, 4.0
    return counts, cold, warm


# --- frames ---------------------------------------------------------------------------------------------------------


def test_totals_sum_streams_and_cameras() -> None:
    counts = FrameCounts(["cam1", "cam2"], judged=False)
    counts.cameras[0].streams += [stream(9, 4, 3, 1), stream(5, 5)]
    counts.cameras[1].streams += [stream(2, 2)]
    counts.cameras[0].streams[0].on_lost()  # a frame without an answer
    assert counts.cameras[0].totals() == Totals(14, 9, 3, 2)
    assert counts.totals() == Totals(16, 11, 3, 2)


def test_lately_covers_the_last_seconds() -> None:
    now = 100.0
    camera = CameraCounts("cam1", clock=lambda: now)
    assert camera.lately() == (0.0, None)
    for age in (10.0, 30.0):
        camera.on_answer(age)
    assert camera.lately() == (1.0, 20.0)
    now += 1.0
    camera.on_answer(50.0)
    now += 1.5
    assert camera.lately() == (0.5, 50.0)


@pytest.mark.parametrize("judged", [True, False])
def test_judge_ignores_detections_below_the_score(judged: bool) -> None:
    counts, square = FrameCounts(["cam1"], judged=judged), Truth(1, 10, 10, 50, 50)
    assert (counts.precision, counts.recall) == (None, None)  # no answer yet
    right, wrong = Prediction(1, 0.9, 11, 10, 50, 50), Prediction(1, 0.4, 60, 60, 90, 90)
    weak = Prediction(1, 0.39, 60, 60, 90, 90)
    counts.ages.append(1.0)
    counts.judge([right, wrong, weak], [square])
    counts.judge([], [square])
    assert (counts.precision, counts.recall) == ((0.5, 0.5) if judged else (None, None))


# --- reports --------------------------------------------------------------------------------------------------------


def test_report_without_an_answer_is_a_problem_without_ages() -> None:
    made = make_report(FrameCounts(["cam1"], judged=False), Life(), Life(), swap_due=True)
    assert (made.p50_ms, made.p99_ms, made.problems) == (None, None, ("no frame was answered",))


def test_report_of_a_good_run_has_figures() -> None:
    made = make_report(*shown(), swap_due=True)
    assert made.problems == ()
    assert (made.first_answer_s, made.cold_start_s, made.warm_start_s) == (0.9, 3.4, 0.8)
    assert (made.swaps, made.cache_hit, made.fps, made.p50_ms, made.p99_ms) == (1, True, 0.2, 10.0, 20.0)
    assert made.engine == EngineFigures("openvino", "openvino", "serving")
    assert (made.frames_sent, made.frames_answered, made.frames_skipped, made.frames_failed) == (4, 2, 2, 0)


def test_report_failed_and_uncounted_frames_are_problems() -> None:
    counts, cold, warm = shown()
    counts.cameras[0].streams.append(stream(1, failed=1))
    counts.error = "the host died (INTERNAL)"
    failed = "1 of 5 frames failed: the host died (INTERNAL)"
    assert make_report(counts, cold, warm, swap_due=True).problems == (failed,)
    counts.cameras[0].streams[0].answered += 1
    assert make_report(counts, cold, warm, swap_due=True).problems == (failed, "5 frames were sent, but 6 came back")


def test_report_unoptimised_engine_that_is_fastest_is_no_problem() -> None:
    counts, cold, warm = shown()
    for life in (cold, warm):
        life.look(model(0), [engine("ref", "serving", 9.0), engine("openvino", "ready", 9.5)], 5.0)
    assert make_report(counts, cold, warm, swap_due=True).problems == ()


def test_report_without_a_swap_for_lack_of_time_is_no_problem() -> None:
    counts, cold, warm = shown()
    cold.look(model(0), [engine("ref", "serving", 9.0), engine("openvino", "building")], 5.0)
    warm.look(
        model(1), [engine("ref", "ready", 9.0), engine("openvino", "serving", 4.0)], 2.0
    )  # ready in time for the second run
    report = make_report(counts, cold, warm, swap_due=True)
    assert (report.problems, report.unfinished) == ((), "openvino: building")
    shown_text = render(Outcome(report, cold, warm), (), Console(width=200)).plain
    assert "Your box is busy: the faster engine is still being built (openvino: building)" in shown_text
    assert "edged up MODEL.onnx" in shown_text


def test_report_without_a_swap_has_the_reason() -> None:
    counts, cold, warm = shown()
    openvino, why = engine("openvino", "failed", reason="no memory"), "openvino failed: no memory"
    engines = [engine("ref", "serving", 9.0), openvino]
    cold.look(model(0), engines, 5.0)
    warm.look(model(0), engines, 2.0)
    (problem,) = make_report(counts, cold, warm, swap_due=True).problems
    assert why in problem
    assert make_report(counts, cold, warm, swap_due=False).problems == ()


@pytest.mark.parametrize(
    "engines",
    [
        [engine("ref", "ready", 9.0), engine("openvino", "serving", 4.0, created_unix_s=2000.0)],
        [engine("ref", "ready", 9.0), engine("openvino", "ready", 4.0), engine("tensorrt", "serving", 1.0)],
        [engine("ref", "ready", 9.0), engine("openvino", "ready", 4.0)],
    ],
    ids=["built again", "new", "none serves"],
)
def test_is_cache_hit_only_if_the_stored_engine_serves(engines: list[EngineInfo]) -> None:
    counts, cold, warm = shown()
    assert is_cache_hit(cold, warm)
    warm.look(model(0), engines, 2.0)
    assert not is_cache_hit(cold, warm)
    assert len(make_report(counts, cold, warm, swap_due=True).problems) == 1


def test_is_settled_when_the_fastest_serves_and_nothing_is_built() -> None:
    life = Life()
    assert not life.is_settled(0.0)
    life.answer("ref", 0.9)
    life.look(model(0), [engine("ref", "serving"), engine("openvino", "absent")], 1.0)
    assert not life.is_settled(1.0)
    life.look(model(0), [engine("ref", "serving", 9.0), engine("openvino", "ready", 4.0)], 3.0)
    assert not life.is_settled(3.0)  # the faster engine is about to be opened
    life.look(model(1), [engine("ref", "ready", 9.0), engine("openvino", "serving", 4.0)], 4.0)
    assert not life.is_settled(4.0)  # the faster engine has not answered yet
    life.answer("openvino", 4.1)
    assert life.is_settled(4.2)


@pytest.mark.parametrize(
    ("latency", "now", "settled"),
    [(4.0, 2.0, True), (2.0, 2.0, False), (2.0, 1000.0, True)],
    ids=["hardly faster", "faster", "faster, but never opened"],
)
def test_is_settled_waits_a_while_for_a_faster_engine(latency: float, now: float, settled: bool) -> None:
    life = Life()
    life.answer("onnx", 1.0)
    for moment in (2.0, now):
        life.look(model(1), [engine("onnx", "serving", 4.1), engine("openvino", "ready", latency)], moment)
    assert life.is_settled(now) is settled


def test_story_reports_each_event_once_in_order() -> None:
    life = Life()
    story = Story(life)
    life.answer("ref", 0.9)
    life.look(model(0), [engine("ref", "serving"), engine("openvino", "building")], 1.0)
    assert story.new_lines(1.0) == [(0.9, "first answer, by onnxruntime unoptimised; nothing is built yet")]
    life.look(model(0), [engine("ref", "serving", 9.0), engine("openvino", "ready", 4.0)], 3.0)
    built = "openvino built in 0.5 s, verified (cosine 1.0000)"
    assert [line.text for line in story.new_lines(3.0)] == [
        "onnxruntime unoptimised measured",
        f"{built}: 2.2 times as fast as unoptimised",
    ]
    life.answer("openvino", 3.4)
    assert story.new_lines(4.0) == [(3.4, "openvino swapped in: 2.2 times as fast as unoptimised")]
    assert story.new_lines(5.0) == []
    late = [line.text for line in Story(life).new_lines(5.0)]  # it sees both events at once
    assert f"{built} and swapped in: 2.2 times as fast as unoptimised" in late
    assert len(late) == 3


def test_story_after_a_restart_reports_only_what_is_new() -> None:
    _, cold, warm = shown()
    assert Story(warm, cold).new_lines(2.0) == [(0.8, "first answer, by openvino from the store")]


def rendered(counts: FrameCounts, cold: Life, warm: Life) -> str:
    return render(Outcome(make_report(counts, cold, warm, swap_due=True), cold, warm), (), Console(width=200)).plain


def test_render_verdict_only_without_problems() -> None:
    counts, cold, warm = shown()
    good = rendered(counts, cold, warm)
    assert "All checks passed: 1 swap without a failed frame" in good
    assert "4 sent = 2 answered + 2 skipped" in good
    counts.cameras[0].streams.append(stream(1, failed=1))
    bad = rendered(counts, cold, warm)
    assert "All checks passed" not in bad
    assert "1 failed" in bad


def test_wrapped_line_fits_the_terminal_and_keeps_words_whole() -> None:
    terminal = Console(width=30, force_terminal=True)
    text = Text("   1.0 s  an engine was built and verified and serves")
    assert (
        wrapped(text, terminal, 10).plain
        == "   1.0 s  an engine\n          was built and\n          verified and serves"
    )
    path = Text("wrote    /a/very/long/path/of/a/snapshot.jpg")
    assert wrapped(path, terminal, 9).plain == path.plain
    assert wrapped(text, Console(width=30), 10).plain == text.plain

"""Pipelines in a real daemon: answers equal those of two calls of a client, and every frame is answered or skipped."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import cv2
import grpc
import pytest

import edged
from edged.client.result import Result
from edged.errors import AlreadyExists, InvalidInput, NotReady
from edged.proto import cameras_pb2 as pb
from edged.shapes import MODEL_PATH, Scene
from tests import models
from tests.integration import pipeline_models as made
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import method
from tests.integration.web import ask

_CONFIG = """
[http]
listen = "localhost:0"
[pipelines.colored]
detect = "shapes"
then = "colors"
most = {most}
[pipelines.batched]
detect = "shapes"
then = "four"
[pipelines.twice]
detect = "shapes"
then = "shapes"
margin = 1.0
classes = ["circle"]
[pipelines.late]
detect = "shapes"
then = "later"
[pipelines.raw]
detect = "shapes"
then = "tensors"
[pipelines.reversed]
detect = "colors"
then = "shapes"
[cameras.hall]
source = "scene:7"
model = "colored"
max_fps = 2
[cameras.hall.sinks]
lines = "HOME/hall.jsonl"
"""


class Box(Daemon):
    """A daemon with the embedded detector, two classifiers of colors, and pipelines of them."""

    def __init__(self, most: int = 8) -> None:
        super().__init__(builds=False, config=_CONFIG.format(most=most), endpoints=1)
        shutil.copy(MODEL_PATH, self.models / "shapes.onnx")
        for name, batch in (("colors", "N"), ("four", 4)):
            made.colors(self.models / f"{name}.onnx", batch)
            (self.models / f"{name}.toml").write_text(made.settings())
        models.save(models.identity(), self.models / "tensors.onnx")

    def __enter__(self) -> Box:
        super().__enter__()
        for name in ("shapes", "colors", "four", "tensors"):
            self.ready(name)
        return self


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box() as daemon:
        yield daemon


@pytest.fixture
def client(box: Box) -> Iterator[edged.Client]:
    with box.client() as found:
        yield found


def states(client: edged.Client) -> dict[str, tuple[str, str]]:
    return {each.name: (each.state, each.reason) for each in client.pipelines()}


@pytest.mark.parametrize(("pipeline", "model"), [("colored", "colors"), ("batched", "four")])
@pytest.mark.parametrize("rotation", [0, 90])
def test_pipeline_answers_equal_those_of_two_calls(
    client: edged.Client, pipeline: str, model: str, rotation: int
) -> None:
    for seed in (3, 5):
        encoded = made.picture(seed)
        whole = client.infer(pipeline, encoded, rotation=rotation)
        plain = client.infer("shapes", encoded, rotation=rotation)
        assert [_given(each) for each in whole.detections] == [_given(each) for each in plain.detections]
        assert whole.detections
        assert whole.second is not None
        assert (whole.second.model, whole.second.crops, whole.second.left_out) == (model, len(whole.detections), 0)
        for found in whole.detections:
            alone = client.infer(model, encoded, region=made.region(found, whole), rotation=rotation)
            assert found.nested is not None
            assert found.nested.error is None
            assert found.nested.classes == alone.classes


def _given(found: Any) -> tuple[Any, ...]:
    """Return the fields of a detection that its detector gave."""
    return found.x1, found.y1, found.x2, found.y2, found.score, found.label


def test_pipeline_of_two_detectors_gives_nested_boxes_in_pixels_of_the_picture(client: edged.Client) -> None:
    encoded = made.picture()
    result = client.infer("twice", encoded)
    circles = [found for found in result.detections if found.label == "circle"]
    assert circles
    assert all((found.nested is not None) == (found.label == "circle") for found in result.detections)
    for found in circles:
        alone = client.infer("shapes", encoded, region=made.region(found, result, margin=1.0))
        assert found.nested is not None
        assert found.nested.detections == alone.detections
        assert alone.detections


def test_pipeline_over_http_returns_nested_predictions(box: Box) -> None:
    status, _, body = ask(box.addresses[-1], "POST", "/edged/v1/detect/colored", made.picture())
    answer = json.loads(body)
    assert status == 200
    assert {each["nested"]["top"] for each in answer["predictions"]} <= {"red", "green", "blue"}
    assert answer["second"]["crops"] == len(answer["predictions"])


def test_pipeline_answers_a_configured_camera(box: Box) -> None:
    file = box.home / "hall.jsonl"

    def found() -> list[str]:
        lines = file.read_text().splitlines() if file.exists() else []
        results = [json.loads(line) for line in lines if line.endswith("}")]
        return [each["nested"]["top"] for result in results for each in result["predictions"] if "nested" in each]

    assert set(wait_for("the camera has nested answers", found)) <= {"red", "green", "blue"}


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [("late", NotReady, "later"), ("raw", InvalidInput, "tensors"), ("reversed", InvalidInput, "colors")],
)
def test_pipeline_that_cannot_answer_says_why(
    client: edged.Client, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.infer(name, made.picture())
    with pytest.raises(error, match=words):
        list(client.stream(name, [made.picture()]))
    state, reason = states(client)[name]
    assert state != "ready"
    assert words in reason


def test_pipeline_name_cannot_be_given_to_a_model(box: Box, client: edged.Client) -> None:
    with pytest.raises(AlreadyExists, match="pipeline"):
        client.add_model("colored", made.colors(box.home / "other.onnx"), made.COLORS)
    assert states(client)["colored"] == ("ready", "")


@pytest.mark.parametrize("every_frame", [True, False])
def test_pipeline_answers_or_skips_every_frame_of_four_cameras(box: Box, every_frame: bool) -> None:
    def run(number: int) -> None:
        scene = Scene(number)
        with box.client() as client:
            frames = (cv2.imencode(".jpg", scene.frame(index)[0])[1].tobytes() for index in range(25))
            stream = client.stream("colored", frames, camera=f"c{number}", every_frame=every_frame)
            results[number] = list(stream)
            counts[number] = (stream.counts.sent, stream.counts.answered, stream.counts.skipped, stream.counts.failed)

    results: dict[int, list[Result]] = {}
    counts: dict[int, tuple[int, ...]] = {}
    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(4):
        sent, answered, skipped, failed = counts[number]
        assert (sent, failed) == (25, 0)
        assert answered + skipped == 25
        assert not every_frame or skipped == 0
        numbers = [each.sequence for each in results[number]]
        assert numbers == sorted(numbers)
        for result in results[number]:
            assert all(found.nested is not None and found.nested.classes for found in result.detections)


def test_pipeline_continues_through_swaps_of_both_models(box: Box) -> None:
    with box.client() as client, playing(box, "swaps") as seen:
        before = _swaps(client)
        client.add_model("colors", made.colors(box.home / "surer.onnx", contrast=20.0), made.COLORS, replace=True)
        wait_for("colors is swapped", lambda: _swaps(client)["colors"] > before["colors"])
        _wait_for_more(seen, 5)
        client.set_model("shapes", {"thresholds.max_detections": "50"})
        wait_for("shapes is swapped", lambda: _swaps(client)["shapes"] > before["shapes"])
        _wait_for_more(seen, 5)
    _check(seen)


def test_pipeline_detections_have_errors_while_the_second_model_is_missing(box: Box) -> None:
    with box.client() as client, playing(box, "missing") as seen:
        client.remove_model("colors")
        wait_for("the pipeline is not ready", lambda: states(client)["colored"][0] == "loading")
        _wait_for_more(seen, 5)
        client.add_model("colors", made.colors(box.home / "again.onnx"), made.COLORS)
        wait_for("the pipeline is ready", lambda: states(client)["colored"][0] == "ready")
        wait_for("frames are answered again", lambda: seen[-1].error is None)
        _wait_for_more(seen, 5)
    failed = [result for result in seen if result.error is not None]
    assert failed
    assert all(result.error is not None and result.error[0] == "UNAVAILABLE" for result in failed)
    assert all("colors" in result.error[1] for result in failed if result.error)


def test_pipeline_continues_after_its_host_is_killed(box: Box) -> None:
    with playing(box, "killed") as seen:
        _wait_for_more(seen, 5)
        for pid in box.hosts():
            os.kill(pid, signal.SIGKILL)
        _wait_for_more(seen, 10)
    _check(seen)


def test_pipeline_client_that_closes_between_the_steps_leaves_nothing(box: Box) -> None:
    with grpc.insecure_channel(box.unix) as channel:
        for number in range(20):
            call = method(channel, "DetectOne").future(pb.Frame(model="colored", encoded=made.picture()))
            time.sleep(0.002 * number)
            call.cancel()
    with box.client() as client:
        assert client.infer("colored", made.picture()).second is not None
        wait_for("no call is left", lambda: not [each for each in client.load().models if each.waiting])


def test_pipeline_reload_applies_to_the_next_frame() -> None:
    with Box(most=1) as daemon, daemon.client() as client:
        before = client.infer("colored", made.picture())
        assert before.second is not None
        assert (before.second.crops, before.second.left_out) == (1, len(before.detections) - 1)
        text = daemon.config.read_text()
        daemon.config.write_text(text.replace("most = 1", "most = 2").replace("[pipelines.late]", "[pipelines.new]"))
        changed = {each.key for each in client.reload()}
        assert changed == {"pipelines"}
        after = client.infer("colored", made.picture())
        assert after.second is not None
        assert after.second.crops == 2
        assert {"new", "late"} & set(states(client)) == {"new"}
        (counted,) = (each for each in client.pipelines() if each.name == "colored")
        assert counted.answered >= 2  # counts continue


@contextlib.contextmanager
def playing(box: Box, camera: str) -> Iterator[list[Result]]:
    """Stream frames to the pipeline while the block runs; yield the results so far. Every frame must count."""
    over, seen, scene = threading.Event(), list[Result](), Scene(7)

    def frames() -> Iterator[bytes]:
        for number in range(2000):
            if over.is_set():
                return
            yield cv2.imencode(".jpg", scene.frame(number)[0])[1].tobytes()
            time.sleep(0.01)

    def run() -> None:
        with box.client() as client:
            stream = client.stream("colored", frames(), camera=camera)
            for result in stream:
                seen.append(result)
            counts.append((stream.counts.sent, stream.counts.answered + stream.counts.failed + stream.counts.skipped))

    counts: list[tuple[int, int]] = []
    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for("the first result", lambda: seen)
        yield seen
    finally:
        over.set()
        thread.join(60)
    ((sent, accounted),) = counts
    assert sent == accounted


def _wait_for_more(seen: list[Result], count: int) -> None:
    before = len(seen)
    wait_for(f"{count} more results", lambda: len(seen) >= before + count)


def _check(seen: list[Result]) -> None:
    """No frame failed, and each detection has a nested answer."""
    for result in seen:
        assert result.error is None, result.error
        for found in result.detections:
            assert found.nested is not None
            assert found.nested.error is None, found.nested.error


def _swaps(client: edged.Client) -> dict[str, int]:
    return {each.name: each.swaps for each in client.models()}

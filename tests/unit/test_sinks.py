"""Lines, videos and previews from results and their pictures."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cv2
import msgspec
import numpy as np
import pytest

from edged.client import Captured
from edged.client.result import Detection, Nested, Result, SecondStep, Skips, Timings
from edged.client.sinks import Answered, JsonLines, Mp4, Preview, Sink, Sinks
from edged.client.sinks.sink import Background, PendingFrames, encode
from edged.client.sources import Source
from edged.errors import InvalidInput, Unsupported
from edged.vision.content import Classes, Text
from tests.unit.media import jpeg, shade

av = pytest.importorskip("av")
pytestmark = pytest.mark.timeout(60)


def result(sequence: int = 1, mono_ns: int = 0, **more: Any) -> Result:
    found = (Detection(40, 30, 60, 44, 0.5, 1, "cup"),)
    plain = Result("hall", sequence, "cups", 64, 48, found, {}, 2.5, Timings(), "e", "null", 0, None, 0, mono_ns)
    return msgspec.structs.replace(plain, **more)


def answered(sequence: int, image: Any, mono_ns: int = 0) -> Answered:
    return Answered(result(sequence, mono_ns), image)


# --- pictures that wait for their answers ---------------------------------------------------------------------------


def test_pending_frames_keep_picture_until_its_answer() -> None:
    pictures = [shade(number) for number in range(5)]
    pending = PendingFrames([Captured(pictures[0]), *pictures[1:]])
    assert len(list(pending)) == 5
    assert pending.take(2) is pictures[1]
    assert pending.take(1) is None  # its answer would have arrived earlier
    assert pending.take(2) is None
    assert pending.take(5) is pictures[4]
    assert pending.take(6) is None


def test_pending_frames_are_bounded_and_keep_the_newest() -> None:
    size = shade(0).nbytes
    for pending in (
        PendingFrames([shade(n) for n in range(9)], most=3),
        PendingFrames([shade(n) for n in range(9)], most_bytes=3 * size),
    ):
        list(pending)
        assert pending.take(6) is None
        assert pending.take(7) is not None
    large = PendingFrames([shade(0)], most_bytes=1)
    list(large)
    assert large.take(1) is not None


def test_pending_frames_close_reaches_the_source() -> None:
    class Frames(Source):
        def __next__(self) -> Captured:
            raise StopIteration

        def interrupt(self) -> None:
            calls.append("interrupt")

    calls: list[str] = []
    pending = PendingFrames(Frames("camera"))
    pending.interrupt()
    pending.close()
    assert calls == ["interrupt", "interrupt"]


# --- several sinks --------------------------------------------------------------------------------------------------


class Noted(Sink):
    def __init__(self, wants: bool = False, fails: int = 99) -> None:
        self.wants_pictures = wants
        self.name = "noted"
        self.seen: list[Answered] = []
        self.closed = 0
        self._fails = fails

    def on_answer(self, answered: Answered) -> None:
        self.seen.append(answered)
        if len(self.seen) >= self._fails:
            raise OSError("the disk is full")

    def close(self) -> None:
        self.closed += 1


def test_sinks_all_get_every_result_with_its_picture() -> None:
    first, second = Noted(), Noted(wants=True)
    with Sinks([first, second]) as sinks:
        frames = sinks.tap([shade(1), shade(2), shade(3)])
        assert len(list(frames)) == 3
        for sequence in (1, 3):
            sinks.on_result(result(sequence))
    assert [int(each.image[0, 0, 0]) for each in second.seen] == [1, 3]  # type: ignore[index,call-overload,union-attr]
    assert first.seen == second.seen
    assert (first.closed, second.closed) == (1, 1)


def test_sinks_without_need_for_pictures_keep_none() -> None:
    frames = [shade(1)]
    assert Sinks([Noted()]).tap(frames) is frames


def test_sinks_failing_one_is_removed_and_the_last_raises(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "edged.client")
    first, second = Noted(fails=1), Noted(fails=2)
    sinks = Sinks([first, second])
    sinks.on_result(result(1))
    assert "noted: the disk is full; the stream goes on without this output" in caplog.text
    with pytest.raises(OSError, match="disk is full"):
        sinks.on_result(result(2))
    assert (len(first.seen), first.closed, second.closed) == (1, 1, 1)


def test_background_full_queue_drops_oldest_or_waits() -> None:
    begun, gate, done = threading.Event(), threading.Event(), []

    def work(each: Answered) -> None:
        begun.set()
        gate.wait(20)
        done.append(each.result.sequence)

    lossy = Background("test", work, lambda: done.append(0), depth=2)
    lossy.put(answered(1, None))
    assert begun.wait(20)
    for sequence in range(2, 7):
        lossy.put(answered(sequence, None))
    gate.set()
    lossy.close()
    assert (done, lossy.dropped) == ([1, 5, 6, 0], 3)

    done.clear()
    patient = Background("test", work, lambda: None, depth=2, lossless=True)
    for sequence in range(50):
        patient.put(answered(sequence, None))
    patient.close()
    assert (done, patient.dropped) == (list(range(50)), 0)


def test_background_failure_is_raised_by_put_or_close() -> None:
    def work(_: Answered) -> None:
        raise InvalidInput("no such codec")

    for lossless in (True, False):
        background = Background("test", work, lambda: None, lossless=lossless, depth=1)
        with pytest.raises(InvalidInput, match="no such codec"):  # noqa: PT012 - one of these calls raises it
            for _ in range(3):
                background.put(answered(1, None))
            background.close()


# --- lines ----------------------------------------------------------------------------------------------------------


def test_line_of_a_pipeline_has_both_steps() -> None:
    (cup,) = result().detections
    found = msgspec.structs.replace(cup, nested=Nested(Text("mine", 0.5)))
    second = SecondStep("reader", "e", "null", 1, 2, Timings())
    made = json.loads(encode(result(detections=(found,), second=second)))
    assert made["predictions"][0]["nested"] == {"text": "mine", "confidence": 0.5}
    assert (made["second"]["model"], made["second"]["left_out"]) == ("reader", 2)
    assert "second" not in json.loads(encode(result()))


def test_json_lines_are_appended_and_flushed(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    path.write_text("{}\n")
    sink = JsonLines(path)
    skips, classes = (Skips(1, 2, 2, "stale"),), Classes((1,), (0.5,))
    sink.on_answer(Answered(result(3, skipped=2, skips=skips)))
    seen = {"detections": (), "content": classes, "class_labels": {1: "kitchen"}}
    sink.on_answer(Answered(result(4, **seen, error=("UNAVAILABLE", "gone"))))
    first, second = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert (first["camera"], first["sequence"], first["skipped"], first["error"]) == ("hall", 3, 2, None)
    assert first["skips"] == [{"first": 1, "last": 2, "count": 2, "reason": "stale"}]
    assert first["predictions"][0]["class"] == "cup"
    assert "top" not in first
    assert second["top"] == "kitchen"
    assert second["error"] == {"code": "UNAVAILABLE", "message": "gone"}
    sink.close()
    with pytest.raises(OSError, match="No such file"):
        JsonLines(tmp_path / "none" / "found.jsonl")


def test_sinks_closed_standard_output_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Closed())
    sinks = Sinks([JsonLines(), JsonLines(tmp_path / "found.jsonl")])
    for sequence in (1, 2):
        sinks.on_result(result(sequence))
    sinks.close()
    assert (tmp_path / "found.jsonl").read_text().count("\n") == 2


# --- videos ---------------------------------------------------------------------------------------------------------


def read_back(path: Path) -> tuple[list[np.ndarray], list[float]]:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    return [frame.to_ndarray(format="bgr24") for frame in frames], [float(frame.time) for frame in frames]


def test_mp4_shows_annotations_at_capture_times(tmp_path: Path) -> None:
    path = tmp_path / "found.mp4"
    sink = Mp4(path, lossless=True)
    at = [5.0, 5.04, 5.5, 7.0, 7.001, 7.001, 6.0]
    for number, seconds in enumerate(at):
        image = jpeg(40 * number) if number % 2 else shade(40 * number)
        sink.on_answer(answered(number + 1, image, int(seconds * 1e9)))
    sink.on_answer(Answered(result(9)))  # without a picture
    sink.close()
    images, times = read_back(path)
    assert np.allclose(times, [0, 0.04, 0.5, 2, 2.001, 2.002, 2.003], atol=0.002)
    assert images[0].shape == (48, 64, 3)
    for number, image in enumerate(images):
        assert abs(float(np.median(image[:20, :30])) - 40 * number) < 12
    assert int(np.ptp(images[0][28:46, 38:62])) > 60  # the box


def test_mp4_damaged_picture_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "found.mp4"
    sink = Mp4(path, lossless=True)
    for number, image in enumerate((b"no picture", shade(10), b"no picture", shade(20))):
        sink.on_answer(answered(number + 1, image))
    sink.close()
    assert len(read_back(path)[0]) == 2


def test_mp4_other_sizes_are_fitted(tmp_path: Path) -> None:
    path = tmp_path / "found.mp4"
    sink = Mp4(path, lossless=True)
    for number, size in enumerate([(65, 49), (130, 98), (20, 48), (64, 48)]):
        sink.on_answer(answered(number + 1, shade(200, size)))
    sink.on_answer(answered(5, np.full((49, 65), 200, np.uint8)))
    sink.close()
    images, times = read_back(path)
    assert {image.shape for image in images} == {(48, 64, 3)}
    assert np.allclose(np.diff(times), 0.04, atol=0.002)
    assert images[2][24, 2].max() < 40  # black bars at its sides
    assert images[2][4, 32].max() > 100


def test_mp4_killed_program_leaves_playable_file(tmp_path: Path) -> None:
    path = tmp_path / "found.mp4"
    program = """
import os, sys, time, numpy as np
from edged.vision.content import Text
from tests.unit.media import shade
from tests.unit.test_sinks import Mp4, answered
sink = Mp4(sys.argv[1], lossless=True)
for number in range(600):
    sink.on_answer(answered(number + 1, shade(number % 250), (number + 1) * 40_000_000))
os.kill(os.getpid(), 9)
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=root, check=False, timeout=50)
    assert len(read_back(path)[0]) > 200


def test_mp4_full_disk_leaves_what_was_written_playable(small_disk: Path) -> None:
    path, random = small_disk / "found.mp4", np.random.default_rng(0)
    video = Mp4(path, lossless=True)
    with pytest.raises(InvalidInput, match="written"):  # noqa: PT012 - raised by a later picture, or at the end
        for number in range(300):
            video.on_answer(answered(number + 1, random.integers(0, 255, (96, 128, 3), np.uint8), number * 40_000_000))
        video.close()
    with pytest.raises(InvalidInput, match="written"):
        video.close()
    frames = 0
    with av.open(str(path)) as film, contextlib.suppress(av.FFmpegError):  # the last packet is incomplete
        for _ in film.decode(video=0):
            frames += 1
    assert frames > 20


def test_mp4_unwritable_file_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        Mp4(tmp_path / "none" / "found.mp4")
    empty = Mp4(tmp_path / "empty.mp4")
    empty.close()
    full = Mp4("/dev/full", lossless=True)
    with pytest.raises(InvalidInput, match="/dev/full"):  # noqa: PT012 - raised by a later picture, or at the end
        for number in range(300):
            full.on_answer(answered(number + 1, np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)))
        full.close()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(Unsupported, match="PyAV"):
        Mp4(tmp_path / "found.mp4")


# --- previews -------------------------------------------------------------------------------------------------------


@pytest.fixture
def preview() -> Iterator[Preview]:
    made = Preview(0, title="<hall>")
    try:
        yield made
    finally:
        made.close()


def connected(preview: Preview) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(preview.url).netloc, timeout=20)


def get(preview: Preview, path: str, host: str | None = None) -> tuple[int, str, bytes]:
    connection = connected(preview)
    try:
        connection.request("GET", path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read()
    finally:
        connection.close()


class Viewer:
    """A viewer that reads the parts of the stream one by one."""

    def __init__(self, preview: Preview) -> None:
        self._connection = connected(preview)
        self._connection.request("GET", "/stream.mjpg")
        self._answer = self._connection.getresponse()
        assert self._answer.getheader("Content-Type") == "multipart/x-mixed-replace; boundary=edged-frame"

    def next(self) -> int:
        """Return the shade of a corner of the next picture."""
        assert self._answer.readline() == b"--edged-frame\r\n"
        assert self._answer.readline() == b"Content-Type: image/jpeg\r\n"
        length = int(self._answer.readline().split(b":")[1])
        assert self._answer.readline() == b"\r\n"
        data = self._answer.read(length)
        assert self._answer.readline() == b"\r\n"
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert image is not None
        return int(image[2, 2, 0])

    def rest(self) -> bytes:
        return self._answer.read()

    def close(self) -> None:
        self._connection.close()


def test_preview_serves_page_picture_and_stream(preview: Preview) -> None:
    status, kind, page = get(preview, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert b"&lt;hall&gt;" in page
    assert b"<hall>" not in page
    preview.on_answer(answered(1, shade(100)))
    status, kind, picture = get(preview, "/still.jpg?x=1")
    assert (status, kind) == (200, "image/jpeg")
    assert cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR) is not None
    viewer = Viewer(preview)
    assert abs(viewer.next() - 100) < 5
    preview.on_answer(answered(2, shade(200)))
    assert abs(viewer.next() - 200) < 5
    viewer.close()
    assert get(preview, "/etc/passwd")[0] == 404


def test_preview_slow_viewer_skips_and_delays_no_answer(preview: Preview) -> None:
    viewer = Viewer(preview)
    preview.on_answer(answered(1, shade(0)))
    viewer.next()
    noise = np.random.default_rng(0).integers(0, 255, (720, 1280, 3), np.uint8)
    begun = time.monotonic()
    for number in range(2000):
        preview.on_answer(answered(number, noise))
    assert time.monotonic() - begun < 5
    preview.on_answer(answered(9, shade(250)))
    assert any(viewer.next() >= 245 for _ in range(100))
    viewer.close()


def test_preview_without_viewers_paints_nothing(preview: Preview) -> None:
    each = answered(1, shade(0))
    preview.on_answer(each)
    time.sleep(0.1)
    assert "painted" not in vars(each)
    get(preview, "/still.jpg")
    assert "painted" in vars(each)


def test_preview_damaged_picture_is_left_out(preview: Preview) -> None:
    viewer = Viewer(preview)
    preview.on_answer(answered(1, b"no picture"))
    preview.on_answer(answered(2, None))
    time.sleep(0.1)
    preview.on_answer(answered(3, shade(70)))
    assert abs(viewer.next() - 70) < 5
    viewer.close()


def test_preview_refuses_foreign_hosts_and_too_many_viewers(preview: Preview) -> None:
    assert get(preview, "/", host="evil.example:80")[0] == 403
    assert get(preview, "/", host="localhost:80")[0] == 200
    assert get(preview, "/", host="[::1]:80")[0] == 200
    viewers = [Viewer(preview) for _ in range(16)]
    assert get(preview, "/stream.mjpg")[0] == 503
    for viewer in viewers:
        viewer.close()


def test_preview_close_ends_viewers() -> None:
    made = Preview(0)
    viewer = Viewer(made)
    made.close()
    assert viewer.rest() == b""
    viewer.close()


def test_preview_taken_port_raises(preview: Preview) -> None:
    with pytest.raises(InvalidInput, match="choose another port"):
        Preview(urlsplit(preview.url).port or 0)
    with pytest.raises(InvalidInput, match="choose another port"):
        Preview(0, "192.0.2.1")

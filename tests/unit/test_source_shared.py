"""The ring of another process as a camera."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from edged.backoff import Backoff
from edged.client.shared import SharedRing
from edged.client.sources.shared import shared_camera
from edged.client.sources.source import InOrder, Newest
from edged.errors import InvalidInput
from tests.unit.media import jpeg, shade

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[SharedRing]:
    with SharedRing(4, 48 * 64 * 3, folder=tmp_path) as ring:
        yield ring


RAW = "?slots=4&width=64&height=48"


def test_shared_camera_gives_the_newest_picture(ring: SharedRing, tmp_path: Path) -> None:
    for value in range(1, 10):
        ring.put(shade(value))
    with InOrder(shared_camera(f"edged-{os.getpid()}{RAW}", tmp_path)) as source:
        assert np.array_equal(next(source).image, shade(9))  # type: ignore[arg-type]
        for value in (20, 21, 22):
            ring.put(shade(value))
        got = next(source)
        assert np.array_equal(got.image, shade(22))  # type: ignore[arg-type]
        assert got.captured_mono_ns > 0
        assert source.skipped == 2


def test_shared_camera_jpeg_has_no_trailing_bytes(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    large, small = cv2.imencode(".jpg", noise)[1].tobytes(), jpeg(3)
    with SharedRing(2, len(large), folder=tmp_path) as ring:
        name = ring.segment.lstrip("/")
        with InOrder(shared_camera(f"{name}?slots=2", tmp_path)) as source:
            for picture in (large, large, small, small, b"no picture", small):
                ring.put(picture)
                if picture != b"no picture":
                    assert next(source).image == picture
            assert source.damaged == 0  # it was replaced before the source read it


def test_shared_camera_removed_ring_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = shared_camera(f"edged-{os.getpid()}{RAW}", tmp_path)
    reader.backoff = Backoff((0.02,))
    with Newest(reader) as source:
        time.sleep(0.1)
        for value in (5, 6):
            with SharedRing(4, 48 * 64 * 3, folder=tmp_path) as ring:
                ring.put(shade(value))
                assert np.array_equal(next(source).image, shade(value))  # type: ignore[arg-type]
    assert "no process has a ring named" in caplog.text


def test_shared_camera_ring_of_a_process_with_a_longer_number_is_not_read(tmp_path: Path) -> None:
    """The newest ring is of process 4711, and process 47 has one too."""
    with SharedRing(4, 48 * 64 * 3, folder=tmp_path) as mine, SharedRing(4, 48 * 64 * 3, folder=tmp_path) as other:
        for each, name, value in ((mine, "edged-47-x", 5), (other, "edged-4711-x", 6)):
            each.put(shade(value))
            (tmp_path / name).hardlink_to(tmp_path / each.segment.lstrip("/"))
            os.utime(tmp_path / name, (value, value))
        with Newest(shared_camera(f"edged-47{RAW}", tmp_path)) as source:
            assert np.array_equal(next(source).image, shade(5))  # type: ignore[arg-type]


def test_shared_camera_ring_of_other_pictures_is_refused(
    ring: SharedRing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = shared_camera(f"edged-{os.getpid()}?slots=4&width=640&height=480", tmp_path)
    with Newest(reader) as source:
        end = time.monotonic() + 10
        while "do not fit the pictures" not in caplog.text and time.monotonic() < end:
            time.sleep(0.01)
        source.interrupt()
    assert "do not fit the pictures" in caplog.text


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("other", "begin with edged-"),
        ("edged-1/../../etc", "begin with edged-"),
        ("edged-1?width=3", "width and height"),
        ("edged-1?slots=0", "slots"),
        ("edged-1?width=3&height=3&format=rgb", "bgr or gray"),
        ("edged-1?size=3", "slots, width, height, format"),
    ],
)
def test_shared_camera_invalid_address_raises(address: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        shared_camera(address)

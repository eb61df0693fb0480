"""Candidates for collected frames in a child: decoded, hashed, and raw pixels made a JPEG."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from edged.config.child_limits import Limits
from edged.engines.child import reach_of, run
from edged.ipc.job_messages import Candidate, Sift, Sifted, SiftedFrame
from edged.jobs.sift import sift
from edged.shapes.scene import Scene
from edged.vision.image import Image, decode
from edged.vision.likeness import NEAR, distance

LIMITS = Limits(seconds=60.0, memory_mb=1024, stall_seconds=60.0, disk_mb=64)


def scene(seed: int = 1) -> Image:
    return Scene(seed).frame(0)[0]


def encoded(suffix: str, picture: Image) -> bytes:
    return bytes(cv2.imencode(suffix, picture)[1].tobytes())


def examined(folder: Path, data: bytes, **about: object) -> SiftedFrame:
    (folder / "0").write_bytes(data)
    (found,) = sift(Sift(str(folder), (Candidate("0", **about),))).frames  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp"])
def test_sift_encoded_picture_is_left_as_it_is(tmp_path: Path, suffix: str) -> None:
    data = encoded(suffix, scene())
    found = examined(tmp_path, data)
    assert (found.suffix, found.problem) == (suffix, "")
    assert found.likeness
    assert (tmp_path / "0").read_bytes() == data


@pytest.mark.parametrize(
    ("pixel_format", "code"), [("bgr", None), ("rgb", cv2.COLOR_BGR2RGB), ("i420", cv2.COLOR_BGR2YUV_I420)]
)
def test_sift_raw_pixels_become_a_jpeg_of_the_same_picture(tmp_path: Path, pixel_format: str, code: int | None) -> None:
    picture = scene()
    height, width = picture.shape[:2]
    raw = picture if code is None else cv2.cvtColor(picture, code)
    found = examined(tmp_path, raw.tobytes(), pixel_format=pixel_format, width=width, height=height)
    made = decode((tmp_path / "0.jpg").read_bytes())
    assert made.shape == picture.shape
    assert np.abs(made.astype(int) - picture).mean() < 6
    again = examined(tmp_path, encoded(".jpg", picture))
    assert distance(found.likeness, again.likeness) <= NEAR


def test_sift_says_what_is_wrong_with_a_frame(tmp_path: Path) -> None:
    jpeg = encoded(".jpg", scene())
    assert examined(tmp_path, jpeg[: len(jpeg) // 2]).problem
    assert examined(tmp_path, b"no picture").problem
    assert examined(tmp_path, b"").problem
    assert examined(tmp_path, bytes(100), pixel_format="bgr", width=100, height=100).problem
    assert examined(tmp_path, bytes(3), pixel_format="xyz", width=1, height=1).problem


def test_sift_refuses_a_huge_picture_without_decoding_it(tmp_path: Path) -> None:
    header = encoded(".png", scene())[:16] + (60_000).to_bytes(4, "big") * 2
    assert "60000x60000" in examined(tmp_path, header + bytes(100)).problem


async def test_sift_child_sees_its_folder_only_and_survives_a_frame_of_64_megapixels(tmp_path: Path) -> None:
    folder = tmp_path / "batch"
    folder.mkdir()
    (folder / "0").write_bytes(encoded(".jpg", np.zeros((8192, 8192, 3), np.uint8)))
    (folder / "1").write_bytes(encoded(".png", scene()))
    job = Sift(str(folder), (Candidate("0"), Candidate("1")))
    reach = reach_of(job, str(tmp_path / "scratch"))
    assert str(folder) in reach.writes
    assert not any(str(tmp_path) in each for each in reach.reads)
    found = await run(job, Sifted, LIMITS)
    assert [each.suffix for each in found.frames] == [".jpg", ".png"]

"""Runs an engine and the reference on frames of the box's cameras, and draws the frames on which they differ most.

Frames are read one after the other, and no frame is kept: a judgement has only figures and names. Pictures are drawn
only for a report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np

from edged.backends.contract import Session
from edged.errors import InvalidInput, Superseded
from edged.ipc import job_messages as jobs
from edged.store.judgement import Box, Judgement
from edged.verification.frames import FrameJudge
from edged.verification.probes import Pictures, read_sample
from edged.vision.detections import Detections
from edged.vision.draw import annotate, encode_jpeg
from edged.vision.image import Image

_WIDTH = 480  # most pixels of a drawn frame
_QUALITIES = (80, 55, 30)


def judge(
    job: jobs.Judge,
    session: Session,
    reference: Session,
    report: Callable[[jobs.Progress], None],
    clock: Callable[[], float] = time.monotonic,
) -> Judgement:
    """Compare an opened engine with the reference until all frames are compared or `job.seconds` have passed.

    Frames that no longer exist are left out. Frames that exist but cannot be read count as skipped.
    """
    pictures = Pictures(job.order.signature, job.recognition)
    judging = FrameJudge(job.recognition, job.tolerance, job.model, job.order.recipe.precision)
    skipped, left, until = 0, 0, clock() + job.seconds
    for number, (path, digest) in enumerate(job.frames.items()):
        if number and clock() >= until:
            left = len(job.frames) - number
            break
        report(jobs.Progress("judging", number / len(job.frames)))
        place = Path(path)
        try:
            pixels = read_sample(place, digest)
            probe = pictures.of(place.name, pixels)
        except (InvalidInput, Superseded):
            skipped += place.exists()
            continue
        assert probe.placement is not None  # probes of pictures have a placement
        size = (pixels.shape[1], pixels.shape[0])
        expected, found = reference.infer(probe.inputs), session.infer(probe.inputs)
        try:
            judging.add(place.name, job.cameras.get(path, ""), expected, found, probe.placement, size)
        except ValueError:  # the reference's own answer is not finite
            skipped += 1
    return judging.judgement(job.collection, skipped, left)


def draw(job: jobs.DrawFrames) -> jobs.DrawnFrames:
    """Draw each frame twice, with the expected and with the found boxes. If the JPEGs would exceed `job.most_bytes`,
    lower their quality. If that is not enough, return empty JPEGs for the last frames."""
    sides = [_sides(frame) for frame in job.frames]
    for quality in _QUALITIES:
        drawn = tuple(_encoded(pair, quality) for pair in sides)
        if sum(len(jpeg) for pair in drawn for jpeg in pair) <= job.most_bytes:
            return jobs.DrawnFrames(drawn)
    fitting, left = list[tuple[bytes, bytes]](), job.most_bytes
    for pair in drawn:
        left -= sum(map(len, pair))
        fitting.append(pair if left >= 0 else (b"", b""))
    return jobs.DrawnFrames(tuple(fitting))


def _encoded(sides: tuple[Image, Image] | None, quality: int) -> tuple[bytes, bytes]:
    return (encode_jpeg(sides[0], quality), encode_jpeg(sides[1], quality)) if sides is not None else (b"", b"")


def _sides(frame: jobs.FrameToDraw) -> tuple[Image, Image] | None:
    try:
        pixels = read_sample(Path(frame.path), frame.sha256)
    except (InvalidInput, Superseded):
        return None
    scale = min(1.0, _WIDTH / pixels.shape[1])
    height = max(1, round(pixels.shape[0] * scale))
    small = cv2.resize(pixels, (max(1, round(pixels.shape[1] * scale)), height), interpolation=cv2.INTER_AREA)
    picture = np.asarray(small, np.uint8)
    return _annotated(picture, frame.expected, scale), _annotated(picture, frame.found, scale)


def _annotated(picture: Image, boxes: Sequence[Box], scale: float) -> Image:
    names = list(dict.fromkeys(box.label for box in boxes))
    found = Detections.of(
        [[side * scale for side in (box.x1, box.y1, box.x2, box.y2)] for box in boxes],
        [box.score for box in boxes],
        [names.index(box.label) for box in boxes],
    )
    return annotate(picture, found, names)

"""Runs the unoptimised model once on a picture, to show the user whether edged decodes the answer correctly."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import msgspec

from edged.backends import registry
from edged.errors import EngineUnusable
from edged.ipc import job_messages as jobs
from edged.shapes import SAMPLE_SEED, Scene
from edged.store.judgement import Box
from edged.verification.probes import Pictures, read_sample
from edged.vision.content import Classes, lines
from edged.vision.detections import Detections, class_name
from edged.vision.draw import annotate, encode_jpeg
from edged.vision.family import Family, open_family

_MOST_LINES = 10
_LEAST_SCORE = 0.05  # low, so that users see which boxes a lower threshold would add


def ask(job: jobs.AskPicture) -> jobs.AskedPicture:
    """Return the boxes, or the content, that the model finds in a picture. Boxes have a score of at least
    `_LEAST_SCORE`, or of the model's own threshold if that is lower.

    Raises InvalidInput if the picture cannot be read or the model takes no pictures, EngineUnusable if the runtime
    cannot run the model.
    """
    pixels = read_sample(Path(job.picture)) if job.picture else Scene(SAMPLE_SEED).frame(0)[0]
    height, width = pixels.shape[:2]
    drawn = b"" if job.picture else encode_jpeg(pixels)
    question = Pictures(job.order.signature, job.recognition).of(Path(job.picture).name, pixels)
    session = registry.load(job.order.recipe.backend).trial(job.order)
    if session is None or question.placement is None:
        raise EngineUnusable(f"{job.order.recipe.backend} can run only built engines, not the model itself")
    outputs = session.infer(question.inputs)
    names, family = job.recognition.names, open_family(job.recognition)
    if not isinstance(family, Family):
        content = family.content(outputs, 0, question.placement, job.recognition.thresholds)
        said = tuple(each.text for each in islice(lines(content, names), _MOST_LINES))
        if not isinstance(content, Classes):  # a map, for example, can only be shown in the picture
            drawn = encode_jpeg(annotate(pixels, Detections.empty(), names, content=content))
        return jobs.AskedPicture(width, height, content=said, picture=drawn)
    own = job.recognition.thresholds
    low = msgspec.structs.replace(own, score=min(own.score, _LEAST_SCORE))
    found = family.decode(outputs, 0, question.placement, low)
    boxes = tuple(
        Box(x1, y1, x2, y2, float(score), class_name(names, int(class_id)))
        for (x1, y1, x2, y2), score, class_id in zip(found.boxes.tolist(), found.scores, found.class_ids, strict=True)
    )
    return jobs.AskedPicture(width, height, boxes, picture=drawn)

"""Runs the reference on a frame that an engine has answered, and compares the two answers."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from edged.backends import registry
from edged.errors import InvalidInput
from edged.ipc import job_messages as jobs
from edged.verification.probes import Pictures
from edged.verification.served import compare_boxes, compare_content
from edged.vision import image as pictures
from edged.vision.content import Content, unpack
from edged.vision.content_json import content_fields
from edged.vision.detections import Detections, class_name
from edged.vision.family import Family, open_family
from edged.vision.image import Decoded, Image, PixelFormat
from edged.vision.picture_header import read_header
from edged.vision.picture_statistics import measure

_GRACE_SECONDS = 5  # of processor time, from SIGXCPU to SIGKILL
_SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "WebP": ".webp", "BMP": ".bmp", "GIF": ".gif"}
_FAST = 1  # the level of PNG's compression
Answer: TypeAlias = "Detections | Content"


def shadow(job: jobs.Shadow) -> jobs.Shadowed:
    """Compare the answer that was served for a frame with the reference's answer. Raises InvalidInput if the frame
    cannot be decoded or the served answer cannot be compared, EngineUnusable if the runtime refuses model or frame."""
    resource.setrlimit(resource.RLIMIT_CPU, (job.cpu_seconds, job.cpu_seconds + _GRACE_SECONDS))
    data = Path(job.picture).read_bytes()
    preparer = Pictures(job.order.signature, job.recognition)
    pixels = _decoded(job, data, preparer)
    probe = preparer.of("frame", pixels, job.roi)
    assert probe.placement is not None
    outputs = registry.load(job.order.recipe.backend).open(job.order).infer(probe.inputs)
    thresholds, family = job.thresholds or job.recognition.thresholds, open_family(job.recognition)
    served: Answer
    own: Answer
    if isinstance(family, Family):
        served = Detections.unpack(job.detections or b"")
        found, own = compare_boxes(family, outputs, probe.placement, thresholds, served, job.slack)
    elif job.content is not None:
        served = unpack(job.content)
        found, own = compare_content(family, outputs, probe.placement, thresholds, served)
    else:
        raise InvalidInput(
            "the served answer has no content, such as classes, that can be compared with the reference's answer"
        )
    if job.keeps:
        _keep(job, data, pixels, found.figures, {"served": served, "reference": own})
    objects, score = (len(own), _mean_score(own)) if isinstance(own, Detections) else (0, 0.0)
    used = resource.getrusage(resource.RUSAGE_SELF)
    shown = pixels.image if isinstance(pixels, Decoded) else pixels
    return jobs.Shadowed(found, measure(shown), objects, score, round(used.ru_utime + used.ru_stime, 3))


def _decoded(job: jobs.Shadow, data: bytes, preparer: Pictures) -> Image | Decoded:
    """Decode the frame as a host does."""
    if job.pixel_format:
        return pictures.from_raw(data, PixelFormat(job.pixel_format), job.width, job.height, job.stride)
    return pictures.decode_reduced(data, lambda width, height: preparer.reduction(width, height, job.roi))


def _mean_score(found: Detections) -> float:
    return round(float(found.scores.mean()), 4) if len(found) else 0.0


def _keep(
    job: jobs.Shadow, data: bytes, pixels: Image | Decoded, figures: dict[str, float], answers: dict[str, Answer]
) -> None:
    """Write the frame as it was sent (raw pixels as PNG), and the figures and both answers as JSON."""
    out = Path(job.out)
    if isinstance(pixels, Decoded):
        header = read_header(data)
        suffix = _SUFFIXES.get(header.format, "") if header is not None else ""
        (out / f"picture{suffix}").write_bytes(data)
    else:
        import cv2

        encoded = cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, _FAST])[1]
        (out / "picture.png").write_bytes(encoded.tobytes())
    fields = {"figures": figures, **{name: _fields(each, job.recognition.names) for name, each in answers.items()}}
    (out / "answers.json").write_bytes(msgspec.json.format(msgspec.json.encode(fields), indent=2))


def _fields(answer: Answer, names: tuple[str, ...]) -> dict[str, Any] | list[dict[str, Any]]:
    if not isinstance(answer, Detections):
        return content_fields(answer, names)
    rows = zip(answer.boxes.tolist(), answer.scores.tolist(), answer.class_ids.tolist(), strict=True)
    return [
        {"box": [round(side, 2) for side in box], "score": round(score, 5), "class": class_name(names, class_id)}
        for box, score, class_id in rows
    ]

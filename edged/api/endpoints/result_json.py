"""A result as JSON, for the lanes that have no protobuf: Roboflow's fields, and edged's own beside them. Pure."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from edged.api.grpc.status import status_of
from edged.errors import EdgedError
from edged.serving.stream import Delivery, SkipReport
from edged.serving.stream_camera import Skips
from edged.serving.work import Answered
from edged.tensors import Shape
from edged.vision.detections import Classes, Detections, class_name
from edged.vision.roboflow import roboflow

Fields = dict[str, Any]
_encoder = msgspec.json.Encoder()


class Echo(msgspec.Struct, frozen=True):
    """What a result tells of its frame: see the fields of the same names in `edged.v1.Frame`."""

    camera: str = ""
    sequence: int = 0
    model: str = ""
    captured_unix_ns: int = 0


def encode(fields: Fields) -> bytes:
    return _encoder.encode(fields)


def delivered(echo: Echo, delivery: Delivery[Any]) -> Fields:
    """The result of one frame. Raw outputs are described in `outputs`; their bytes are not part of the JSON."""
    fields: Fields = {
        **msgspec.structs.asdict(echo),
        "received_unix_ns": delivery.received_ns,
        "age_ms": round(delivery.age_ms, 3),
        "skipped": delivery.skipped,
        "skips": _skips(delivery.skips),
    }
    total_ms = (time.monotonic() - delivery.work.received) * 1e3
    if isinstance(delivery.answer, EdgedError):
        fields["timings"] = {"total_ms": round(total_ms, 3)}
        fields["error"] = failure(delivery.answer)
        return fields
    return {**fields, **answered(delivery.answer, delivery.tracker_ids, total_ms)}


def answered(answer: Answered, tracker_ids: tuple[int, ...] = (), total_ms: float = 0.0) -> Fields:
    """What came out of a picture, how long it took, and which engine that was."""
    times, engine = answer.times, answer.engine
    timings = {
        "queue_ms": answer.queue_ms,
        "decode_ms": times.decode_ms,
        "prepare_ms": times.prepare_ms,
        "infer_ms": times.infer_ms,
        "postprocess_ms": times.postprocess_ms,
        "total_ms": total_ms,
    }
    fields: Fields = {
        "timings": {name: round(value, 3) for name, value in timings.items()},
        "engine": engine.key,
        "backend": engine.backend,
    }
    if answer.detections is not None:
        found = Detections.unpack(answer.detections)
        fields.update(roboflow(found, engine.names, answer.width, answer.height))
        for prediction, number in zip(fields["predictions"], tracker_ids, strict=False):
            if number >= 0:
                prediction["tracker_id"] = number
        return fields
    fields["image"] = {"width": answer.width, "height": answer.height}
    if answer.classes is not None:
        fields["predictions"] = _classes(Classes.unpack(answer.classes), engine.names)
        fields["top"] = fields["predictions"][0]["class"] if fields["predictions"] else ""
    else:
        fields["outputs"] = [{"name": o.name, "datatype": o.datatype, "shape": _dims(o.shape)} for o in answer.outputs]
    return fields


def only_skips(report: SkipReport) -> Fields:
    """Tells which frames were skipped, and answers none."""
    return {"camera": report.camera, "only_skips": True, "skipped": report.skipped, "skips": _skips(report.skips)}


def failure(error: EdgedError) -> Fields:
    """A gRPC status code, the code of edged (docs/errors.md), and one line."""
    status, name = int(status_of(error).value[0]), type(error).__name__
    return {"code": status, "reason": error.code.value, "name": name, "message": str(error)}


def _classes(found: Classes, names: tuple[str, ...]) -> list[Fields]:
    rows = zip(found.class_ids.tolist(), found.scores.tolist(), strict=True)
    return [{"class": class_name(names, each), "class_id": each, "confidence": score} for each, score in rows]


def _skips(runs: tuple[Skips, ...]) -> list[Fields]:
    return [msgspec.structs.asdict(run) for run in runs]


def _dims(shape: Shape) -> list[int]:
    return [int(dim) for dim in shape]

"""Makes the results of frames as messages."""

from __future__ import annotations

import time

from edged.api.grpc.status import status_of
from edged.errors import EdgedError
from edged.proto import cameras_pb2 as pb
from edged.serving.stream import Delivery, SkipReport
from edged.serving.stream_camera import Skips
from edged.serving.work import Answered
from edged.vision.detections import Classes, Detections, class_name


class Tag:
    """What a result needs of its frame, without the picture."""

    __slots__ = ("header", "model")

    def __init__(self, frame: pb.Frame, model: str) -> None:
        self.header = pb.Result(
            camera=frame.camera,
            sequence=frame.sequence,
            captured_unix_ns=frame.captured_unix_ns,
            captured_mono_ns=frame.captured_mono_ns,
        )
        self.model = model


def result_of(delivery: Delivery[Tag]) -> pb.Result:
    """Make the result of one frame: its answer or its error."""
    result, answer = delivery.tag.header, delivery.answer
    result.model, result.age_ms, result.received_unix_ns = delivery.tag.model, delivery.age_ms, delivery.received_ns
    result.skipped = delivery.skipped
    result.skips.extend(map(_skips, delivery.skips))
    result.timings.total_ms = (time.monotonic() - delivery.work.received) * 1e3
    if isinstance(answer, EdgedError):
        result.error.code, result.error.message = int(status_of(answer).value[0]), str(answer)
        result.error.reason = answer.code.value
        return result
    result.width, result.height = answer.width, answer.height
    result.engine, result.backend = answer.engine.key, answer.engine.backend
    result.timings.queue_ms = answer.queue_ms
    times = answer.times
    result.timings.decode_ms, result.timings.prepare_ms = times.decode_ms, times.prepare_ms
    result.timings.infer_ms, result.timings.postprocess_ms = times.infer_ms, times.postprocess_ms
    if answer.detections is not None:
        result.detections.extend(_detections(answer, delivery.tracker_ids))
    if answer.classes is not None:
        result.classes.extend(_classes(answer))
    for tensor in answer.outputs:
        shape = [int(dim) for dim in tensor.shape]
        result.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape, data=tensor.data)
    return result


def report_of(report: SkipReport) -> pb.Result:
    """Make a result that answers no frame and reports skipped ones."""
    return pb.Result(camera=report.camera, skipped=report.skipped, skips=map(_skips, report.skips), only_skips=True)


def _skips(run: Skips) -> pb.Skips:
    return pb.Skips(first=run.first, last=run.last, count=run.count, reason=run.reason)


def _detections(answer: Answered, ids: tuple[int, ...]) -> list[pb.Detection]:
    found = Detections.unpack(answer.detections or b"")
    names = answer.engine.names
    rows = zip(found.boxes.tolist(), found.scores.tolist(), found.class_ids.tolist(), strict=True)
    messages = [
        pb.Detection(x1=x1, y1=y1, x2=x2, y2=y2, score=score, class_id=label, label=class_name(names, label))
        for (x1, y1, x2, y2), score, label in rows
    ]
    for message, number in zip(messages, ids, strict=False):
        if number >= 0:
            message.tracker_id = number
    if found.keypoints is not None:
        for message, points in zip(messages, found.keypoints, strict=True):
            message.keypoints.extend(points.ravel().tolist())
    if found.corners is not None:
        for message, corners in zip(messages, found.corners, strict=True):
            message.corners.extend(corners.ravel().tolist())
    if found.masks is not None:
        for message, mask in zip(messages, found.masks, strict=True):
            message.mask.extend(mask.tolist())
    return messages


def _classes(answer: Answered) -> list[pb.Classification]:
    found = Classes.unpack(answer.classes or b"")
    rows = zip(found.class_ids.tolist(), found.scores.tolist(), strict=True)
    names = answer.engine.names
    return [pb.Classification(class_id=number, label=class_name(names, number), score=score) for number, score in rows]

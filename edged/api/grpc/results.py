"""Results of frames as messages: the model's answer or the error, with times and skipped frames."""

from __future__ import annotations

import time
from collections.abc import Sequence

from edged.api.grpc.status import status_of
from edged.errors import EdgedError
from edged.ipc.messages import Times
from edged.proto import cameras_pb2 as pb
from edged.serving.stream import Delivery, SkipReport
from edged.serving.stream_camera import Skips
from edged.serving.work import Answered, SecondStep
from edged.vision.content import Classes, ClassMap, Content, Depth, Embedding, Text, ValueMap
from edged.vision.detections import Detections, class_name


class Tag:
    """The fields of a frame that its result needs, without the picture."""

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
    """Return the result of one frame: its answer or its error."""
    result, answer = delivery.tag.header, delivery.answer
    result.model, result.age_ms, result.received_unix_ns = delivery.tag.model, delivery.age_ms, delivery.received_ns
    result.skipped = delivery.skipped
    result.skips.extend(map(_skips, delivery.skips))
    result.timings.total_ms = (time.monotonic() - delivery.work.received) * 1e3
    if isinstance(answer, EdgedError):
        result.error.CopyFrom(_error(answer))
        return result
    result.width, result.height = answer.width, answer.height
    result.engine, result.backend = answer.engine.key, answer.engine.backend
    result.timings.MergeFrom(_timings(answer.queue_ms, answer.times))
    if answer.detections is not None:
        result.detections.extend(_detections(answer, delivery.tracker_ids))
    if answer.content is not None:
        fill_content(result.content, answer.content, answer.engine.recognition.names)
    if answer.second is not None:
        _add_second(result, answer.second)
    for tensor in answer.outputs:
        shape = [int(dim) for dim in tensor.shape]
        result.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape, data=tensor.data)
    return result


def _error(error: EdgedError) -> pb.Error:
    return pb.Error(code=status_of(error).value, message=str(error), reason=error.code.value)


def _timings(queue_ms: float, times: Times, total_ms: float = 0.0) -> pb.Timings:
    return pb.Timings(
        queue_ms=queue_ms,
        decode_ms=times.decode_ms,
        prepare_ms=times.prepare_ms,
        infer_ms=times.infer_ms,
        postprocess_ms=times.postprocess_ms,
        total_ms=total_ms,
    )


def _add_second(result: pb.Result, second: SecondStep) -> None:
    """Add the answers of a pipeline's second model to a result that has the detections of the first model."""
    result.second.model, result.second.left_out = second.model, second.left_out
    result.second.crops = len(second.rows)
    if second.engine is not None:
        result.second.engine, result.second.backend = second.engine.key, second.engine.backend
    result.second.timings.CopyFrom(_timings(second.queue_ms, second.times, second.total_ms))
    for row, answer in zip(second.rows, second.answers, strict=True):
        nested = result.detections[row].nested
        if isinstance(answer, EdgedError):
            nested.error.CopyFrom(_error(answer))
            continue
        nested.SetInParent()  # the crop was answered, even if nothing was found
        if answer.content is not None:
            fill_content(nested.content, answer.content, answer.engine.recognition.names)
        else:
            nested.detections.extend(_detections(answer, ()))


def report_of(report: SkipReport) -> pb.Result:
    """Return a result that answers no frame and reports skipped frames."""
    return pb.Result(camera=report.camera, skipped=report.skipped, skips=map(_skips, report.skips), only_skips=True)


def _skips(run: Skips) -> pb.Skips:
    return pb.Skips(first=run.first, last=run.last, count=run.count, reason=run.reason)


def _detections(answer: Answered, ids: tuple[int, ...]) -> list[pb.Detection]:
    found = Detections.unpack(answer.detections or b"")
    names = answer.engine.recognition.names
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


def fill_content(message: pb.Content, content: Content, names: Sequence[str]) -> None:
    """Write an answer about a whole picture into an empty message. `names` are the labels of the classes."""
    message.SetInParent()
    if isinstance(content, Classes):
        for number, score in zip(content.class_ids, content.scores, strict=True):
            message.classes.add(class_id=number, label=class_name(names, number), score=score)
    elif isinstance(content, ClassMap):
        grid = message.class_map
        grid.width, grid.height = content.width, content.height
        grid.class_ids.extend(content.class_ids)
        grid.lengths.extend(content.lengths)
        grid.box.extend(content.box or ())
        for number, share in content.shares():
            grid.areas.add(class_id=number, label=class_name(names, number), share=share)
    elif isinstance(content, Depth):
        message.depth.is_inverse, message.depth.unit = content.is_inverse, content.unit
        _fill_map(message.depth.map, content.map)
    elif isinstance(content, Embedding):
        message.embedding.values.extend(content.vector().tolist())
        message.embedding.label, message.embedding.similarity = content.label, content.similarity
    elif isinstance(content, Text):
        message.text.text, message.text.score = content.text, content.score
    else:
        message.anomaly.score, message.anomaly.is_anomalous = content.score, content.is_anomalous
        if content.map is not None:
            _fill_map(message.anomaly.map, content.map)


def _fill_map(message: pb.ValueMap, values: ValueMap) -> None:
    message.width, message.height = values.width, values.height
    message.low, message.high, message.data = values.low, values.high, values.data
    message.box.extend(values.box or ())

"""One picture in the body of a request, one result in Roboflow's JSON: `DetectOne` for people with curl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from edged.api.endpoints import result_json
from edged.api.grpc.cameras import CameraService
from edged.api.http.exchange import JSON, Answer, Ask
from edged.decoding import explain, ready
from edged.errors import InvalidImage, InvalidInput
from edged.proto import cameras_pb2 as pb

# What curl says of --data-binary unless it is told otherwise is as good as nothing.
_UNSAID = ("", "application/octet-stream", "application/x-www-form-urlencoded")
_PICTURES = (*_UNSAID, "image/jpeg", "image/jpg", "image/png")
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be said behind the `?`; the fields of `edged.v1.Frame` of these names, region as X,Y,WIDTH,HEIGHT."""

    camera: str = ""
    score: float | None = None
    iou: float | None = None
    max_detections: _Size | None = None
    class_agnostic: bool | None = None
    rotation: _Size = 0
    region: str = ""


async def detect(cameras: CameraService, ask: Ask, model: str) -> Answer:
    """The result of the body's picture. Raw outputs of models of no family are described, their bytes left out."""
    delivery = await cameras.answer(frame_of(ask, model))
    echo = result_json.Echo(delivery.camera, 0, delivery.tag.model)
    text = result_json.encode(result_json.delivered(echo, delivery))
    return Answer(parts=(text,), headers=(("content-type", JSON),))


def frame_of(ask: Ask, model: str) -> pb.Frame:
    """The frame that a request is about. InvalidInput for what is no picture and for unknown names in the query."""
    kind = ask.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _PICTURES:
        raise InvalidImage(f"content-type {kind[:60]!r} is no picture; send a JPEG or PNG with curl's --data-binary")
    if not ask.body:
        raise InvalidImage("the request holds no picture; send a JPEG or PNG with curl's --data-binary")
    said = _query(ask.query)
    frame = pb.Frame(model=model, camera=said.camera, encoded=ask.body, rotation=said.rotation)
    limits = {name: getattr(said, name) for name in ("score", "iou", "max_detections", "class_agnostic")}
    given = {name: value for name, value in limits.items() if value is not None}
    if given:
        frame.thresholds.MergeFrom(pb.Thresholds(**given))
    if said.region:
        frame.region.MergeFrom(_region(said.region))
    return frame


def _query(query: Mapping[str, str]) -> _Query:
    try:
        return msgspec.convert(query, ready(_Query), strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the request's query cannot be used: {explain(error, _Query.__struct_fields__)}") from None


def _region(text: str) -> pb.Region:
    numbers = text.split(",")
    if len(numbers) != 4 or not all(each.isascii() and each.isdecimal() and len(each) < 10 for each in numbers):
        raise InvalidInput(f"region {text[:60]!r} is not X,Y,WIDTH,HEIGHT in pixels")
    x, y, width, height = map(int, numbers)
    return pb.Region(x=x, y=y, width=width, height=height)

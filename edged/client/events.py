"""What happened in the daemon, mirroring `Event` of protos/operations.proto."""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf.message import Message

from edged import events
from edged.client.operations import Info
from edged.decoding import ready
from edged.proto import operations_pb2 as pb


class EventInfo(Info, frozen=True):
    """Something that happened. `sequence` counts from 1 in each run of the daemon, without gaps; `epoch` names the run.

    `what` is one of the types in `edged.events` and tells more, each its own; `kind` is its name. An event that this
    client is too old to know has the kind "unknown" and no `what`.
    """

    epoch: str
    sequence: int
    unix_s: float
    kind: str
    model: str
    engine: str
    what: events.What | None

    def json(self) -> dict[str, Any]:
        """Plain values: these fields but `what`, then those of `what` beside them."""
        plain = super().json()
        told = plain.pop("what") or {}
        return {**plain, **{name: value for name, value in told.items() if name != "type"}}


def event_info(message: pb.Event) -> EventInfo:
    kind = message.WhichOneof("what")
    what = None
    if kind is not None:
        what = msgspec.convert({"type": kind, **_fields(getattr(message, kind))}, ready(events.What))
    return EventInfo(
        epoch=message.epoch,
        sequence=message.sequence,
        unix_s=message.unix_s,
        kind=kind or "unknown",
        model=message.model,
        engine=message.engine,
        what=what,
    )


def _fields(message: Message) -> dict[str, Any]:
    """Every field by its name, which is also its name in `edged.events`; None for one that is not there."""
    return {field.name: _value(message, field.name, field.has_presence) for field in message.DESCRIPTOR.fields}


def _value(message: Message, name: str, may_be_absent: bool) -> Any:
    if may_be_absent and not message.HasField(name):
        return None
    value = getattr(message, name)
    if isinstance(value, (str, int, float)):
        return value
    return [_fields(each) for each in value]

"""Every type of event reaches the client unchanged, is flat JSON, and has a sentence for people."""

from __future__ import annotations

import typing

import msgspec
import pytest

from edged import events
from edged.api.grpc.operations import event_message
from edged.api_types import EventInfo
from edged.client.calls import event_info
from edged.event_text import sentence
from edged.events import Event, FactChange
from edged.proto import operations_pb2 as pb

TYPES: tuple[type[msgspec.Struct], ...] = typing.get_args(events.What)
_VALUES: dict[object, object] = {
    str: "words",
    bool: True,
    int: 1 << 40,
    float: 2.5,
    float | None: 0.25,
    tuple[FactChange, ...]: (FactChange("nvidia.driver", "", "580"), FactChange("cpu.isa", "a", "")),
}


def example(kind: type[msgspec.Struct], **absent: None) -> events.What:
    """Return an event of a type with a value in every field."""
    hints = typing.get_type_hints(kind)
    made = kind(**{name: _VALUES[hint] for name, hint in hints.items() if not name.startswith("__")} | absent)
    return typing.cast(events.What, made)


def across(what: events.What, model: str = "doors", engine: str = "k" * 64) -> EventInfo:
    sent = event_message(Event(7, 1.5e9, model, engine, what), "e1").SerializeToString()
    return event_info(pb.Event.FromString(sent))


every_type = pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)


@every_type
def test_event_every_type_arrives_unchanged(kind: type[msgspec.Struct]) -> None:
    what = example(kind)
    info = across(what)
    assert info.what == what
    assert type(info.what) is kind
    assert info.kind == kind.__struct_config__.tag
    assert (info.epoch, info.sequence, info.unix_s, info.model, info.engine) == ("e1", 7, 1.5e9, "doors", "k" * 64)


def test_event_unknown_values_stay_none() -> None:
    what = example(events.EngineProgress, fraction=None, estimate_s=None)
    assert across(what).what == what


@every_type
def test_event_json_is_flat(kind: type[msgspec.Struct]) -> None:
    json = across(example(kind)).json()
    assert list(json)[:6] == ["epoch", "sequence", "unix_s", "kind", "model", "engine"]
    assert list(json)[6:] == list(kind.__struct_fields__)
    msgspec.json.encode(json)


@every_type
def test_event_every_type_has_a_sentence(kind: type[msgspec.Struct]) -> None:
    for info in (across(example(kind)), across(example(kind), model="", engine="")):
        words = sentence(info.what, info.model, info.engine)
        assert words
        assert "\n" not in words
        assert "too old to know" not in words
        assert "None" not in words


def test_event_message_and_types_have_the_same_kinds() -> None:
    fields = pb.Event.DESCRIPTOR.oneofs_by_name["what"].fields
    assert sorted(field.name for field in fields) == sorted(kind.__struct_config__.tag for kind in TYPES)


def test_event_of_unknown_kind_is_no_error() -> None:
    info = event_info(pb.Event(sequence=3, epoch="e1", model="doors", engine="k" * 64))
    assert (info.kind, info.what) == ("unknown", None)
    assert info.json()["sequence"] == 3
    assert "unknown to this version" in sentence(info.what, info.model, info.engine)

"""Reasons why bytes are no model, found in their wire format."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.jobs import model_file
from tests import models

WHOLE = models.conv().SerializeToString()


def field(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def nested(depth: int) -> bytes:
    graph = models.identity().graph.SerializeToString()
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph)))
    return field(7, graph)


@pytest.mark.parametrize(
    ("data", "trouble"),
    [
        (WHOLE, ""),
        (nested(20), ""),
        (nested(40), "too deep"),
        (nested(5000), "too deep"),
        *((WHOLE[:length], "truncated") for length in (len(WHOLE) // 10, len(WHOLE) // 2, len(WHOLE) - 1)),
        *((data, "damaged") for data in (bytes(64), b"\xff" * 64, WHOLE + b"\x07")),
    ],
)
def test_wire_trouble_names_the_fault_of_invalid_bytes(data: bytes, trouble: str) -> None:
    assert model_file.wire_trouble(data) == trouble


def test_wire_trouble_in_nested_types_is_found() -> None:
    kind = field(1, b"\x08\x01")
    for _ in range(200):
        kind = field(4, field(1, kind))
    assert model_file.wire_trouble(field(7, field(11, field(2, kind)))) == "too deep"


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_wire_trouble_of_any_bytes_does_not_raise(data: bytes) -> None:
    assert model_file.wire_trouble(data) in ("", "truncated", "damaged", "too deep")

"""The header of a plan, of every kind and every length."""

from __future__ import annotations

import contextlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.trt.load import Header, read_header, require_version
from edged.errors import EngineUnusable


def plan(
    magic: bytes = b"vtrt", version: tuple[int, ...] = (1, 6, 1, 120), body: int = 36, size: int | None = None
) -> bytes:
    """A plan as TensorRT-RTX writes its header; `body` bytes of something follow."""
    total = 64 + body if size is None else size
    head = struct.pack("<4sIQQ4B4s", magic, 0, 2, total, *version, magic)
    return head + bytes(64 - len(head)) + bytes(body)


@pytest.mark.parametrize(("magic", "kind"), [(b"vtrt", "TensorRT-RTX"), (b"ftrt", "TensorRT")])
def test_it_tells_the_kind_the_version_and_the_size(magic: bytes, kind: str) -> None:
    assert read_header(plan(magic)) == Header(kind, "1.6.1.120", 100)


def test_a_json_header_of_an_exporter_is_skipped() -> None:
    said = json.dumps({"stride": 32, "names": {"0": "ä"}}).encode()
    data = struct.pack("<I", len(said)) + said + plan()
    assert read_header(data) == Header("TensorRT-RTX", "1.6.1.120", 100, 4 + len(said))


@pytest.mark.parametrize("said", [b"[]", b"{", b"\xff\xff", b"{" * 60_000, b"1", b"{}x"])
def test_what_is_no_json_is_no_header(said: bytes) -> None:
    with pytest.raises(EngineUnusable, match="is no TensorRT plan"):
        read_header(struct.pack("<I", len(said)) + said + plan())


def test_a_plan_that_tells_less_is_known_for_less() -> None:
    data = bytearray(plan(b"ftrt"))
    data[28:32] = bytes(4)
    assert read_header(bytes(data)) == Header("TensorRT", "1.6.1.120", None)
    data[4] = 1
    assert read_header(bytes(data)) == Header("TensorRT", "", None)


@pytest.mark.parametrize("length", range(100))
def test_a_plan_that_is_cut_off_is_refused_at_every_length(length: int) -> None:
    words = "is no TensorRT plan" if length < 4 else "is cut off"
    with pytest.raises(EngineUnusable, match=words) as refusal:
        read_header(plan()[:length])
    assert len(str(refusal.value)) < 150


def test_more_than_a_plan_is_refused() -> None:
    with pytest.raises(EngineUnusable, match="has something behind its end: it has 101 bytes and its header says 100"):
        read_header(plan() + b"x")


@pytest.mark.parametrize("data", [b"", b"\0", b"onnx" * 40, b"PK\3\4" * 40, b"VTRT" + bytes(100), bytes(100)])
def test_what_is_no_plan_is_refused_with_how_it_begins(data: bytes) -> None:
    with pytest.raises(EngineUnusable, match=r"it begins with (nothing|[0-9a-f ]{2,11})$"):
        read_header(data)


@given(st.binary(max_size=200), st.integers(0, 64))
def test_any_bytes_are_a_header_or_a_refusal(data: bytes, place: int) -> None:
    whole = plan()
    for garbled in (data, whole[:place] + data + whole[place:], whole[:place] + data + whole[place + len(data) :]):
        with contextlib.suppress(EngineUnusable):
            assert read_header(garbled).kind.startswith("TensorRT")


# -- versions -------------------------------------------------------------------------------------------------------


def test_another_version_is_named_with_the_one_that_is_installed() -> None:
    with pytest.raises(EngineUnusable, match=r"built by TensorRT-RTX 1\.6\.1\.120, and 1\.7\.1\.116 is installed"):
        require_version(read_header(plan()), "TensorRT-RTX", "1.7.1.116")


def test_another_runtime_is_named() -> None:
    with pytest.raises(EngineUnusable, match="built by TensorRT-RTX, and TensorRT cannot load it"):
        require_version(read_header(plan()), "TensorRT", "10.3.0.30")


@pytest.mark.parametrize(
    ("built", "installed"),
    [
        ("10.3.0.30", "10.3.0.30"),
        ("10.3.0.30", "10.3.0"),
        ("", "10.3.0.30"),
        ("10.0.0.44", "10.0.0.300"),
        ("1.2.3.4", "?"),
    ],
)
def test_what_may_be_the_same_version_is_left_to_the_runtime(built: str, installed: str) -> None:
    require_version(Header("TensorRT", built, None), "TensorRT", installed)


def test_a_version_compatible_engine_needs_the_same_major_number() -> None:
    require_version(Header("TensorRT", "10.3.0.30", None), "TensorRT", "10.16.2.10", any_minor=True)
    with pytest.raises(EngineUnusable):
        require_version(Header("TensorRT", "8.6.2.3", None), "TensorRT", "10.3.0.30", any_minor=True)

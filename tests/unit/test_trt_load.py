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
    """Return a plan with a header as TensorRT-RTX writes it, followed by `body` zeros."""
    total = 64 + body if size is None else size
    head = struct.pack("<4sIQQ4B4s", magic, 0, 2, total, *version, magic)
    return head + bytes(64 - len(head)) + bytes(body)


@pytest.mark.parametrize(("magic", "kind"), [(b"vtrt", "TensorRT-RTX"), (b"ftrt", "TensorRT")])
def test_read_header_has_kind_version_and_size(magic: bytes, kind: str) -> None:
    assert read_header(plan(magic)) == Header(kind, "1.6.1.120", 100)


def test_read_header_skips_the_json_of_an_exporter() -> None:
    output = json.dumps({"stride": 32, "names": {"0": "ä"}}).encode()
    data = struct.pack("<I", len(output)) + output + plan()
    assert read_header(data) == Header("TensorRT-RTX", "1.6.1.120", 100, 4 + len(output))


@pytest.mark.parametrize("output", [b"[]", b"{", b"\xff\xff", b"{" * 60_000, b"1", b"{}x"])
def test_read_header_invalid_json_is_refused(output: bytes) -> None:
    with pytest.raises(EngineUnusable, match="is not a TensorRT plan"):
        read_header(struct.pack("<I", len(output)) + output + plan())


def test_read_header_of_another_layout_has_no_size_or_version() -> None:
    data = bytearray(plan(b"ftrt"))
    data[28:32] = bytes(4)
    assert read_header(bytes(data)) == Header("TensorRT", "1.6.1.120", None)
    data[4] = 1
    assert read_header(bytes(data)) == Header("TensorRT", "", None)


@pytest.mark.parametrize(
    "data",
    [
        *(pytest.param(plan()[:length], id=f"{length} bytes") for length in range(100)),
        pytest.param(plan() + b"x", id="more than a plan"),
        *(b"\0", b"onnx" * 40, b"PK\3\4" * 40, b"VTRT" + bytes(100), bytes(100)),
    ],
)
def test_read_header_of_incomplete_or_other_data_is_refused(data: bytes) -> None:
    with pytest.raises(EngineUnusable) as refusal:
        read_header(data)
    assert len(str(refusal.value)) < 150


@given(st.binary(max_size=200), st.integers(0, 64))
def test_read_header_of_any_bytes_is_a_header_or_refused(data: bytes, place: int) -> None:
    whole = plan()
    for garbled in (data, whole[:place] + data + whole[place:], whole[:place] + data + whole[place + len(data) :]):
        with contextlib.suppress(EngineUnusable):
            assert read_header(garbled).kind.startswith("TensorRT")


# -- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "installed", "problem"),
    [
        ("TensorRT-RTX", "1.7.1.116", r"built by TensorRT-RTX 1\.6\.1\.120, but 1\.7\.1\.116 is installed"),
        ("TensorRT", "10.3.0.30", "built by TensorRT-RTX; TensorRT cannot load it"),
    ],
)
def test_require_version_another_one_is_refused(kind: str, installed: str, problem: str) -> None:
    with pytest.raises(EngineUnusable, match=problem):
        require_version(read_header(plan()), kind, installed)


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
def test_require_version_that_may_be_the_same_is_accepted(built: str, installed: str) -> None:
    require_version(Header("TensorRT", built, None), "TensorRT", installed)


def test_require_version_any_minor_compares_the_major_number() -> None:
    require_version(Header("TensorRT", "10.3.0.30", None), "TensorRT", "10.16.2.10", any_minor=True)
    with pytest.raises(EngineUnusable):
        require_version(Header("TensorRT", "8.6.2.3", None), "TensorRT", "10.3.0.30", any_minor=True)

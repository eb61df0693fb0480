"""The parser and writer of gRPC messages: the same results as protobuf, with fewer copies."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from edged.api.grpc import wire
from edged.api.grpc.wire import MEASURED_ABOVE, require_parsable
from edged.errors import InvalidInput
from edged.proto import cameras_pb2 as cameras
from edged.proto import language_pb2 as language
from edged.proto import open_inference_pb2 as pb
from edged.proto import operations_pb2 as operations

LARGE = bytes(range(256)) * 100


def request(*raw: bytes, model: str = "m") -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, id="7", raw_input_contents=raw)
    for index in range(len(raw)):
        message.inputs.add(name=f"x{index}", datatype="UINT8", shape=[len(raw[index])])
    message.parameters["priority"].int64_param = 3
    return message


def same(found: wire.Request, message: pb.ModelInferRequest) -> None:
    assert [bytes(each) for each in found.raw] == list(message.raw_input_contents)
    assert found.id == message.id
    shown = pb.ModelInferRequest()
    shown.CopyFrom(found.message)  # requests with equal heads share a message
    for each in (shown, message):
        each.ClearField("raw_input_contents")
        each.ClearField("id")
    assert shown == message


@pytest.mark.parametrize("raw", [(), (b"",), (b"abc", b""), (LARGE,), (LARGE, b"", b"x", LARGE)], ids=range(5))
def test_read_request_equals_protobufs(raw: tuple[bytes, ...]) -> None:
    message = request(*raw)
    same(wire.read(message.SerializeToString()), message)


def test_read_large_contents_are_views_of_the_message() -> None:
    data = request(LARGE, LARGE).SerializeToString()
    for contents in wire.read(data).raw:
        assert isinstance(contents, memoryview)
        assert contents.obj is data


def test_read_requests_that_differ_only_in_id_and_contents_share_a_message() -> None:
    first = request(b"abc")
    second = request(b"xyz")
    second.id = "8"
    third = request(b"abcd")
    found = [wire.read(each.SerializeToString()) for each in (first, second, third)]
    assert [each.id for each in found] == ["7", "8", "7"]
    assert found[0].head == found[1].head != found[2].head
    assert found[0].message is found[1].message is not found[2].message
    assert [bytes(each.raw[0]) for each in found] == [b"abc", b"xyz", b"abcd"]


def test_read_long_heads_are_not_kept() -> None:
    data = request(b"abc", model="m" * 2000).SerializeToString()
    assert wire.read(data).head == b""
    assert wire.read(data).message is not wire.read(data).message


def test_read_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match="as ModelInferRequest"):
        wire.read(request(b"abc").SerializeToString() + b"\x1a\x01\xff")


def test_read_id_that_is_no_text_is_refused_even_if_another_id_follows() -> None:
    with pytest.raises(InvalidInput, match="as ModelInferRequest"):
        wire.read(b"\x1a\x01\xff" + request(b"abc").SerializeToString())


@pytest.mark.parametrize("raw", [(), (b"abc",), (LARGE,)], ids=range(3))
def test_read_id_counts_towards_the_limit_of_bytes_besides_contents(raw: tuple[bytes, ...]) -> None:
    message = request(*raw)
    message.id = "8" * (wire.MEASURED_ABOVE - 1000)
    assert wire.read(message.SerializeToString()).id == message.id
    message.parameters["a"].string_param = "b" * 2000
    with pytest.raises(InvalidInput, match="besides pictures"):
        wire.read(message.SerializeToString())
    message.ClearField("parameters")
    message.id *= 2
    with pytest.raises(InvalidInput, match="besides pictures"):
        wire.read(message.SerializeToString())


def test_read_last_id_counts() -> None:
    data = request(b"abc").SerializeToString()
    assert wire.read(data + b"\x1a\x018").id == "8"
    assert wire.read(data + b"\x1a\x00").id == ""


def test_read_concatenated_messages_are_merged() -> None:
    first = pb.ModelInferRequest(raw_input_contents=[LARGE]).SerializeToString()
    second = request(b"abc").SerializeToString()
    third = pb.ModelInferRequest(id="8", raw_input_contents=[b"", LARGE]).SerializeToString()
    data = first + second + third
    same(wire.read(data), pb.ModelInferRequest.FromString(data))


def test_read_message_of_very_many_fields_equals_protobufs() -> None:
    message = pb.ModelInferRequest(raw_input_contents=[b"x" * 100] * 1000)
    same(wire.read(message.SerializeToString()), message)


@pytest.mark.parametrize(
    "tail",
    [
        b"\x98\x06\x01",  # an unknown field: varint
        b"\xa3\x06\xa4\x06",  # an unknown field: group
        b"\xaa\x06\x03abc",  # an unknown field: string
    ],
)
def test_read_unknown_fields_are_ignored(tail: bytes) -> None:
    message = request(LARGE)
    same(wire.read(message.SerializeToString() + tail), message_with(message, tail))


def message_with(message: pb.ModelInferRequest, tail: bytes) -> pb.ModelInferRequest:
    return pb.ModelInferRequest.FromString(message.SerializeToString() + tail)


@given(st.binary(max_size=60), st.booleans())
def test_read_any_bytes_equals_protobufs_or_refuses(data: bytes, large: bool) -> None:
    if large:
        data = request(LARGE).SerializeToString() + data
    try:
        message = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        with pytest.raises(InvalidInput, match="as ModelInferRequest"):
            wire.read(data)
    else:
        same(wire.read(data), message)


PIXELS = bytes(range(256)) * 768  # large enough that edged's own parser reads it, not protobuf


def frame(**image: object) -> cameras.Frame:
    message = cameras.Frame(camera="door", sequence=1 << 60, model="m", captured_unix_ns=-1, captured_mono_ns=7)
    message.MergeFrom(cameras.Frame(thresholds=cameras.Thresholds(score=0.5), rotation=90, **image))  # type: ignore[arg-type]
    message.options.max_fps = 2.5
    return message


def raw_image(data: bytes = PIXELS) -> cameras.RawImage:
    return cameras.RawImage(format=cameras.BGR, width=256, height=256, stride=768, data=data)


def same_frame(found: wire.FrameRequest, message: cameras.Frame) -> None:
    """Check that `found` has the picture of the message, and equals the message in all other fields."""
    assert bytes(found.picture) == (message.encoded or message.raw.data or message.samples.data)
    for each in (found.message, message):
        if each.WhichOneof("image") == "encoded":
            each.encoded = b""
        elif each.WhichOneof("image") == "raw":
            each.raw.data = b""
        elif each.WhichOneof("image") == "samples":
            each.samples.data = b""
    assert found.message == message
    assert found.message.WhichOneof("image") == message.WhichOneof("image")


def tagged(number: int, contents: bytes) -> bytes:
    """Return a length-delimited field. Its length takes three bytes."""
    size = len(contents)
    return bytes([number << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + contents


_RAW = raw_image().SerializeToString()
_SOUND = cameras.Samples(format=cameras.Samples.S16, rate=16000, data=PIXELS)
_FRAMES = {
    "no picture": frame().SerializeToString(),
    "small": frame(encoded=b"jpeg").SerializeToString(),
    "large JPEG": frame(encoded=PIXELS).SerializeToString(),
    "raw": frame(raw=raw_image()).SerializeToString(),
    "raw without pixels": frame(raw=raw_image(b"")).SerializeToString(),
    "shared": frame(shared=cameras.SharedImage(segment="/s", size=3)).SerializeToString(),
    "raw twice is merged": frame(raw=raw_image()).SerializeToString() + tagged(7, b"\x10\x07") + tagged(7, _RAW),
    "samples": frame(samples=_SOUND).SerializeToString(),
    "samples without data": frame(samples=cameras.Samples(rate=8000)).SerializeToString(),
    "raw, then samples": tagged(7, _RAW) + cameras.Frame(samples=_SOUND).SerializeToString(),
    "pixels twice": tagged(7, _RAW + tagged(5, PIXELS[:-1])),
    "raw, then a JPEG": frame(raw=raw_image()).SerializeToString() + tagged(6, PIXELS),
    "a JPEG, then raw": tagged(6, PIXELS) + tagged(7, _RAW),
    "a JPEG twice": tagged(6, PIXELS) + tagged(6, PIXELS[1:]),
    "raw, then shared": tagged(7, _RAW) + cameras.Frame(shared=cameras.SharedImage(size=3)).SerializeToString(),
    "a JPEG whose field has a number": tagged(6, PIXELS) + b"\x30\x01",
    "pixels whose field has a number": tagged(7, _RAW + b"\x28\x01"),
    "a tag of more bytes than it needs": b"\xb2\x80\x00" + tagged(6, PIXELS)[1:],
    "unknown fields": tagged(7, _RAW + b"\x78\x01\x79" + bytes(8)) + b"\xfd\x0fabcd" + b"\xa2\x1f\x03abc",
}


@pytest.mark.parametrize("data", _FRAMES.values(), ids=_FRAMES)
def test_read_frame_equals_protobufs(data: bytes) -> None:
    same_frame(wire.read_frame(data), cameras.Frame.FromString(data))


@pytest.mark.parametrize("kind", ["large JPEG", "raw", "samples"])
def test_read_frame_large_picture_is_a_view_of_the_message(kind: str) -> None:
    picture = wire.read_frame(_FRAMES[kind]).picture
    assert isinstance(picture, memoryview)
    assert picture.obj is _FRAMES[kind]


def test_read_frame_copies_nothing() -> None:
    size = 8 << 20
    data = frame(raw=raw_image(bytes(size))).SerializeToString()
    tracemalloc.start()
    try:
        assert len(wire.read_frame(data).picture) == size
        assert tracemalloc.get_traced_memory()[1] < size // 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        _FRAMES["raw"][:-1],
        _FRAMES["large JPEG"][:100],
        tagged(7, _RAW[:-1]),  # an image that ends within its pixels
        tagged(7, _RAW) + b"\x07",  # a wire type that does not exist
        tagged(7, _RAW) + b"\x00\x00",  # field number 0
        tagged(7, _RAW) + b"\x0a\x01\xff",  # text that is not UTF-8
        tagged(7, _RAW) + b"\x32\xff\xff\xff\xff\x7f",  # a JPEG of 34 GB
        tagged(7, _RAW) + b"\x10" + b"\xff" * 10 + b"\x01",  # a number of eleven bytes
        tagged(7, _RAW) + b"\x62\x00" * MEASURED_ABOVE,  # many options fields
        tagged(7, _RAW) + tagged(1, b"a" * 2 * MEASURED_ABOVE),
        tagged(7, _RAW) + b"\xa3\x06\xa4\x06",  # a group, which proto3 does not have
        tagged(7, _RAW + b"\xa3\x06\xa4\x06"),
    ],
    ids=range(12),
)
def test_read_frame_malformed_or_costly_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput) as found:
        wire.read_frame(data)
    with pytest.raises(InvalidInput) as wanted:
        wire.parse(data, cameras.Frame)
    assert str(found.value) == str(wanted.value)


_PIECES = st.sampled_from(
    [
        b"\x0a\x01a",
        b"\x10\x05",
        tagged(6, PIXELS),
        tagged(6, b""),
        tagged(7, _RAW),
        tagged(7, b"\x10\x05"),
        tagged(7, _RAW + tagged(5, b"x")),
        b"\x4a\x02\x10\x05",
        b"\xa5\x06abcd",
        b"\xa1\x06abcdefgh",
    ]
)


@given(st.lists(_PIECES | st.binary(max_size=12), max_size=6), st.binary(max_size=12))
def test_read_frame_of_any_bytes_equals_parse(pieces: list[bytes], within: bytes) -> None:
    data = b"".join(pieces) + tagged(7, within + _RAW)
    try:
        message = wire.parse(data, cameras.Frame)
    except InvalidInput as error:
        with pytest.raises(InvalidInput, match=re.escape(str(error))):
            wire.read_frame(data)
    else:
        same_frame(wire.read_frame(data), message)


@given(st.lists(st.binary(max_size=300), max_size=4), st.booleans())
def test_write_response_equals_protobufs(raw: list[bytes], streamed: bool) -> None:
    message = pb.ModelInferResponse(model_name="m", id="7")
    message.parameters["triton_final_response"].bool_param = True
    written = wire.write(message, [memoryview(each) for each in raw], streamed=streamed)
    message.raw_output_contents.extend(raw)
    if streamed:
        assert pb.ModelStreamInferResponse.FromString(written) == pb.ModelStreamInferResponse(infer_response=message)
    else:
        assert pb.ModelInferResponse.FromString(written) == message


def test_read_copies_nothing_and_write_copies_once() -> None:
    size = 8 << 20
    arena = memoryview(bytearray(size))
    data = request(bytes(size)).SerializeToString()
    tracemalloc.start()
    try:
        found = wire.read(data)
        assert tracemalloc.get_traced_memory()[1] < size // 8  # reading copies no contents
        arena[:] = found.raw[0]
        tracemalloc.reset_peak()
        written = wire.write(pb.ModelInferResponse(model_name="m"), [arena])
        assert len(written) > size
        assert tracemalloc.get_traced_memory()[1] < size + size // 8
    finally:
        tracemalloc.stop()


_LARGE = bytes(4 * MEASURED_ABOVE)


def _typed(**values: object) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="x", contents=pb.InferTensorContents(**values))
    return request


def _many_inputs(count: int, values: int) -> bytes:
    tensor = pb.ModelInferRequest.InferInputTensor(contents=pb.InferTensorContents(bytes_contents=[b""] * values))
    return pb.ModelInferRequest(model_name="m", inputs=[tensor] * count).SerializeToString()


def _uploaded() -> pb.RepositoryModelLoadRequest:
    request = pb.RepositoryModelLoadRequest(model_name="m")
    request.parameters["file:1/model.onnx"].bytes_param = _LARGE
    return request


@pytest.mark.parametrize(
    "message",
    [
        cameras.Frame(camera="a", encoded=_LARGE),
        cameras.Frame(camera="a", raw=cameras.RawImage(width=1, data=_LARGE)),
        pb.ModelInferRequest(model_name="m", raw_input_contents=[_LARGE, _LARGE]),
        _typed(fp32_contents=[1.0] * MEASURED_ABOVE),
        _typed(uint_contents=[200] * MEASURED_ABOVE),
        _typed(bytes_contents=[_LARGE, b"x"]),
        _uploaded(),
        operations.AddModelRequest(chunk=_LARGE),
        language.ChatRequest(model="m", messages=[language.ChatMessage(content="what?", pictures=[_LARGE, _LARGE])]),
        pb.ModelReadyRequest(name="x" * (MEASURED_ABOVE - 10)),
    ],
    ids=range(10),
)
def test_require_parsable_message_with_large_contents_passes(message: Message) -> None:
    require_parsable(message.SerializeToString(), type(message))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (pb.ModelInferRequest, b"\x2a\x00" * MEASURED_ABOVE),  # many empty inputs
        (pb.ModelInferRequest, pb.ModelInferRequest(model_name="x" * 2 * MEASURED_ABOVE).SerializeToString()),
        (pb.ModelInferRequest, _typed(uint_contents=[1] * 64 * MEASURED_ABOVE).SerializeToString()),
        (pb.ModelInferRequest, _typed(bytes_contents=[b"xy" * 50] * 5000).SerializeToString()),
        (pb.ModelInferRequest, _many_inputs(70, 1000)),
        (language.ChatRequest, language.ChatRequest(model="x" * 2 * MEASURED_ABOVE).SerializeToString()),
        (pb.ModelReadyRequest, pb.ModelReadyRequest(name="x" * 2 * MEASURED_ABOVE).SerializeToString()),
        (cameras.Frame, cameras.Frame(raw=cameras.RawImage(data=_LARGE)).SerializeToString()[:-1]),
        (cameras.Frame, b"\x62\x00" * MEASURED_ABOVE),  # options, again and again
        (cameras.Frame, b"\xff" * 2 * MEASURED_ABOVE),
        (cameras.Frame, b"\x0b" * 2 * MEASURED_ABOVE),  # a group, which proto3 does not have
    ],
    ids=range(11),
)
def test_require_parsable_costly_message_is_refused(kind: type[Message], data: bytes) -> None:
    with pytest.raises(InvalidInput):
        require_parsable(data, kind)

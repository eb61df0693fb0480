"""Large messages, compressed messages that expand, and messages that are costly to parse."""

from __future__ import annotations

import contextlib
import itertools
import struct
import time
import zlib
from collections.abc import Callable, Iterator

import grpc
import numpy as np

from edged.config import Config
from edged.proto import open_inference_pb2 as pb
from tests.attack.abuse import NUMBERS, Abuse, Target
from tests.fuzz import http2
from tests.waiting import together

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_DETECT = "/edged.v1.Cameras/Detect"
_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
_MIB = 1 << 20
_LARGE = (Config().max_message_mb << 20) - 65536  # just below the limit


def _raw(size: int) -> bytes:
    """Return a valid request of about `size` bytes, as raw contents."""
    rows = size // 16
    request = pb.ModelInferRequest(model_name=NUMBERS)
    request.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    request.raw_input_contents.append(bytes(rows * 16))
    return request.SerializeToString()


def _typed(size: int) -> bytes:
    """Return a valid request of about `size` bytes, as typed contents."""
    rows = size // 16
    request = pb.ModelInferRequest(model_name=NUMBERS)
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    tensor.contents.fp32_contents.extend(np.ones(rows * 4, np.float32))
    return request.SerializeToString()


def _hollow(size: int) -> bytes:
    """Return a message of empty inputs: two bytes each on the wire, many more as objects."""
    return b"\x2a\x00" * (size // 2)


def _deep(size: int) -> bytes:
    """Return a request with one input of a very long shape."""
    shape = b"\x01" * (size - 32)
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32").SerializeToString()
    tensor += b"\x1a" + _varint(len(shape)) + shape
    return b"\x2a" + _varint(len(tensor)) + tensor


def _calls(
    path: str, body: Callable[[], bytes], count: int, *, streams: bool = False
) -> Callable[[Target, float], None]:
    """Make calls on `count` connections, as fast as the daemon answers."""

    def work(target: Target, until: float) -> None:
        data = body()

        def client(number: int) -> None:
            options = [*_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(target.tcp if number % 2 else target.unix, options) as channel:
                call = channel.stream_stream(path) if streams else channel.unary_unary(path)
                while (left := until - time.monotonic()) > 0:
                    with contextlib.suppress(grpc.RpcError):
                        if streams:
                            for _ in call(itertools.repeat(data, 4), timeout=left):  # type: ignore[operator]
                                pass
                        else:
                            call(data, timeout=left)  # type: ignore[operator]

        together(client, count)

    return work


def _bombs(size: int) -> Callable[[Target, float], None]:
    """Send messages that are small until they are decompressed."""

    def work(target: Target, until: float) -> None:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        packed = b"".join(packer.compress(bytes(_MIB)) for _ in range(size // _MIB)) + packer.flush()

        def client(number: int) -> None:
            while time.monotonic() < until:
                with (
                    contextlib.suppress(OSError),
                    http2.greeted(target.tcp if number % 2 else target.unix) as connection,
                ):
                    connection.sendall(http2.update(0, 1 << 30))
                    for stream in range(1, 9, 2):
                        extra = [(b"grpc-encoding", b"gzip")]
                        connection.sendall(http2.call(stream, _INFER, extra))
                        for piece in _pieces(http2.message(stream, packed, compressed=1)):
                            connection.sendall(piece)
                    connection.settimeout(max(0.1, min(2.0, until - time.monotonic())))
                    list(http2.frames(connection))

        together(client, 9)

    return work


def _announced(target: Target, until: float) -> None:
    """Open streams, announce the largest message on each, and send a little of it now and then."""

    def client(number: int) -> None:
        with contextlib.suppress(OSError), http2.greeted(target.tcp if number % 2 else target.unix) as connection:
            for stream in range(1, 200, 2):
                begins = b"\0" + struct.pack(">I", _LARGE)
                connection.sendall(http2.call(stream, _STREAM) + http2.frame(http2.DATA, 0, stream, begins))
            while time.monotonic() < until:
                for stream in range(1, 200, 2):
                    connection.sendall(http2.frame(http2.DATA, 0, stream, bytes(200)))
                time.sleep(0.2)

    together(client, 4)


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 65536] for at in range(0, len(data), 65536))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


# Each message holds the event loop for about 35 ms while gRPC's library copies it, and several may complete at once.
_COPIED = 10.0

ABUSES = (
    Abuse("messages beyond the limit", _calls(_INFER, lambda: _raw(250 * _MIB), 9)),
    Abuse("messages at the limit", _calls(_INFER, lambda: _raw(_LARGE), 9), goal=_COPIED),
    Abuse("streamed messages at the limit", _calls(_STREAM, lambda: _raw(_LARGE), 9, streams=True), goal=_COPIED),
    Abuse("invalid frames at the limit", _calls(_DETECT, lambda: bytes(_LARGE), 9, streams=True), goal=_COPIED),
    Abuse("values in messages at the limit", _calls(_INFER, lambda: _typed(_LARGE), 4), goal=_COPIED),
    Abuse("empty inputs up to the limit", _calls(_INFER, lambda: _hollow(_LARGE), 4), goal=_COPIED),
    Abuse("a shape up to the limit", _calls(_INFER, lambda: _deep(_LARGE), 4), goal=_COPIED),
    Abuse("gzip that unpacks to 250 MiB", _bombs(250 * _MIB)),
    Abuse("gzip that unpacks to the limit", _bombs(_LARGE)),
    Abuse("messages announced and trickled", _announced),
)

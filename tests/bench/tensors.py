"""The cost of a tensor's bytes on their way through the daemon. Prints ratios measured in one run.

python tests/bench/tensors.py [MEBIBYTES]

First the codec alone: reading requests and writing responses with protobuf, and as the daemon does it, with one copy
per direction between gRPC and the arena of the engine host. Then a real daemon with an identity model, called with
contents in the message and with both tensors in shared memory.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from edged.api.grpc import wire
from edged.proto import open_inference_pb2 as pb
from tests.integration import onnx_files
from tests.integration.daemon import Daemon
from tests.measuring import in_turns

_SECONDS = 3.0
_SERVICE = "/inference.GRPCInferenceService/"


def median_seconds(*ways: Callable[[], object]) -> list[float]:
    taken = in_turns({str(number): way for number, way in enumerate(ways)}, _SECONDS)
    return [statistics.median(times) for times in taken.values()]


def codec(size: int) -> None:
    """Compare reading requests into, and writing responses from, memory like the arena's."""
    arena = memoryview(bytearray(size))
    data = request(size).SerializeToString()
    head = pb.ModelInferResponse(model_name="m")

    def read_by_protobuf() -> None:
        arena[:] = pb.ModelInferRequest.FromString(data).raw_input_contents[0]

    def read_by_views() -> None:
        arena[:] = wire.read(data).raw[0]

    def write_by_protobuf() -> bytes:
        message = pb.ModelInferResponse(model_name="m")
        message.raw_output_contents.append(bytes(arena))
        return message.SerializeToString()

    def write_by_views() -> bytes:
        return wire.write(head, [arena])

    def copy() -> bytes:
        return bytes(arena)

    once, *times = median_seconds(copy, read_by_protobuf, read_by_views, write_by_protobuf, write_by_views)
    for name, (protobuf, views) in (("read a request", times[:2]), ("write a response", times[2:])):
        print(
            f"{name}: {protobuf / once:.1f} copies' time by protobuf, {views / once:.1f} here: {protobuf / views:.1f}x"
        )


def request(size: int) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="same", raw_input_contents=[bytes(size)])
    message.inputs.add(name="x", datatype="UINT8", shape=[size // 4, 4])
    return message


def in_memory(size: int) -> pb.ModelInferRequest:
    """Return the same request with its input and output in the two halves of the region `r`."""
    message = pb.ModelInferRequest(model_name="same")
    tensors = (message.inputs.add(name="x", datatype="UINT8", shape=[size // 4, 4]), message.outputs.add(name="y"))
    for number, tensor in enumerate(tensors):
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = size
        tensor.parameters["shared_memory_offset"].int64_param = number * size
    return message


def through_the_daemon(size: int) -> None:
    daemon = Daemon()
    onnx_files.identity(daemon.models / "same.onnx", "UINT8")
    region = Path("/dev/shm") / f"edged-bench-{time.monotonic_ns()}"
    limits = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    try:
        region.write_bytes(bytes(2 * size))
        region.chmod(0o600)
        with daemon, grpc.insecure_channel(daemon.unix, limits) as channel:
            daemon.ready("same")
            register = channel.unary_unary(
                _SERVICE + "SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest.SerializeToString
            )
            register(pb.SystemSharedMemoryRegisterRequest(name="r", key=region.name, byte_size=2 * size), timeout=30)
            infer = channel.unary_unary(_SERVICE + "ModelInfer")  # from bytes to bytes: the client is not measured
            by_message, by_memory = request(size).SerializeToString(), in_memory(size).SerializeToString()
            slow, fast = median_seconds(lambda: infer(by_message, timeout=60), lambda: infer(by_memory, timeout=60))
    finally:
        region.unlink(missing_ok=True)
    print(f"through the daemon and back: shared memory takes {fast / slow:.2f} of the time of contents in the message")


def main(size: int) -> None:
    print(f"tensors of {size >> 20} MiB")
    codec(size)
    through_the_daemon(size)


if __name__ == "__main__":
    main(int(sys.argv[1]) << 20 if sys.argv[1:] else 32 << 20)

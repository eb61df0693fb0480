"""The latency of HTTP against gRPC for the same tensors. Prints ratios measured in turns in one run.

python -m tests.bench.rest [SECONDS]
"""

from __future__ import annotations

import json
from collections.abc import Callable

import grpc
import numpy as np

from edged.proto import open_inference_pb2 as pb
from edged.shapes import MODEL_PATH
from tests.integration import onnx_files
from tests.integration.test_http import HttpDaemon
from tests.measuring import argument, in_turns


def ways_of(
    daemon: HttpDaemon, channel: grpc.Channel, model: str, name: str, values: np.ndarray
) -> dict[str, Callable[[], None]]:
    connection = daemon.connection()
    head = {"name": name, "datatype": "FP32", "shape": list(values.shape)}
    data = values.tobytes()
    text = json.dumps({"inputs": [{**head, "data": values.ravel().tolist()}]}).encode()
    binary = {
        "inputs": [{**head, "parameters": {"binary_data_size": len(data)}}],
        "parameters": {"binary_data_output": True},
    }
    binary_head = json.dumps(binary).encode()
    call = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[data])
    request.inputs.add(**head)

    def post(body: bytes, headers: dict[str, str]) -> None:
        connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200

    length = {"Inference-Header-Content-Length": str(len(binary_head))}
    return {
        "gRPC": lambda: call(request, timeout=30),
        "HTTP, binary": lambda: post(binary_head + data, length),
        "HTTP, JSON": lambda: post(text, {}),
    }


def main(seconds: float) -> None:
    daemon = HttpDaemon("127.0.0.1:0", "--model", f"shapes={MODEL_PATH}", body_mb=64)
    onnx_files.identity(daemon.models / "id.onnx", "FP32")
    with daemon, grpc.insecure_channel(daemon.tcp, [("grpc.max_receive_message_length", -1)]) as channel:
        daemon.settled("shapes")
        daemon.ready("id")
        picture = np.random.default_rng(1).random((1, 3, 320, 320), np.float32)
        for model, name, values in (
            ("id", "x", np.ones((1, 4), np.float32)),
            ("id", "x", picture.reshape(-1, 4)),
            ("shapes", "images", picture),
        ):
            taken = in_turns(ways_of(daemon, channel, model, name, values), 3 * seconds)
            found = {way: float(np.median(times)) for way, times in taken.items()}
            for way, median in found.items():
                ratio = median / found["gRPC"]
                print(f"{model:7} {values.nbytes:8} bytes  {way:13} {median * 1e3:8.2f} ms  {ratio:5.2f} of gRPC")


if __name__ == "__main__":
    main(argument(4.0))

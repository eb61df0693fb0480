"""Runs in a process of its own: NVIDIA's client against the daemon. Prints one JSON object of what it saw."""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import triton_to_np_dtype


def sample(datatype: str) -> Any:
    random, dtype = np.random.default_rng(7), triton_to_np_dtype(datatype)
    if datatype == "BYTES":
        return np.array([b"", b"a", "Größe".encode(), b"x" * 300] * 2, dtype=np.object_).reshape(2, 4)
    if datatype == "BOOL":
        return random.integers(0, 2, (2, 4)).astype(bool)
    if datatype.startswith("FP"):
        values = random.standard_normal((2, 4)).astype(dtype)
        values[0] = [np.nan, np.inf, -0.0, np.finfo(dtype).tiny / 2]
        return values
    bounds = np.iinfo(dtype)
    return random.integers(bounds.min, bounds.max, (2, 4), dtype=dtype, endpoint=True)


def equal(datatype: str, one: Any, other: Any) -> bool:
    if datatype == "BYTES":
        return one.shape == other.shape and all(a == b for a, b in zip(one.ravel(), other.ravel(), strict=True))
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def main(address: str, datatypes: list[str]) -> None:
    client = triton.InferenceServerClient(address)
    seen: dict[str, Any] = {"live": client.is_server_live(), "server": client.get_server_metadata(as_json=True)}
    seen["metadata"] = client.get_model_metadata("shapes", as_json=True)
    seen["ready"] = client.is_model_ready("shapes")
    seen["unary"], seen["stream"], seen["typed"] = {}, {}, {}
    for datatype in datatypes:
        values = sample(datatype)
        tensor = triton.InferInput("x", values.shape, datatype)
        tensor.set_data_from_numpy(values)
        name = f"id_{datatype}"
        answer = client.infer(name, [tensor], request_id="seven")
        seen["unary"][datatype] = equal(datatype, answer.as_numpy("y"), values) and answer.get_response().id == "seven"
        results: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error, results=results: results.put((result, error)))
        for number in range(8):
            client.async_stream_infer(name, [tensor], request_id=str(number))
        answers = [results.get(timeout=20) for _ in range(8)]
        client.stop_stream()
        seen["stream"][datatype] = [r.get_response().id for r, _ in answers] == [str(n) for n in range(8)] and all(
            equal(datatype, r.as_numpy("y"), values) for r, _ in answers
        )
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

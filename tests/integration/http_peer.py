"""NVIDIA's HTTP client against the daemon, in its own process. Prints one JSON object with the results."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.integration.triton_flows import equal, sample


def infer(client: Any, datatype: str, is_binary: bool, **options: Any) -> bool:
    values = sample(datatype)
    tensor = triton.InferInput("x", values.shape, datatype)
    tensor.set_data_from_numpy(values, binary_data=is_binary)
    wanted = [triton.InferRequestedOutput("y", binary_data=is_binary)]
    answer = client.infer(f"id_{datatype}", [tensor], outputs=wanted, request_id="seven", **options)
    reported = answer.as_numpy("y")
    if datatype == "BYTES" and not is_binary:
        reported = np.array([text.encode() for text in reported.ravel()], np.object_).reshape(reported.shape)
    return equal(datatype, reported, values) and answer.get_response()["id"] == "seven"


def refusal(client: Any) -> list[str]:
    try:
        client.get_model_metadata("nobody")
    except InferenceServerException as error:
        return [str(error.status()), str(error.message())]
    return []


def main(address: str, datatypes: list[str]) -> None:
    client = triton.InferenceServerClient(address)
    seen: dict[str, Any] = {
        "live": client.is_server_live(),
        "ready": client.is_model_ready("shapes"),
        "unready": client.is_model_ready("nobody"),
        "server": client.get_server_metadata()["name"],
        "metadata": client.get_model_metadata("shapes")["inputs"],
        "config": client.get_model_config("shapes")["input"][0]["data_type"],
        "index": [each["name"] for each in client.get_model_repository_index()],
        "trace": client.get_trace_settings("shapes")["trace_level"],
        "log": client.update_log_settings({"log_verbose_level": 0})["log_verbose_level"],
        "refusal": refusal(client),
    }
    seen["binary"] = {each: infer(client, each, True) for each in datatypes}
    seen["json"] = {each: infer(client, each, False) for each in datatypes if each != "FP16"}
    packing = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}
    seen["packed"] = infer(client, "FP32", True, **packing) and infer(client, "FP32", False, **packing)
    seen["statistics"] = client.get_inference_statistics("id_FP32")["model_stats"][0]["inference_count"]
    client.unregister_cuda_shared_memory()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""Runs in a process of its own: NVIDIA's client asks for statistics and changes trace and log settings. Prints one JSON
object of what it saw.

python triton_figures.py HOST:PORT MODEL
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton


def main(address: str, model: str) -> None:
    client = triton.InferenceServerClient(address)
    tensor = triton.InferInput("x", (2, 4), "FP32")
    tensor.set_data_from_numpy(np.ones((2, 4), np.float32))
    before = client.get_inference_statistics(model)
    for number in range(6):
        client.infer(model, [tensor], request_id=str(number))
    after = client.get_inference_statistics(model, as_json=True)["model_stats"][0]
    grown = int(after["inference_stats"]["success"]["count"]) - before.model_stats[0].inference_stats.success.count
    seen: dict[str, Any] = {"grown": grown, "version": after["version"]}
    seen["all"] = sorted(each.name for each in client.get_inference_statistics().model_stats)

    wanted = {"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_file": "client.json", "trace_count": "3"}
    seen["trace set"] = _values(client.update_trace_settings(model, wanted))
    for number in range(8):
        client.infer(model, [tensor], request_id=str(number))
    seen["trace after"] = _values(client.get_trace_settings(model))
    seen["trace cleared"] = _values(client.update_trace_settings(model, dict.fromkeys(wanted)))
    seen["trace of all"] = _values(client.get_trace_settings())

    seen["log set"] = client.update_log_settings({"log_info": False, "log_verbose_level": 1}, as_json=True)
    seen["log reset"] = client.update_log_settings({"log_info": True, "log_verbose_level": 0}, as_json=True)
    seen["log"] = client.get_log_settings(as_json=True)
    print(json.dumps(seen))


def _values(answer: Any) -> dict[str, list[str]]:
    return {name: list(setting.value) for name, setting in answer.settings.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])

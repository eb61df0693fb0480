"""Sends requests to a daemon with tritonclient until standard input ends, then prints the counts.

python triton_load.py HOST:PORT MODEL

A separate process, because tritonclient and edged register the same protobuf messages.
"""

from __future__ import annotations

import json
import select
import sys

import numpy as np
import tritonclient.grpc as triton


def main(address: str, model: str) -> None:
    client = triton.InferenceServerClient(address)
    described = client.get_model_metadata(model)
    shape = [max(int(size), 1) for size in described.inputs[0].shape]
    tensor = triton.InferInput(described.inputs[0].name, shape, described.inputs[0].datatype)
    tensor.set_data_from_numpy(np.zeros(shape, np.uint8 if described.inputs[0].datatype == "UINT8" else np.float32))
    answered, errors = 0, []
    print("asking", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            client.infer(model, [tensor], client_timeout=30)
            answered += 1
        except triton.InferenceServerException as error:
            errors.append(str(error))
    print(json.dumps({"answered": answered, "errors": errors[:20]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

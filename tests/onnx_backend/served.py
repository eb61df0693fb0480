"""A case in a daemon: added to its repository, answered over gRPC, removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import ml_dtypes
import numpy as np

from edged.proto import open_inference_pb2 as pb
from edged.tensors import to_array, to_bytes
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import method
from tests.onnx_backend.cases import DATATYPES, Case, Exchange

# No engine of ONNX Runtime on a CPU has this precision, so the reference serves and nothing is built.
REFERENCE_ONLY = 'backends = "onnxruntime"\nprecisions = "tf32"\n'
_SECONDS = 120.0


def name_of(case: Case) -> str:
    """Return the model's name in the repository."""
    return f"{case.kind}.{case.name}"


@contextmanager
def placed(cases: Sequence[Case], daemon: Daemon) -> Iterator[None]:
    """Add the cases to the daemon's repository while the `with` lasts. Each has its first inputs as a sample, as an
    owner would add them: some models accept certain values only."""
    repository, names = daemon.models, {name_of(case) for case in cases}
    for case in cases:
        folder = repository / name_of(case)
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.onnx").write_bytes(case.model.SerializeToString())
        (folder / "edged.toml").write_text(REFERENCE_ONLY)
        inputs = {entry.name: array for entry, array in zip(case.inputs, case.exchanges[0].inputs, strict=True)}
        if inputs and all(isinstance(array, np.ndarray) and array.dtype.kind in "biuf" for array in inputs.values()):
            (folder / "samples").mkdir()
            np.savez(folder / "samples" / "inputs.npz", **inputs)
    try:
        with daemon.client() as client:
            wait_for("the models are known", lambda: names <= {model.name for model in client.models()})
        yield
    finally:
        for case in cases:
            shutil.rmtree(repository / name_of(case))


class Server:
    """A client of the daemon for these cases."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._infer = method(self._channel, "ModelInfer")

    def answers(self, case: Case, exchange: Exchange) -> list[Any]:
        """Return the outputs in the model's order. grpc.RpcError with the daemon's message."""
        request = pb.ModelInferRequest(model_name=name_of(case))
        for entry, array in zip(case.inputs, exchange.inputs, strict=True):
            datatype = DATATYPES[entry.type.tensor_type.elem_type]
            request.inputs.add(name=entry.name, datatype=datatype, shape=array.shape)
            request.raw_input_contents.append(_raw(array, datatype))
        response = self._infer(request, timeout=_SECONDS, wait_for_ready=True)
        found = {
            output.name: _array(output, data)
            for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
        }
        return [found[output.name] for output in case.model.graph.output]

    def close(self) -> None:
        self._channel.close()


def _raw(array: Any, datatype: str) -> bytes:
    if datatype == "BYTES":
        words = [word if isinstance(word, bytes) else str(word).encode() for word in array.ravel().tolist()]
        array = np.array([*words, None], np.object_)[:-1]
    elif datatype == "BF16":
        array = array.view(np.uint16)
    return bytes(to_bytes(array))


def _array(output: pb.ModelInferResponse.InferOutputTensor, data: bytes) -> Any:
    array = to_array(output.name, output.datatype, tuple(output.shape), data)
    return array.view(ml_dtypes.bfloat16) if output.datatype == "BF16" else array

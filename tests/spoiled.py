"""Engines that look sound but give wrong answers, as with a faulty driver: their files match their record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx

from edged.backends.artefact import Artefact
from edged.store.record import EngineRecord


def spoil(folder: Path) -> None:
    """Change the weights of an ONNX Runtime engine in the store and seal it again."""

    def change(graph: onnx.GraphProto) -> None:
        floats = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
        _replace(max(floats, key=lambda tensor: int(np.prod(tensor.dims))), lambda values: values * np.float32(1.5))

    _alter(folder, change)


def shift_scores(folder: Path, logit: float) -> None:
    """Add `logit` to the logits of all scores of an engine of the embedded detector, and seal it again. With 0.01 the
    scores differ by at most 0.0025."""

    def change(graph: onnx.GraphProto) -> None:
        by_output = {name: node for node in graph.node for name in node.output}
        heads = [node for name, node in by_output.items() if name.endswith("/score/score.1/Conv_output_0")]
        # The optimiser may have added a node that restores the order of the channels.
        convolutions = [node if node.op_type == "Conv" else by_output[node.input[0]] for node in heads]
        biases = {node.input[2] for node in convolutions}
        assert biases
        for tensor in graph.initializer:
            if tensor.name in biases:
                _replace(tensor, lambda values: values + np.float32(logit))

    _alter(folder, change)


def _replace(tensor: onnx.TensorProto, change: Callable[[np.ndarray], np.ndarray]) -> None:
    values = change(onnx.numpy_helper.to_array(tensor))
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))


def _alter(folder: Path, change: Callable[[onnx.GraphProto], None]) -> None:
    blob = folder / "model.onnx"
    model = onnx.load(blob)
    change(model.graph)
    onnx.save(model, blob)
    record = msgspec.json.decode((folder / "record.json").read_bytes(), type=EngineRecord)
    (folder / "record.json").unlink()
    record = msgspec.structs.replace(record, files=Artefact.seal(folder).files)
    (folder / "record.json").write_bytes(msgspec.json.encode(record))

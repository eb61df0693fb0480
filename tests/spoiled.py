"""Engines that look sound but give wrong answers, as with a faulty driver: their files match their record."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx

from edged.backends.artefact import Artefact
from edged.store.record import EngineRecord


def spoil(folder: Path) -> None:
    """Change the weights of an ONNX Runtime engine in the store and seal it again."""
    blob = folder / "model.onnx"
    model = onnx.load(blob)
    floats = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
    weights = max(floats, key=lambda tensor: int(np.prod(tensor.dims)))
    values = onnx.numpy_helper.to_array(weights)
    weights.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(values * 1.5), weights.name))
    onnx.save(model, blob)
    record = msgspec.json.decode((folder / "record.json").read_bytes(), type=EngineRecord)
    (folder / "record.json").unlink()
    record = msgspec.structs.replace(record, files=Artefact.seal(folder).files)
    (folder / "record.json").write_bytes(msgspec.json.encode(record))

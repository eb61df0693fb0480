"""Simplifies a model with onnxslim, which folds constants and removes unneeded nodes. Runs in the child.

onnxslim is pure Python. Unlike similar libraries, it needs no wheel for each processor and Python version, and it
requires only sympy in addition. The extra `edged[convert]` installs onnxslim.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import onnx

from edged import packages
from edged.backends.contract import one_line
from edged.errors import Unsuitable, Unsupported
from edged.ipc.job_messages import Simplified, Simplify

# The library copies the model several times, each in one protobuf message, which must be smaller than 2 GiB.
_LARGEST = 1 << 30
_INLINE = 256 << 20  # bytes; the weights of a larger model are written next to the graph


def simplify(job: Simplify) -> Simplified:
    """Write the simplified model. Raises Unsupported if onnxslim is not installed, Unsuitable if it cannot simplify the
    model."""
    path, out = Path(job.path), Path(job.out)
    try:
        import onnxslim
    except ImportError as error:
        remedy = packages.install_extra("convert")
        raise Unsupported(f"simplify is skipped: {error}; install the extra: {remedy}") from error
    original = _load(path)
    before = len(original.graph.node)
    try:
        slim = onnxslim.slim(original)
    except Exception as error:  # whatever it raises
        raise Unsuitable(f"onnxslim cannot simplify the model: {one_line(error)}") from error
    if slim is None or not slim.graph.node:
        raise Unsuitable("onnxslim cannot simplify the model: the result has no nodes")
    header = onnx.load(str(path), load_external_data=False)
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string", "ir_version"):
        setattr(slim, field, getattr(header, field))
    del slim.metadata_props[:]
    slim.metadata_props.extend(header.metadata_props)
    after = len(slim.graph.node)
    is_large = slim.ByteSize() > _INLINE
    onnx.save(slim, str(out), save_as_external_data=is_large, location=Path(job.weights).name)
    return Simplified(before, after, f"onnxslim {importlib.metadata.version('onnxslim')}")


def _load(path: Path) -> onnx.ModelProto:
    graph = onnx.load(str(path), load_external_data=False)
    outside = {e.value for t in graph.graph.initializer for e in t.external_data if e.key == "location"}
    size = path.stat().st_size + sum((path.parent / name).stat().st_size for name in outside)
    if size > _LARGEST:
        raise Unsuitable(f"a model of {size >> 20} MiB is too large to simplify; the limit is {_LARGEST >> 20} MiB")
    return onnx.load(str(path))

"""A minimal model, y = Relu(x), for testing what a runtime accepts. This module encodes the model itself, because
backends must not import the onnx package.

Format: onnx.proto, protobuf's wire encoding.
"""

from __future__ import annotations

from edged.decoding import varint

_VARINT, _BYTES = 0, 2
_FLOAT = 1  # onnx.TensorProto.FLOAT
NAMES = ("x", "y")
SHAPE = (1, 4)


def relu(opset: int, ir_version: int) -> bytes:
    """Return the serialised model, x and y FP32[1, 4], with this opset of the default domain and this IR version."""
    node = _field(1, NAMES[0]) + _field(2, NAMES[1]) + _field(3, "relu") + _field(4, "Relu")
    graph = _field(1, node) + _field(2, "graph") + _field(11, _tensor(NAMES[0])) + _field(12, _tensor(NAMES[1]))
    return _field(1, ir_version) + _field(7, graph) + _field(8, _field(1, "") + _field(2, opset))


def importing(model: bytes, domain: str, version: int) -> bytes:
    """Return the model with an additional opset import of a domain that the graph does not use."""
    return model + _field(8, _field(1, domain) + _field(2, version))


def _tensor(name: str) -> bytes:
    shape = b"".join(_field(1, _field(1, size)) for size in SHAPE)
    return _field(1, name) + _field(2, _field(1, _field(1, _FLOAT) + _field(2, shape)))


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | _BYTES) + varint(len(data)) + data

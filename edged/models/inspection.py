"""The result of parsing an ONNX file, as plain data: the child that parses sends it to the daemon."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from edged.backends.contract import Signature
from edged.models.finding import Category, Finding, Stage
from edged.tensors import TensorSpec


class Footprint(msgspec.Struct, frozen=True):
    """Memory in bytes: all weights, and the largest tensor of known size, which `tensor` names."""

    weights: int = 0
    largest: int = 0
    tensor: str = ""

    @property
    def least(self) -> int:
        """The least memory that an inference needs."""
        return self.weights + self.largest


_LARGEST = (1 << 31) - 1  # bytes; the limit of a protobuf message
_QUANTISED = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))


def arithmetic(operators: Iterable[str], halves: bool) -> str:
    """Return the precision of a graph with these operators, with or without 16-bit weights (`halves`)."""
    return "int8" if not _QUANTISED.isdisjoint(operators) else "fp16" if halves else "fp32"


class ExternalFile(msgspec.Struct, frozen=True):
    """A file with weights of the model; the path is relative to the model's folder.

    `problem` says why it cannot be used; `size` is then 0 if unknown.
    """

    path: str
    size: int
    problem: str = ""


class Inspection(msgspec.Struct, frozen=True):
    """The content of an ONNX file. Sizes in bytes; operator names have their domain unless it is ONNX's own.

    `finding` says why no runtime can serve it, if so; then `digest` is empty if external data is incomplete, and
    datatypes may be ONNX's own names. `suspicion` is a possible problem of operators, types or shapes, which a runtime
    decides. `nodes` has the first node of each operator, without local functions. `footprint` is the least memory that
    it needs. `optional` are inputs with a default, an initializer of the same name, which a request may set; they are
    not in the signature.
    """

    digest: str
    graph_digest: str
    size: int
    ir_version: int
    opsets: dict[str, int]
    producer: str
    metadata: dict[str, str]
    signature: Signature
    operators: dict[str, int]
    subgraphs: int
    functions: int
    parameters: int
    external: tuple[ExternalFile, ...]
    finding: Finding | None = None
    suspicion: Finding | None = None
    nodes: dict[str, str] = {}
    optional: tuple[TensorSpec, ...] = ()
    footprint: Footprint = Footprint()
    halves: bool = False  # some of its weights are FP16 or BF16
    heads: dict[str, str] = {}  # the operator that makes each output

    @property
    def arithmetic(self) -> str:
        """The precision of the graph as exported."""
        return arithmetic(self.operators, self.halves)

    @property
    def refusal(self) -> str:
        """The finding in one line; empty without one."""
        return self.finding.line() if self.finding is not None else ""


def too_large(name: str, size: int) -> Finding | None:
    """Refuse a model file by its size in bytes, before it is read; None if it is acceptable."""
    if size <= _LARGEST:
        return None
    message = f"{name} has {size} bytes, over protobuf's limit of {_LARGEST}"
    return Finding(Stage.FILE, Category.TOO_LARGE, message, "export it with its weights as external data")

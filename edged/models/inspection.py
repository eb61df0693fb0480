"""The result of parsing an ONNX file, as plain data. A child process parses the file and sends the result to the
daemon."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from edged.backends.contract import Signature
from edged.models.finding import Category, Finding, Stage
from edged.tensors import TensorSpec


class Footprint(msgspec.Struct, frozen=True):
    """Memory in bytes: all weights, and the largest tensor of known size. `tensor` is the name of that tensor."""

    weights: int = 0
    largest: int = 0
    tensor: str = ""

    @property
    def least(self) -> int:
        """A lower bound of the memory that an inference needs."""
        return self.weights + self.largest


_LARGEST = (1 << 31) - 1  # bytes; the limit of a protobuf message
_QUANTISED = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))


def arithmetic(operators: Iterable[str], halves: bool) -> str:
    """Return the precision in which a graph computes. `halves` says whether the graph has 16-bit weights."""
    return "int8" if not _QUANTISED.isdisjoint(operators) else "fp16" if halves else "fp32"


class ExternalFile(msgspec.Struct, frozen=True):
    """A file with weights of the model. `path` is relative to the model's folder. `size` is in bytes, 0 if unknown.
    `problem` says why the file cannot be used, or is empty."""

    path: str
    size: int
    problem: str = ""


class Inspection(msgspec.Struct, frozen=True):
    """The content of an ONNX file. Sizes are in bytes. Operator names include the domain, except for ONNX's own domain.

    `finding` says why no runtime can serve the model; None if no reason is known. With a finding, `digest` is empty if
    external data is incomplete, and datatypes may be ONNX's own names. `suspicion` is a possible problem of operators,
    types or shapes. It is only a warning if the runtime accepts the model. `nodes` maps each operator, except local
    functions, to the first node that uses the operator. `optional` are inputs with a default, an initializer of the
    same name. A request may set these inputs, and the signature omits them.
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
    heads: dict[str, str] = {}  # maps each output to the operator that computes it

    @property
    def arithmetic(self) -> str:
        """The precision of the graph as exported."""
        return arithmetic(self.operators, self.halves)

    @property
    def refusal(self) -> str:
        """The finding in one line; empty without one."""
        return self.finding.line() if self.finding is not None else ""


def too_large(name: str, size: int) -> Finding | None:
    """Return the finding for a model file that is too large to be read; None if its size in bytes is acceptable."""
    if size <= _LARGEST:
        return None
    message = f"{name} has {size} bytes, over protobuf's limit of {_LARGEST}"
    return Finding(Stage.FILE, Category.TOO_LARGE, message, "export the model with its weights as external data")

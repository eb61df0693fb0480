"""What reading an ONNX file yields, as plain data: it crosses from the child that parses to the daemon that decides."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from edged.backends.contract import Signature
from edged.models.finding import Category, Finding, Stage
from edged.tensors import TensorSpec


class Footprint(msgspec.Struct, frozen=True):
    """Bytes: of all weights, and of the largest tensor of a size that is known, which `tensor` names."""

    weights: int = 0
    largest: int = 0
    tensor: str = ""

    @property
    def least(self) -> int:
        """What running it takes, at the very least."""
        return self.weights + self.largest


_LARGEST = (1 << 31) - 1  # bytes of a message of protobuf
_QUANTISED = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))


def arithmetic(operators: Iterable[str], halves: bool) -> str:
    """What a graph with such operators, and with weights of 16 bits or without, computes in."""
    return "int8" if not _QUANTISED.isdisjoint(operators) else "fp16" if halves else "fp32"


class ExternalFile(msgspec.Struct, frozen=True):
    """A file beside the model that holds some of its weights; the path is relative to the model's folder.

    `problem` says why it cannot be used, and `size` is 0 where it cannot be known then.
    """

    path: str
    size: int
    problem: str = ""


class Inspection(msgspec.Struct, frozen=True):
    """What an ONNX file holds. Sizes in bytes; operator names carry their domain when it is not ONNX's own.

    `finding` says why no runtime could be asked to serve it, None where one can. With one the rest is for people to
    read: `digest` is empty where external data is not whole, datatypes may be ONNX's own names. `suspicion` is what
    seems wrong with operators, types or shapes; a runtime has the last word. `nodes` names for each operator the first
    node that has it, without local functions. `footprint` is what it takes at least. `optional` are inputs with a
    default, an initializer of the same name, which a request may give; they are not in the signature.
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
        """The precision that the graph itself computes in, as it was written."""
        return arithmetic(self.operators, self.halves)

    @property
    def refusal(self) -> str:
        """The finding in one line; empty where there is none."""
        return self.finding.line() if self.finding is not None else ""


def too_large(name: str, size: int) -> Finding | None:
    """Why a model file of that size, in bytes, is refused before any of it is read."""
    if size <= _LARGEST:
        return None
    message = f"{name} has {size} bytes, and no message of protobuf has more than {_LARGEST}"
    return Finding(Stage.FILE, Category.TOO_LARGE, message, "export it with its weights as external data")

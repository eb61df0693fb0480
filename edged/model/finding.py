"""What may be wrong with a model: the stages it goes through before it is taken in, and the closed set of reasons why
it goes no further. Plain data; who finds what is in `edged.model` (the file) and `edged.build` (on the runtimes).

The names are for programs: they stay as they are once published (docs/admission.md explains each).
"""

from __future__ import annotations

import enum

import msgspec

from edged.errors import EdgedError, ModelRefused


class Stage(str, enum.Enum):
    """In their order."""

    FILE = "file"  # is it a regular file of a bearable size
    PARSE = "parse"  # is it ONNX
    GRAPH = "graph"  # cycles, dangling inputs, duplicates, types and shapes
    OPSET = "opset"  # opset and IR version, against each installed runtime
    OPERATORS = "operators"  # operators and domains, against each installed runtime
    EXTERNAL_DATA = "external_data"  # present, inside the model's folder, long enough
    MEMORY = "memory"  # what it takes at least, against the box
    SESSION = "session"  # opened in a child
    INFERENCE = "inference"  # run in a child with the golden inputs


class Category(str, enum.Enum):
    """Why a model goes no further."""

    # file
    MISSING = "missing"
    UNREADABLE = "unreadable"
    NOT_A_FILE = "not_a_file"  # FIFO, directory, device
    EMPTY = "empty"
    TOO_LARGE = "too_large"
    # parse
    NOT_ONNX = "not_onnx"  # an archive, a web page, a text, an LFS pointer
    DAMAGED = "damaged"  # truncated, bit rot
    TOO_DEEP = "too_deep"  # nested beyond reason
    # graph
    NO_GRAPH = "no_graph"  # no nodes, no outputs, no opsets
    CYCLE = "cycle"
    DANGLING = "dangling"  # a node reads what nothing makes
    DUPLICATE = "duplicate"  # two things of one name
    BAD_NAME = "bad_name"  # empty or not UTF-8
    TYPE_MISMATCH = "type_mismatch"
    SHAPE_MISMATCH = "shape_mismatch"
    UNSERVABLE_TYPE = "unservable_type"  # a sequence, a map, or elements that the protocol cannot carry
    INVALID_NODE = "invalid_node"  # attributes or arity that its operator does not allow
    # opset
    OPSET_TOO_NEW = "opset_too_new"
    OPSET_TOO_OLD = "opset_too_old"
    IR_TOO_NEW = "ir_too_new"
    # operators
    UNKNOWN_DOMAIN = "unknown_domain"
    UNKNOWN_OPERATOR = "unknown_operator"
    NOT_IMPLEMENTED = "not_implemented"  # known to ONNX, but not to a runtime here for these types
    # external data
    EXTERNAL_MISSING = "external_missing"
    EXTERNAL_OUTSIDE = "external_outside"  # absolute, upwards, or through a link
    EXTERNAL_NOT_A_FILE = "external_not_a_file"
    EXTERNAL_TRUNCATED = "external_truncated"
    EXTERNAL_DAMAGED = "external_damaged"  # an offset or length that cannot be
    # memory, session, inference
    TOO_MUCH_MEMORY = "too_much_memory"
    REFUSED = "refused"  # by the runtime, in its own words
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    FAILED = "failed"  # every golden input
    NOT_FINITE = "not_finite"  # NaN or infinity for ordinary inputs: told, and the model is served
    # not the model's fault
    NO_RUNTIME = "no_runtime"
    SETTINGS = "settings"


class Finding(msgspec.Struct, frozen=True):
    """One thing found wrong. `message` says in one line what, `remedy` what to do about it; `node` names the node or
    tensor concerned, empty where it is none's."""

    stage: Stage
    category: Category
    message: str
    remedy: str = ""
    node: str = ""

    def line(self) -> str:
        """For people: what, and what to do."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message

    def refusal(self, prefix: str = "") -> ModelRefused:
        """As an error, which carries it."""
        fields = {name: str(value) for name, value in msgspec.to_builtins(self).items()}
        return ModelRefused(prefix + self.line(), fields)

    @classmethod
    def of(cls, error: EdgedError) -> Finding | None:
        """The finding that an error carries; None where it carries none."""
        if not isinstance(error, ModelRefused) or not error.finding:
            return None
        return msgspec.convert(error.finding, cls)

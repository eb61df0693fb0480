"""What may be wrong with a model: the stages it goes through before it is taken in, and the closed set of reasons why
it goes no further. Plain data; who finds what is in `edged.jobs`.

The names are for programs: they stay as they are once published (docs/admission.md explains each).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from edged.decoding import ready
from edged.errors import ConfigError, EdgedError, ModelRefused


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
    EXTERNAL_DAMAGED = "external_damaged"  # an offset or length that cannot be; another file than the checksum is of
    # memory, session, inference
    TOO_MUCH_MEMORY = "too_much_memory"
    REFUSED = "refused"  # by the runtime, in its own words
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    FAILED = "failed"  # every golden input
    NOT_FINITE = "not_finite"  # NaN or infinity for ordinary inputs: told, and the model is served
    IMPLAUSIBLE = "implausible"  # what the family that is set reads from it is no detections: told, and it is served
    # not the model's fault
    NO_RUNTIME = "no_runtime"
    SETTINGS = "settings"


_EXPORT = "export the model again"
_ELSEWHERE = "export it with operators of ONNX's own"
# What to do where whoever found it knows nothing better.
REMEDIES: Mapping[Category, str] = {
    Category.MISSING: "name the .onnx file itself",
    Category.UNREADABLE: "let edged's user read it",
    Category.NOT_A_FILE: "name the .onnx file itself",
    Category.EMPTY: "copy the model again",
    Category.TOO_LARGE: "export it with its weights as external data, and without functions inside functions",
    Category.NOT_ONNX: "name the .onnx file itself, or export the model to ONNX",
    Category.DAMAGED: "copy it again",
    Category.TOO_DEEP: "export it with fewer loops and branches inside one another",
    Category.NO_GRAPH: "name the .onnx file itself, or export the model again",
    Category.CYCLE: _EXPORT,
    Category.DANGLING: _EXPORT,
    Category.DUPLICATE: _EXPORT,
    Category.BAD_NAME: _EXPORT,
    Category.TYPE_MISMATCH: _EXPORT,
    Category.SHAPE_MISMATCH: _EXPORT,
    Category.UNSERVABLE_TYPE: "cast it inside the model, or leave it out",
    Category.INVALID_NODE: _EXPORT,
    Category.OPSET_TOO_NEW: "export it with an older opset",
    Category.OPSET_TOO_OLD: "export it with a newer opset",
    Category.IR_TOO_NEW: "write it with an older ir_version",
    Category.UNKNOWN_DOMAIN: _ELSEWHERE,
    Category.UNKNOWN_OPERATOR: _ELSEWHERE,
    Category.NOT_IMPLEMENTED: "cast to FP32 around it, or export it with another opset",
    Category.EXTERNAL_MISSING: "put it beside the model",
    Category.EXTERNAL_OUTSIDE: "export it beside the model",
    Category.EXTERNAL_NOT_A_FILE: "copy the file itself beside the model",
    Category.EXTERNAL_TRUNCATED: "copy it again",
    Category.EXTERNAL_DAMAGED: _EXPORT,
    Category.TOO_MUCH_MEMORY: "export it with smaller dimensions, or serve it on a box with more memory",
    Category.REFUSED: "export it with another opset or a newer exporter, or see whether a newer runtime takes it",
    Category.CRASHED: "export it with another opset, or see whether a newer runtime takes it",
    Category.TIMED_OUT: "try it again when the box has less to do",
    Category.FAILED: "give it inputs that it answers: --samples INPUTS.npz",
    Category.NOT_FINITE: "see whether it is meant to: divisions by zero, logarithms, overflow in FP16",
    Category.IMPLAUSIBLE: "set another family, or family=raw",
    Category.NO_RUNTIME: "install onnxruntime",
    Category.SETTINGS: "give other settings: --set, edged.toml or config.pbtxt",
}


class Finding(msgspec.Struct, frozen=True):
    """One thing found wrong. `message` says in one line what, `remedy` what to do about it, which where none is given
    is the category's; `node` names the node or tensor concerned, empty where it is none's."""

    stage: Stage
    category: Category
    message: str
    remedy: str = ""
    node: str = ""

    def __post_init__(self) -> None:
        if not self.remedy:
            msgspec.structs.force_setattr(self, "remedy", REMEDIES[self.category])

    @property
    def has_own_remedy(self) -> bool:
        """Whether its remedy is about more than its category."""
        return self.remedy != REMEDIES[self.category]

    def line(self) -> str:
        """For people: what, and what to do."""
        return f"{self.message}; {self.remedy}"

    def refusal(self, prefix: str = "") -> ModelRefused:
        """As an error, which carries it."""
        fields = {name: str(value) for name, value in msgspec.to_builtins(self).items()}
        return ModelRefused(prefix + self.line(), fields)

    @classmethod
    def of(cls, error: EdgedError) -> Finding | None:
        """The finding that an error carries, or amounts to; None where it says nothing about a model."""
        if isinstance(error, ConfigError):
            return cls(Stage.FILE, Category.SETTINGS, str(error))
        if not isinstance(error, ModelRefused) or not error.finding:
            return None
        return msgspec.convert(error.finding, ready(cls))


class Reason(msgspec.Struct, frozen=True):
    """A finding as programs sort by it; both are empty where there is none."""

    category: str = ""
    stage: str = ""

    @classmethod
    def of(cls, error: EdgedError | None) -> Reason:
        """Of what a model is refused with."""
        finding = Finding.of(error) if error is not None else None
        return cls(finding.category.value, finding.stage.value) if finding is not None else cls()

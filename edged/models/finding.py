"""Findings of admission: the stages of checks that a model passes, and the closed set of categories why it is refused.

Plain data; the checks are in `edged.jobs`. The names are part of the API: they do not change (docs/admission.md).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from edged.decoding import ready
from edged.errors import ConfigError, EdgedError, ModelRefused


class Stage(str, enum.Enum):
    """The stages of admission, in order."""

    FILE = "file"  # a regular file of an acceptable size
    PARSE = "parse"  # valid ONNX
    GRAPH = "graph"  # cycles, dangling inputs, duplicates, types and shapes
    OPSET = "opset"  # opset and IR version, against each installed runtime
    OPERATORS = "operators"  # operators and domains, against each installed runtime
    EXTERNAL_DATA = "external_data"  # present, inside the model's folder, long enough
    MEMORY = "memory"  # the least that it needs, against the box
    SESSION = "session"  # opened in a child
    INFERENCE = "inference"  # run in a child with the golden inputs


class Category(str, enum.Enum):
    """Why a model is refused."""

    # file
    MISSING = "missing"
    UNREADABLE = "unreadable"
    NOT_A_FILE = "not_a_file"  # FIFO, directory, device
    EMPTY = "empty"
    TOO_LARGE = "too_large"
    # parse
    NOT_ONNX = "not_onnx"  # an archive, a web page, a text, an LFS pointer
    DAMAGED = "damaged"  # truncated, bit rot
    TOO_DEEP = "too_deep"  # nested too deeply
    # graph
    NO_GRAPH = "no_graph"  # no nodes, no outputs, no opsets
    CYCLE = "cycle"
    DANGLING = "dangling"  # a node reads a tensor that no node writes
    DUPLICATE = "duplicate"  # two items of one name
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
    EXTERNAL_DAMAGED = "external_damaged"  # an invalid offset or length, or a wrong checksum
    # memory, session, inference
    TOO_MUCH_MEMORY = "too_much_memory"
    REFUSED = "refused"  # by the runtime
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    FAILED = "failed"  # for every golden input
    NOT_FINITE = "not_finite"  # NaN or infinity for ordinary inputs: reported, and the model is served
    IMPLAUSIBLE = (
        "implausible"  # not detections, as decoded by the family that is set: reported, and the model is served
    )
    # not the model's fault
    NO_RUNTIME = "no_runtime"
    SETTINGS = "settings"


_EXPORT = "export the model again"
_ELSEWHERE = "export it with operators of ONNX's own"
# The default remedy of each category.
REMEDIES: Mapping[Category, str] = {
    Category.MISSING: "name the .onnx file itself",
    Category.UNREADABLE: "let edged's user read it",
    Category.NOT_A_FILE: "name the .onnx file itself",
    Category.EMPTY: "copy the model again",
    Category.TOO_LARGE: "export it with its weights as external data, and without functions inside functions",
    Category.NOT_ONNX: "name the .onnx file itself, or export the model to ONNX",
    Category.DAMAGED: "copy it again",
    Category.TOO_DEEP: "export it with fewer nested loops and branches",
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
    Category.EXTERNAL_MISSING: "copy it into the model's folder",
    Category.EXTERNAL_OUTSIDE: "export it into the model's folder",
    Category.EXTERNAL_NOT_A_FILE: "copy the file itself into the model's folder",
    Category.EXTERNAL_TRUNCATED: "copy it again",
    Category.EXTERNAL_DAMAGED: _EXPORT,
    Category.TOO_MUCH_MEMORY: "export it with smaller dimensions, or serve it on a box with more memory",
    Category.REFUSED: "export it with another opset or a newer exporter, or see whether a newer runtime takes it",
    Category.CRASHED: "export it with another opset, or see whether a newer runtime takes it",
    Category.TIMED_OUT: "try again when the box is less busy",
    Category.FAILED: "give it inputs that it answers: --samples INPUTS.npz",
    Category.NOT_FINITE: "check for divisions by zero, logarithms and overflow in FP16",
    Category.IMPLAUSIBLE: "set another family, or family=raw",
    Category.NO_RUNTIME: "install onnxruntime",
    Category.SETTINGS: "change the settings: --set, edged.toml or config.pbtxt",
}


class Finding(msgspec.Struct, frozen=True):
    """One problem: `message` describes it in one line, `remedy` how to fix it (default: the category's), `node` names
    the node or tensor, if any."""

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
        """Whether the remedy is not the default of its category."""
        return self.remedy != REMEDIES[self.category]

    def line(self) -> str:
        """Message and remedy in one line."""
        return f"{self.message}; {self.remedy}"

    def refusal(self, prefix: str = "") -> ModelRefused:
        """The finding as an error that carries it."""
        fields = {name: str(value) for name, value in msgspec.to_builtins(self).items()}
        return ModelRefused(prefix + self.line(), fields)

    @classmethod
    def of(cls, error: EdgedError) -> Finding | None:
        """Return the finding that an error carries or implies; None if it is not about a model."""
        if isinstance(error, ConfigError):
            return cls(Stage.FILE, Category.SETTINGS, str(error))
        if not isinstance(error, ModelRefused) or not error.finding:
            return None
        return msgspec.convert(error.finding, ready(cls))


class Reason(msgspec.Struct, frozen=True):
    """Category and stage of a finding; empty without one."""

    category: str = ""
    stage: str = ""

    @classmethod
    def of(cls, error: EdgedError | None) -> Reason:
        """Return the reason of a refusal."""
        finding = Finding.of(error) if error is not None else None
        return cls(finding.category.value, finding.stage.value) if finding is not None else cls()

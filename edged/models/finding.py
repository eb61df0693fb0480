"""Findings of admission, as plain data: the stages of admission, and all reasons to refuse a model.

`edged.jobs` checks a model before it is served. Clients receive the error code MODEL_REJECTED and the category. The
names of stages and categories are part of the API and never change (docs/admission.md).
"""

from __future__ import annotations

import enum

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
    MEMORY = "memory"  # a lower bound of the model's memory, against the box's memory
    SESSION = "session"  # a child process opens the model
    INFERENCE = "inference"  # a child process runs the model on golden inputs


_EXPORT = "export the model again"
_ELSEWHERE = "export the model with standard ONNX operators"


class Category(str, enum.Enum):
    """The reason why a model is refused, with a default remedy for findings that set none. Remedies for operators are
    in `jobs/trial.py`."""

    _value_: str
    remedy: str

    def __new__(cls, value: str, remedy: str) -> Category:
        category = str.__new__(cls, value)
        category._value_, category.remedy = value, remedy
        return category

    # file
    MISSING = "missing", "check the path, and name the .onnx file itself"
    UNREADABLE = "unreadable", "give edged's user read permission for the file"
    NOT_A_FILE = "not_a_file", "name the .onnx file itself"  # FIFO, directory, device
    EMPTY = "empty", "copy the model again"
    TOO_LARGE = "too_large", "export the model with its weights as external data, and without nested functions"
    # parse
    # An archive, a web page, a text, an LFS pointer.
    NOT_ONNX = "not_onnx", "name the .onnx file itself, or export the model to ONNX"
    DAMAGED = "damaged", "copy the file again"  # truncated, bit rot
    TOO_DEEP = "too_deep", "export the model with fewer nested loops and branches"
    # graph
    NO_GRAPH = "no_graph", "name the .onnx file itself, or export the model again"  # no nodes, no outputs, no opsets
    CYCLE = "cycle", _EXPORT
    DANGLING = "dangling", _EXPORT  # a node reads a tensor that no node writes
    DUPLICATE = "duplicate", _EXPORT  # two items have the same name
    BAD_NAME = "bad_name", _EXPORT  # empty or not UTF-8
    TYPE_MISMATCH = "type_mismatch", _EXPORT
    SHAPE_MISMATCH = "shape_mismatch", _EXPORT
    # A sequence, a map, or elements that the protocol cannot carry.
    UNSERVABLE_TYPE = "unservable_type", "cast the tensor inside the model, or leave it out"
    INVALID_NODE = "invalid_node", _EXPORT  # attributes or arity that its operator does not allow
    # opset
    OPSET_TOO_NEW = "opset_too_new", "export the model with an older opset"
    OPSET_TOO_OLD = "opset_too_old", "export the model with a newer opset"
    IR_TOO_NEW = "ir_too_new", "write the model with an older ir_version"
    # operators
    UNKNOWN_DOMAIN = "unknown_domain", _ELSEWHERE
    UNKNOWN_OPERATOR = "unknown_operator", _ELSEWHERE
    # ONNX has the operator, but no runtime on this box has it for these types.
    NOT_IMPLEMENTED = "not_implemented", "cast to FP32 around the operator, or export the model with another opset"
    # external data
    EXTERNAL_MISSING = "external_missing", "copy the file into the model's folder"
    # An absolute path, a path with "..", or a symbolic link.
    EXTERNAL_OUTSIDE = "external_outside", "export the weights into the model's folder"
    EXTERNAL_NOT_A_FILE = "external_not_a_file", "copy the file itself into the model's folder"
    EXTERNAL_TRUNCATED = "external_truncated", "copy the file again"
    EXTERNAL_DAMAGED = "external_damaged", _EXPORT  # an invalid offset or length, or a wrong checksum
    # memory, session, inference
    TOO_MUCH_MEMORY = "too_much_memory", "export the model with smaller dimensions, or use a box with more memory"
    REFUSED = "refused", "export the model with another opset or a newer exporter, or install a newer runtime"
    CRASHED = "crashed", "export the model with another opset, or install a newer runtime"
    TIMED_OUT = "timed_out", "try again when the box is less busy"
    FAILED = "failed", "give inputs that the model accepts: --samples INPUTS.npz"  # it fails with every golden input
    # A warning, the model is served: NaN or infinity for ordinary inputs.
    NOT_FINITE = "not_finite", "check the model for divisions by zero, logarithms and overflow in FP16"
    # A warning, the model is served: the outputs do not look like detections of the family that is set.
    IMPLAUSIBLE = "implausible", "change the setting 'family', or set family=raw"
    # not the model's fault
    NO_RUNTIME = "no_runtime", "install onnxruntime"
    SETTINGS = "settings", "change the settings: --set, edged.toml or config.pbtxt"


class Finding(msgspec.Struct, frozen=True):
    """One problem: `message` describes the problem in one line, `remedy` says how to fix it (default: the category's
    remedy), `node` names the node or tensor, if any."""

    stage: Stage
    category: Category
    message: str
    remedy: str = ""
    node: str = ""

    def __post_init__(self) -> None:
        if not self.remedy:
            msgspec.structs.force_setattr(self, "remedy", self.category.remedy)

    @property
    def has_own_remedy(self) -> bool:
        """Whether the remedy is not the default of its category."""
        return self.remedy != self.category.remedy

    def line(self) -> str:
        """Message and remedy in one line."""
        return f"{self.message}; {self.remedy}"

    def refusal(self, prefix: str = "") -> ModelRefused:
        """Return the error to raise for this finding. The error carries the finding's fields."""
        fields = {name: str(value) for name, value in msgspec.to_builtins(self).items()}
        return ModelRefused(prefix + self.line(), fields)

    @classmethod
    def of(cls, error: EdgedError) -> Finding | None:
        """Return the finding of a ModelRefused, or a finding about settings for a ConfigError; otherwise None."""
        if isinstance(error, ConfigError):
            return cls(Stage.FILE, Category.SETTINGS, str(error))
        if not isinstance(error, ModelRefused) or not error.finding:
            return None
        return msgspec.convert(error.finding, ready(cls))


class Reason(msgspec.Struct, frozen=True):
    """Category and stage of a finding; empty without a finding."""

    category: str = ""
    stage: str = ""

    @classmethod
    def of(cls, error: EdgedError | None) -> Reason:
        """Return the category and stage of a refusal; empty for any other error."""
        finding = Finding.of(error) if error is not None else None
        return cls(finding.category.value, finding.stage.value) if finding is not None else cls()

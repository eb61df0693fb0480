"""Repairs of a model when it is added: the requested steps, and the record of the steps taken, in the model's folder.

A repair writes a new file with another digest. The record names the original file, and says how the answers of both
files were compared. The original is not kept, because edge boxes have small disks.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path

import msgspec

from edged.decoding import ready
from edged.errors import ConfigError
from edged.files import read_inside, status_inside

FILE = "repair.json"  # in the folder of its version
_FORMAT = 1
_LARGEST = 1 << 20  # bytes of a record


class Step(str, enum.Enum):
    """Steps of a repair, in this order."""

    OPSET = "opset"  # convert to an older opset
    IR = "ir"  # set an older version of the file format
    DIMS = "dims"  # declare the batch dimension as the graph supports it: open or fixed
    SIZES = "sizes"  # open the picture size, if the declared one is only the exporter's example
    SIMPLIFY = "simplify"  # fold constants, remove nodes without effect


_NUMBERED = {Step.OPSET: (7, 1000), Step.IR: (4, 1000)}
_NEEDED = (Step.OPSET, Step.IR, Step.DIMS)


class RepairOptions(msgspec.Struct, frozen=True):
    """The requested repairs. `needed` requests the steps without which the model cannot be served. `chosen` are the
    steps that the user requested. `opset` and `ir` are the versions to write; 0 stands for the highest version that the
    installed runtimes support."""

    needed: bool = False
    chosen: tuple[Step, ...] = ()
    opset: int = 0
    ir: int = 0

    @classmethod
    def parse(cls, needed: bool, words: Iterable[str]) -> RepairOptions:
        """Parse `--convert` and the words of `--convert-step`: STEP, or STEP=VERSION for opset and ir.

        Raises ConfigError for an unknown step, a step given twice, or an invalid version.
        """
        chosen: list[Step] = []
        versions: dict[Step, int] = {}
        for word in words:
            name, equals, value = word.strip().partition("=")
            try:
                step = Step(name)
            except ValueError:
                known = ", ".join(each.value for each in Step)
                raise ConfigError(f"unknown repair step {name[:40]!r}; choose from {known}") from None
            if step in chosen:
                raise ConfigError(f"repair step {step.value} is given twice; give it once")
            chosen.append(step)
            if equals:
                versions[step] = _version(step, value)
        ordered = tuple(step for step in Step if step in chosen)
        return cls(needed, ordered, versions.get(Step.OPSET, 0), versions.get(Step.IR, 0))

    @property
    def is_any(self) -> bool:
        return self.needed or bool(self.chosen)

    @property
    def words(self) -> tuple[str, ...]:
        """The chosen steps as words that `parse` accepts."""
        return tuple(f"{s.value}={version}" if (version := self.version(s)) else s.value for s in self.chosen)

    def wants(self, step: Step) -> bool:
        """Whether a step is requested. A requested step is taken only if it applies to the model."""
        return step in self.chosen or (self.needed and step in _NEEDED)

    def version(self, step: Step) -> int:
        """The version given with a step; 0 without one."""
        return {Step.OPSET: self.opset, Step.IR: self.ir}.get(step, 0)

    def insists(self, step: Step) -> bool:
        """Whether the user chose a step. If a chosen step fails, the repair fails. Other steps are left out if they
        fail."""
        return step in self.chosen


def _version(step: Step, text: str) -> int:
    if step not in _NUMBERED:
        raise ConfigError(f"repair step {step.value} takes no value; write {step.value} alone")
    low, high = _NUMBERED[step]
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and low <= int(text) <= high):
        raise ConfigError(f"repair step {step.value}={text[:20]!r}: give a version from {low} on, such as 21")
    return int(text)


class Proof(msgspec.Struct, frozen=True):
    """The evidence that a repaired model answers as its original does.

    `by` is the runtime that ran the original ("onnxruntime 1.31.1", "onnx.reference 1.23.2"). `by` is "definitions" if
    no runtime here can run the original, but all its operators have the same definition in both opsets. `questions` is
    the number of inputs whose answers were compared, `figures` are the largest differences, as in an engine's verdict.
    `detail` describes the evidence in one line.
    """

    by: str
    detail: str
    questions: int = 0
    figures: dict[str, float] = {}


class Done(msgspec.Struct, frozen=True):
    """One step that was taken. `before` and `after` are short texts, such as the opset before and after the step.
    `details` has more lines."""

    step: str  # a value of `Step`, or a step of a later version of edged
    before: str
    after: str
    proof: Proof
    details: tuple[str, ...] = ()

    def line(self) -> str:
        """One line for people."""
        return f"{self.step}: {self.before} -> {self.after} ({self.proof.detail})"


class Record(msgspec.Struct, frozen=True):
    """The repair of a model that was added. `steps` is empty if all steps were left out. Digests are hexadecimal sha256
    and include external data."""

    digest: str  # of the repaired model
    original: str  # of the original
    source: str  # path of the original, as the user gave it
    made: str  # when, ISO 8601, UTC
    steps: tuple[Done, ...]
    left_out: tuple[str, ...] = ()  # a line for each requested step that was not taken, and why
    edged: str = ""  # version of edged
    format: int = _FORMAT

    @property
    def is_worth_keeping(self) -> bool:
        """Whether the record is not empty."""
        return bool(self.steps or self.left_out)

    def lines(self) -> tuple[str, ...]:
        """Return lines for people: the origin of the model, each step taken, and each step left out."""
        origin = f"from {self.source}, digest {self.original[:12]}, on {self.made[:10]}"
        left_out = (f"left out: {line}" for line in self.left_out)
        return (origin, *(done.line() for done in self.steps), *left_out)


def short(record: Record) -> str:
    """Return the steps that were taken, in one line."""
    return ", ".join(f"{done.step} {done.before} -> {done.after}" for done in record.steps)


def write(record: Record) -> bytes:
    """Encode a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def read(path: Path) -> Record | None:
    """Read a record; None if the file is missing or invalid. A record only informs people: no model depends on it."""
    try:
        if status_inside(path.parent, path.name).st_size > _LARGEST:
            return None
        record = msgspec.json.decode(read_inside(path.parent, path.name), type=ready(Record))
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return record if record.format == _FORMAT else None

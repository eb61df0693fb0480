"""Repairs of a model that is taken in: which are wished for, and the record of what was done, kept beside the model.

A model that was repaired is another file: it has a digest of its own, by which engines are made. The record says which
file it comes from and how it is known to answer alike; the original is not kept, because edge boxes have small disks.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path

import msgspec

from edged.decoding import ready
from edged.errors import ConfigError
from edged.files import read_inside, status_inside

FILE = "repair.json"  # in the folder of the version that it is about
_FORMAT = 1
_LARGEST = 1 << 20  # bytes of a record; a larger file is none


class Step(str, enum.Enum):
    """What can be done, in this order."""

    OPSET = "opset"  # written in an older version of ONNX's operators
    IR = "ir"  # stamped with an older version of the file format
    DIMS = "dims"  # inputs declared as what they take: a batch of any size, or of one size only
    SIZES = "sizes"  # pictures of any size, where the declared one is just the exporter's example
    SIMPLIFY = "simplify"  # constants folded, nodes that do nothing left out


_NUMBERED = {Step.OPSET: (7, 1000), Step.IR: (4, 1000)}
_NEEDED = (Step.OPSET, Step.IR, Step.DIMS)


class Wish(msgspec.Struct, frozen=True):
    """Which repairs are to be made. `needed`: those without which the model cannot be served as it is meant; `chosen`:
    these in any case; `opset` and `ir`: the versions to write, 0 for the highest that the runtimes here take."""

    needed: bool = False
    chosen: tuple[Step, ...] = ()
    opset: int = 0
    ir: int = 0

    @classmethod
    def parse(cls, needed: bool, words: Iterable[str]) -> Wish:
        """From `--convert` and the words of `--convert-step`: STEP, or STEP=VERSION for opset and ir. ConfigError."""
        chosen: list[Step] = []
        versions: dict[Step, int] = {}
        for word in words:
            name, equals, value = word.strip().partition("=")
            try:
                step = Step(name)
            except ValueError:
                known = ", ".join(each.value for each in Step)
                raise ConfigError(f"there is no repair {name[:40]!r}; choose from {known}") from None
            if step in chosen:
                raise ConfigError(f"repair {step.value} is named twice; name it once")
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
        """What `parse` understands."""
        return tuple(f"{s.value}={version}" if (version := self.version(s)) else s.value for s in self.chosen)

    def wants(self, step: Step) -> bool:
        """Whether a step is to be made where it applies."""
        return step in self.chosen or (self.needed and step in _NEEDED)

    def version(self, step: Step) -> int:
        """The version that was named with a step; 0 where none was."""
        return {Step.OPSET: self.opset, Step.IR: self.ir}.get(step, 0)

    def insists(self, step: Step) -> bool:
        """Whether it was named: one that cannot be made is then an error, not left out."""
        return step in self.chosen


def _version(step: Step, text: str) -> int:
    if step not in _NUMBERED:
        raise ConfigError(f"repair {step.value} takes no value; write {step.value} alone")
    low, high = _NUMBERED[step]
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and low <= int(text) <= high):
        raise ConfigError(f"repair {step.value}={text[:20]!r}: give a version from {low} on, such as {step.value}=21")
    return int(text)


class Proof(msgspec.Struct, frozen=True):
    """How it is known that a repaired model answers as its original does.

    `by` is what answered for the original ("onnxruntime 1.31.1", "onnx.reference 1.23.2"), or "definitions" where
    nothing here can run it and every operator it uses is defined alike in both versions. `questions` is how many were
    asked, `figures` how far the answers were apart at most, as an engine's verdict has them. `detail` is one line.
    """

    by: str
    detail: str
    questions: int = 0
    figures: dict[str, float] = {}


class Done(msgspec.Struct, frozen=True):
    """One step that was made: `before` and `after` are what it changed, in a word each, `details` a line for each thing
    that is not plain from them."""

    step: str  # one of `Step`, or of a later edged
    before: str
    after: str
    proof: Proof
    details: tuple[str, ...] = ()

    def line(self) -> str:
        """For people."""
        return f"{self.step}: {self.before} -> {self.after} ({self.proof.detail})"


class Record(msgspec.Struct, frozen=True):
    """What was done to a model before it was taken in; nothing, where only `left_out` says something. Digests
    are sha256 with external data, hexadecimal."""

    digest: str  # of the model that came out
    original: str  # of the model that was given
    source: str  # where that one was, as the user named it
    made: str  # when, ISO 8601, UTC
    steps: tuple[Done, ...]
    left_out: tuple[str, ...] = ()  # a line each: steps that were wished for and not made, and what else could be done
    edged: str = ""  # version that did it
    format: int = _FORMAT

    @property
    def is_worth_keeping(self) -> bool:
        """Whether it says anything."""
        return bool(self.steps or self.left_out)

    def lines(self) -> tuple[str, ...]:
        """For people: where it comes from, and each step."""
        origin = f"from {self.source}, digest {self.original[:12]}, on {self.made[:10]}"
        left_out = (f"left out: {line}" for line in self.left_out)
        return (origin, *(done.line() for done in self.steps), *left_out)


def short(record: Record) -> str:
    """The steps in a line."""
    return ", ".join(f"{done.step} {done.before} -> {done.after}" for done in record.steps)


def write(record: Record) -> bytes:
    """JSON, a field a line."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def read(path: Path) -> Record | None:
    """The record in a file; None where there is none or it is not one: it is for people, and no model depends on it."""
    try:
        if status_inside(path.parent, path.name).st_size > _LARGEST:
            return None
        record = msgspec.json.decode(read_inside(path.parent, path.name), type=ready(Record))
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return record if record.format == _FORMAT else None

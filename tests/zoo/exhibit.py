"""A model of the zoo, how it is made, and its expected outcome; and a hall, which collects models of one kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import onnx

from edged.models.finding import Category, Stage
from tests.zoo.parts import text

MODEL = "model.onnx"
_MODEL = re.compile(r"^ {4}(\w+): (.*)\n((?: {8}.*\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Ending:
    """The outcome of a model: served, or refused at a stage with a category."""

    stage: Stage | None = None
    category: Category | None = None

    def __str__(self) -> str:
        return f"{self.stage.value}/{self.category.value}" if self.stage and self.category else "served"


SERVED = Ending()


def refused(stage: Stage, *categories: Category) -> tuple[Ending, ...]:
    """Return refusals at a stage, with any of these categories."""
    return tuple(Ending(stage, category) for category in categories)


Proto: TypeAlias = Callable[[], onnx.ModelProto]
Writer: TypeAlias = Callable[[Path], None]  # gets the path of the model file, in an empty folder


@dataclass(frozen=True)
class Exhibit:
    """One model.

    how: what is special about it. endings: the possible outcomes; several only if several are right. warns: the
    expected warning if it is served. file: its name, if that matters. costly: takes more than a few seconds to make or
    examine, or much disk space. not_as_root: needs file permissions, which do not apply to root.
    """

    name: str
    how: str
    write: Writer
    endings: tuple[Ending, ...]
    warns: Category | None = None
    file: str = MODEL
    costly: bool = False
    not_as_root: bool = False

    @property
    def is_good(self) -> bool:
        return self.endings == (SERVED,)

    def make(self, folder: Path) -> Path:
        """Write it and its other files into an existing folder; return the path of the model."""
        path = folder / self.file
        self.write(path)
        return path


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


class Hall:
    """Collects exhibits. The name of a decorated function is the name of its exhibit; the docstring describes it."""

    def __init__(self) -> None:
        self.exhibits: list[Exhibit] = []

    def model(
        self, *endings: Ending, warns: Category | None = None, file: str = MODEL, costly: bool = False
    ) -> Callable[[Proto], Proto]:
        """Decorate a function that makes a model."""

        def collect(make: Proto) -> Proto:
            self.add(make.__name__, make.__doc__ or "", make, *endings, warns=warns, file=file, costly=costly)
            return make

        return collect

    def file(
        self, *endings: Ending, file: str = MODEL, costly: bool = False, not_as_root: bool = False
    ) -> Callable[[Writer], Writer]:
        """Decorate a function that writes the file itself."""

        def collect(write: Writer) -> Writer:
            how = " ".join((write.__doc__ or "").split())
            found = Exhibit(write.__name__, how, write, endings, None, file, costly, not_as_root)
            self.exhibits.append(found)
            return write

        return collect

    def content(self, name: str, how: str, content: bytes, endings: tuple[Ending, ...]) -> None:
        """Add a model file with these bytes."""
        self.exhibits.append(Exhibit(name, how, partial(_write, content), endings))

    def models(self, endings: tuple[Ending, ...], **models: tuple[str, onnx.ModelProto]) -> None:
        """Add models by name, each with its description, that all have the same outcomes."""
        for name, (how, proto) in models.items():
            self.content(name, how, proto.SerializeToString(), endings)

    def texts(self, endings: tuple[Ending, ...], models: str) -> None:
        """Add models that all have the same outcomes, as text: `NAME: HOW`, then, indented, the graph for `parts.text`.
        A line that begins with # is a comment."""
        for found in _MODEL.finditer(re.sub(r"(?m)^ *#.*\n", "", models)):
            name, how, graph = found.groups()
            self.content(name, how, text(graph).SerializeToString(), endings)

    def add(
        self,
        name: str,
        how: str,
        make: Proto,
        *endings: Ending,
        warns: Category | None = None,
        file: str = MODEL,
        costly: bool = False,
    ) -> None:
        """Add a model that a function makes."""

        def write(path: Path) -> None:
            path.write_bytes(make().SerializeToString())

        self.exhibits.append(Exhibit(name, " ".join(how.split()), write, endings, warns, file, costly))

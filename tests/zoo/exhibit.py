"""A model of the zoo, how it is made, and what has to become of it; and a hall, which collects those of one kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import onnx

from edged.models.finding import Category, Stage

MODEL = "model.onnx"


@dataclass(frozen=True)
class Ending:
    """How a model ends: served, or refused for a category found at a stage."""

    stage: Stage | None = None
    category: Category | None = None

    def __str__(self) -> str:
        return f"{self.stage.value}/{self.category.value}" if self.stage and self.category else "served"


SERVED = Ending()


def refused(stage: Stage, *categories: Category) -> tuple[Ending, ...]:
    """Refused at a stage, for one of these."""
    return tuple(Ending(stage, category) for category in categories)


Proto: TypeAlias = Callable[[], onnx.ModelProto]
Writer: TypeAlias = Callable[[Path], None]  # given the path of the model file, in a folder of its own


@dataclass(frozen=True)
class Exhibit:
    """One model.

    how: what is special about it. endings: the ways in which it may end; more than one only where more than one is
    honestly right. warns: what has to be told of it although it is served. file: its name, where that is the point.
    costly: takes more than a few seconds to make or to judge, or a lot of disk. not_as_root: needs file permissions to
    be heeded, which root's are not.
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
        """Writes it and what belongs to it into a folder that is there; returns the path of the model."""
        path = folder / self.file
        self.write(path)
        return path


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


class Hall:
    """Collects exhibits. A function that is decorated names its exhibit; its docstring says how that is made."""

    def __init__(self) -> None:
        self.exhibits: list[Exhibit] = []

    def model(
        self, *endings: Ending, warns: Category | None = None, file: str = MODEL, costly: bool = False
    ) -> Callable[[Proto], Proto]:
        """For a function that makes a model."""

        def collect(make: Proto) -> Proto:
            self.add(make.__name__, make.__doc__ or "", make, *endings, warns=warns, file=file, costly=costly)
            return make

        return collect

    def file(
        self, *endings: Ending, file: str = MODEL, costly: bool = False, not_as_root: bool = False
    ) -> Callable[[Writer], Writer]:
        """For a function that writes the file itself."""

        def collect(write: Writer) -> Writer:
            how = " ".join((write.__doc__ or "").split())
            found = Exhibit(write.__name__, how, write, endings, None, file, costly, not_as_root)
            self.exhibits.append(found)
            return write

        return collect

    def models(self, endings: tuple[Ending, ...], **models: tuple[str, onnx.ModelProto]) -> None:
        """Models by name, each with how it is made, that all end in the same ways."""
        for name, (how, proto) in models.items():
            self.exhibits.append(Exhibit(name, how, partial(_write, proto.SerializeToString()), endings))

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
        """A model without a function of its own name."""

        def write(path: Path) -> None:
            path.write_bytes(make().SerializeToString())

        self.exhibits.append(Exhibit(name, " ".join(how.split()), write, endings, warns, file, costly))

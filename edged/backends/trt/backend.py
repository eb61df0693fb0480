"""Implements the backend contract with the Python module of TensorRT or TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edged.backends.contract import Composition, Graphs, Order, Session
from edged.backends.trt import build
from edged.backends.trt.api import Trt, version
from edged.backends.trt.log import Log
from edged.backends.trt.network import create_builder, parse


class TensorRt:
    """A backend on one TensorRT module. `kind` is the runtime's name, "TensorRT" or "TensorRT-RTX". `library` is the
    start of the file name of the runtime's shared library."""

    converted_in_graph = frozenset({"fp16", "int8"})

    def __init__(self, name: str, kind: str, library: str, trt: Trt) -> None:
        self.name = name
        self._kind, self._library, self._trt = kind, library, trt

    def version(self) -> str:
        return version(self._trt, self._library)

    def build(
        self, order: Order, out: Path, report: Callable[[float], None], graphs: Callable[[], Graphs]
    ) -> Composition:
        return build.build(self._trt, self._kind, self.version(), order, out, report)

    def open(self, order: Order) -> Session:
        from edged.backends.trt.load import open_engine  # imported here, because builders do not need it

        return open_engine(self._trt, self._kind, self.version(), order)

    def operators(self) -> None:
        return None

    def trial(self, order: Order) -> None:
        self.check(Path(order.model))

    def check(self, model: Path) -> None:
        log = Log()
        builder = create_builder(self._trt, log, self._kind)
        parse(self._trt, builder, log, model, self._kind)

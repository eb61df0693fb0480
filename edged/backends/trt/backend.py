"""The backend contract by one of TensorRT's modules; what differs between them are the constructor's arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edged.backends.contract import Composition, Graphs, Order, Session
from edged.backends.trt import build
from edged.backends.trt.api import Trt, version
from edged.backends.trt.log import Log
from edged.backends.trt.network import create_builder, parse


class TensorRt:
    """`kind` is the runtime's name for people, `library` the beginning of its shared library's file name."""

    in_graph = frozenset({"fp16", "int8"})

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
        from edged.backends.trt.load import open_engine  # brings what runs engines; builders do without

        return open_engine(self._trt, self._kind, self.version(), order)

    def operators(self) -> None:
        return None

    def trial(self, order: Order) -> None:
        self.check(Path(order.model))

    def check(self, model: Path) -> None:
        log = Log()
        builder = create_builder(self._trt, log, self._kind)
        parse(self._trt, builder, log, model, self._kind)

"""A fake of GStreamer's Python module. Pipelines record their text and properties, and return scripted samples.

It has only what `edged.client.sources.gstreamer` uses.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SECOND = 1_000_000_000
NONE = 2**64 - 1


@dataclass
class Buffer:
    data: bytes
    pts: int
    mapped: int = 0

    def map(self, _flags: object) -> tuple[bool, Any]:
        self.mapped += 1
        return True, SimpleNamespace(data=memoryview(self.data))

    def unmap(self, _view: object) -> None:
        self.mapped -= 1


@dataclass
class Sample:
    """One sample: raw video by default."""

    data: bytes
    width: int = 4
    height: int = 2
    layout: str = "BGR"
    kind: str = "video/x-raw"
    pts: int = NONE

    def __post_init__(self) -> None:
        self.buffer = Buffer(self.data, self.pts)

    def get_buffer(self) -> Buffer:
        return self.buffer

    def get_caps(self) -> Any:
        values = {"width": self.width, "height": self.height, "format": self.layout}
        structure = SimpleNamespace(get_name=lambda: self.kind, get_value=values.__getitem__)
        return SimpleNamespace(get_structure=lambda _: structure)


@dataclass
class Element:
    properties: dict[str, object] = field(default_factory=dict)

    def set_property(self, name: str, value: object) -> None:
        self.properties[name] = value


class Pipeline:
    """A pipeline whose sink gives `script`: samples, None (no sample yet), Exceptions. Then it ends."""

    def __init__(self, text: str, script: list[Any], base_time: int) -> None:
        self.text = text
        self.states: list[str] = []
        self.source = Element()
        self.refuses = False
        self._script = iter(script)
        self._base_time = base_time
        self._error: Exception | None = None
        self._ended = False

    def get_by_name(self, name: str) -> Any:
        return self.source if name == "source" else self

    def get_base_time(self) -> int:
        return self._base_time

    def set_state(self, state: str) -> None:
        self.states.append(state)

    def get_state(self, _patience: int) -> tuple[str, str, str]:
        return ("failure" if self.refuses else "success", "", "")

    def emit(self, signal: str, _patience: int) -> Any:
        assert signal == "try-pull-sample"
        found = next(self._script, StopIteration)
        if found is StopIteration:
            self._ended = True
            return None
        if isinstance(found, Exception):
            self._error = found
            return None
        time.sleep(0.001)
        return found

    def get_property(self, name: str) -> bool:
        assert name == "eos"
        return self._ended

    def get_bus(self) -> Any:
        return SimpleNamespace(pop_filtered=self._message)

    def _message(self, kind: str) -> Any:
        assert kind == "error"
        error, self._error = self._error, None
        return error and SimpleNamespace(parse_error=lambda: (SimpleNamespace(message=str(error)), ""))


class Gst(ModuleType):
    """The module. `elements` names the existing factories; `scripts` has the scripts of the next pipelines."""

    CLOCK_TIME_NONE = NONE
    State = SimpleNamespace(NULL="null", PAUSED="paused", PLAYING="playing")
    StateChangeReturn = SimpleNamespace(FAILURE="failure")
    MessageType = SimpleNamespace(ERROR="error")
    MapFlags = SimpleNamespace(READ="read")

    def __init__(self) -> None:
        super().__init__("gi.repository.Gst")
        self.elements: set[str] = set()
        self.scripts: list[list[Any]] = []
        self.pipelines: list[Pipeline] = []
        self.refuses = False  # whether new pipelines fail to change their state
        self.base_time = time.monotonic_ns()
        self.ElementFactory = SimpleNamespace(find=lambda name: name if name in self.elements else None)
        self._initialized = False

    def is_initialized(self) -> bool:
        return self._initialized

    def init(self, _arguments: object) -> None:
        self._initialized = True

    def parse_launch(self, text: str) -> Pipeline:
        if "nosuch" in text:
            raise RuntimeError('no element "nosuch"')
        made = Pipeline(text, self.scripts.pop(0) if self.scripts else [], self.base_time)
        made.refuses = self.refuses
        self.pipelines.append(made)
        return made


def install(monkeypatch: pytest.MonkeyPatch) -> Gst:
    gst = Gst()
    gi, repository = ModuleType("gi"), ModuleType("gi.repository")
    gi.require_version = lambda _name, _version: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gi", gi)
    monkeypatch.setitem(sys.modules, "gi.repository", repository)
    monkeypatch.setitem(sys.modules, "gi.repository.Gst", gst)
    return gst

"""Reads the metadata that Ultralytics' exporter writes into a model; it is untrusted input.

Every value is Python's `str()` of the original: `{0: 'person', ...}`, `[640, 640]`, `True`. `ast.literal_eval` parses
that, but a hostile text can exhaust the parser's stack or time, so it only gets short texts of literals (strings,
unsigned numbers, shallow brackets). A value that cannot be read counts as absent and is listed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import TypeGuard

import msgspec

MAX_TEXT = 1 << 19
MAX_ITEMS = 20_000  # commas; the parser needs half a kilobyte for each item
MAX_NAME = 200
MAX_SIDE = 16384
_MAX_DEPTH = 8

# The closing quote is optional, so that an unterminated string is consumed once and not retried from every quote in it.
_STRING = re.compile(r"'[^'\\\n]*(?:\\.[^'\\\n]*)*'?" + r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"?')
_PLAIN = re.compile(r"True|False|None|\d[\d.]*(?:[eE][-+]?\d+)?|[][{}():,\s]+")
_NOT_PLAIN = re.compile(r"[\d.]{40}")  # parsing long integers takes quadratic time
_BRACKET = re.compile(r"[][{}()]")


class ExportMetadata(msgspec.Struct, frozen=True):
    """The exporter's metadata; None (or empty) for what is missing or invalid."""

    task: str | None = None
    head: str | None = None
    names: tuple[str, ...] = ()
    stride: int | None = None
    imgsz: tuple[int, int] | None = None  # (height, width), as written
    end2end: bool | None = None
    nms: bool | None = None
    version: tuple[int, int, int] | None = None  # of the exporting package
    kpt_shape: tuple[int, int] | None = None  # (keypoints, values of each)
    unreadable: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int] | None:
        """(width, height) in pixels."""
        return (self.imgsz[1], self.imgsz[0]) if self.imgsz else None

    @property
    def remark(self) -> str:
        """The values that could not be read, as the end of a reason."""
        return f"; unreadable metadata: {', '.join(self.unreadable)}" if self.unreadable else ""


def read_metadata(metadata: Mapping[str, str]) -> ExportMetadata:
    """Read metadata; never raises. Keys whose value cannot be read are listed in `unreadable`."""
    reader = _Reader(metadata)
    return ExportMetadata(
        task=reader.word("task"),
        head=reader.word("head"),
        names=reader.names(),
        stride=reader.size("stride"),
        imgsz=reader.pair("imgsz"),
        end2end=reader.flag("end2end"),
        nms=reader.nms(),
        version=reader.version(),
        kpt_shape=reader.pair("kpt_shape"),
        unreadable=tuple(reader.unreadable),
    )


def literal(text: object) -> object:
    """Parse a flat Python literal; ValueError for anything else."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise ValueError("not a text, or too long")
    if not _is_plain(text):
        raise ValueError("not a plain literal")
    try:
        value: object = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("not a literal") from error
    return value


def _is_plain(text: str) -> bool:
    """Whether parsing is cheap for certain; takes one pass."""
    if "'''" in text or '"""' in text:
        return False  # Python would split it into other strings than we do
    skeleton = _STRING.sub("0", text)  # so that brackets and words inside strings do not count
    if skeleton.count(",") > MAX_ITEMS or _NOT_PLAIN.search(skeleton):
        return False
    return _PLAIN.sub("", skeleton) == "" and _depth(skeleton) <= _MAX_DEPTH


def _depth(skeleton: str) -> int:
    depth = deepest = 0
    for bracket in _BRACKET.findall(skeleton):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    return deepest


class _Reader:
    """Reads values by key and collects the keys of unusable ones."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        self._metadata = metadata
        self.unreadable: list[str] = []

    def _value(self, key: str) -> object:
        """The literal; None if it is absent, None or unreadable."""
        if key not in self._metadata:
            return None
        try:
            return literal(self._metadata[key])
        except ValueError:
            self._bad(key)
            return None

    def _bad(self, key: str) -> None:
        self.unreadable.append(key)

    def word(self, key: str) -> str | None:
        text: object = self._metadata.get(key)
        if text is None or (isinstance(text, str) and re.fullmatch(r"[A-Za-z][\w.-]{0,63}", text, re.ASCII)):
            return text
        self._bad(key)
        return None

    def version(self) -> tuple[int, int, int] | None:
        """None for other forms: many packages write such a key."""
        text: object = self._metadata.get("version")
        found = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?!\d)", text, re.ASCII) if isinstance(text, str) else None
        if found is None:
            return None
        major, minor, patch = map(int, found.groups())
        return major, minor, patch

    def flag(self, key: str) -> bool | None:
        value = self._value(key)
        if value is None or isinstance(value, bool):
            return value
        self._bad(key)
        return None

    def size(self, key: str) -> int | None:
        value = self._value(key)
        if value is None or _is_size(value):
            return value
        self._bad(key)
        return None

    def pair(self, key: str) -> tuple[int, int] | None:
        value = self._value(key)
        if value is None:
            return None
        sides = list(value) if isinstance(value, (list, tuple)) else [value, value]
        if len(sides) == 2 and _is_size(sides[0]) and _is_size(sides[1]):
            return sides[0], sides[1]
        self._bad(key)
        return None

    def names(self) -> tuple[str, ...]:
        value = self._value("names")
        if value is None:
            return ()
        if isinstance(value, dict) and list(value) == list(range(len(value))):
            value = list(value.values())
        if isinstance(value, (list, tuple)) and all(isinstance(n, str) and len(n) <= MAX_NAME for n in value):
            return tuple(" ".join(name.split()) for name in value)  # names appear in log lines
        self._bad("names")
        return ()

    def nms(self) -> bool | None:
        """Whether the export put an NMS into the graph; `args` repeats the arguments of the export."""
        arguments = self._value("args")
        if arguments is None:
            return None
        if not isinstance(arguments, dict) or not isinstance(arguments.get("nms"), (bool, type(None))):
            self._bad("args")
            return None
        nms: bool | None = arguments.get("nms")
        return nms


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIDE

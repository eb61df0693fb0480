"""Reads the metadata that Ultralytics' exporter writes into a model, and the characters that RapidOCR writes. The
metadata is untrusted.

Every value of Ultralytics is Python's `str()` of the original: `{0: 'person', ...}`, `[640, 640]`, `True`.
`ast.literal_eval` parses these values. A hostile text can exhaust the parser's stack or time, so only short texts of
literals (strings, unsigned numbers, shallow brackets) are parsed. A value that cannot be read counts as absent, and its
key is listed in `unreadable`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from edged.vision import characters

_T = TypeVar("_T")

MAX_TEXT = 1 << 19
MAX_ITEMS = 20_000  # commas; the parser needs half a kilobyte for each item
MAX_NAME = 200
MAX_SIDE = 16384
_MAX_DEPTH = 8

# The closing quote is optional, so that an unterminated string is consumed once, not retried from each of its quotes.
_STRING = re.compile(r"'[^'\\\n]*(?:\\.[^'\\\n]*)*'?" + r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"?')
_PLAIN = re.compile(r"True|False|None|\d[\d.]*(?:[eE][-+]?\d+)?|[][{}():,\s]+")
_NOT_PLAIN = re.compile(r"[\d.]{40}")  # parsing long integers takes quadratic time
_BRACKET = re.compile(r"[][{}()]")


class ExportMetadata(msgspec.Struct, frozen=True):
    """The exporter's metadata. A field is None or empty if its value is missing or invalid. `unreadable` has the keys
    of invalid values."""

    task: str | None = None
    head: str | None = None
    names: tuple[str, ...] = ()
    stride: int | None = None
    imgsz: tuple[int, int] | None = None  # (height, width), as written
    end2end: bool | None = None
    nms: bool | None = None
    version: tuple[int, int, int] | None = None  # of the exporting package
    kpt_shape: tuple[int, int] | None = None  # (number of keypoints, number of values of each)
    characters: tuple[str, ...] = ()  # of a text recogniser; see `edged.vision.characters`
    unreadable: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int] | None:
        """(width, height) in pixels."""
        return (self.imgsz[1], self.imgsz[0]) if self.imgsz else None

    @property
    def remark(self) -> str:
        """A text that names the unreadable values, to be appended to a reason; empty if all values are readable."""
        return f"; unreadable metadata: {', '.join(self.unreadable)}" if self.unreadable else ""


def read_metadata(metadata: Mapping[str, str]) -> ExportMetadata:
    """Read metadata. Never raises: a value that cannot be read counts as absent, see `ExportMetadata.unreadable`."""
    unreadable: list[str] = []

    def read(key: str, convert: Callable[[object], _T], parse: Callable[[object], object] = literal) -> _T | None:
        if key not in metadata:
            return None
        try:
            value = parse(metadata[key])
            return None if value is None else convert(value)
        except ValueError:
            unreadable.append(key)
            return None

    return ExportMetadata(
        task=read("task", _word, _text),
        head=read("head", _word, _text),
        names=read("names", _names) or (),
        stride=read("stride", _size),
        imgsz=read("imgsz", _pair),
        end2end=read("end2end", _flag),
        nms=read("args", _nms),
        version=_version(metadata.get("version")),
        kpt_shape=read("kpt_shape", _pair),
        characters=characters.parse(metadata.get("character", "")),
        unreadable=tuple(unreadable),
    )


def literal(text: object) -> object:
    """Parse a Python literal without deep nesting. Raises ValueError for other texts, and for texts that are too
    long."""
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
    """Whether parsing the text is certainly cheap. Takes linear time."""
    if "'''" in text or '"""' in text:
        return False  # Python would split the text into strings differently than `_STRING` does
    skeleton = _STRING.sub("0", text)  # strings are removed, so that brackets and words inside them do not count
    if skeleton.count(",") > MAX_ITEMS or _NOT_PLAIN.search(skeleton):
        return False
    return _PLAIN.sub("", skeleton) == "" and _depth(skeleton) <= _MAX_DEPTH


def _depth(skeleton: str) -> int:
    depth = deepest = 0
    for bracket in _BRACKET.findall(skeleton):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    return deepest


def _text(value: object) -> object:
    return value


def _word(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]{0,63}", value, re.ASCII):
        return value
    raise ValueError("not a word")


def _version(text: object) -> tuple[int, int, int] | None:
    """Parse a version of three numbers; None for other forms, because other packages write the same key."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?!\d)", text, re.ASCII) if isinstance(text, str) else None
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("neither True nor False")


def _size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIDE:
        return value
    raise ValueError("not a size")


def _pair(value: object) -> tuple[int, int]:
    sides = value if isinstance(value, (list, tuple)) else (value, value)
    if len(sides) != 2:
        raise ValueError("not a pair")
    return _size(sides[0]), _size(sides[1])


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, dict) and list(value) == list(range(len(value))):
        value = list(value.values())
    if isinstance(value, (list, tuple)) and all(isinstance(n, str) and len(n) <= MAX_NAME for n in value):
        "".join(value).encode()  # raises ValueError for an escape such as \ud800, which no message can contain
        return tuple(" ".join(name.split()) for name in value)  # names appear in log lines
    raise ValueError("not names")


def _nms(arguments: object) -> bool | None:
    """Return whether the export put an NMS into the graph, from the exporter's arguments; None if unknown."""
    if not isinstance(arguments, dict):
        raise ValueError("not arguments")
    nms = arguments.get("nms")
    return None if nms is None else _flag(nms)

"""What is traced of requests, and where to, in the words of Triton's trace settings. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from edged.errors import InvalidInput

TIMESTAMPS, TENSORS = "TIMESTAMPS", "TENSORS"
_OFF = "OFF"
_MODE = "triton"  # how the files look; the other mode there is would send traces to a collector
# A file of the folder for traces and nothing else: no separator, no dot in front.
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MOST = (1 << 31) - 1


class TraceSettings(msgspec.Struct, frozen=True):
    """Every `rate`-th request is traced, `count` of them in all (-1: no limit), with what `levels` name (none: off).

    They are written to `file`; with a `frequency`, to `file.0`, `file.1`, ... of so many traces each.
    """

    file: str = "trace.json"
    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    frequency: int = 0

    @property
    def is_on(self) -> bool:
        return bool(self.levels) and self.count != 0


class Changes(msgspec.Struct, frozen=True):
    """Settings given for all models, or for one: those that are None are not."""

    file: str | None = None
    levels: tuple[str, ...] | None = None
    rate: int | None = None
    count: int | None = None
    frequency: int | None = None

    def over(self, base: TraceSettings) -> TraceSettings:
        """`base`, except for what is given here."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(base, **given)

    @property
    def is_empty(self) -> bool:
        return self == Changes()


def read(values: Mapping[str, Sequence[str]], before: Changes) -> Changes:
    """`before` with settings by their names on the wire; one without values is taken back. InvalidInput."""
    read_as: dict[str, str | int | tuple[str, ...] | None] = {}
    for name, texts in values.items():
        if name == "trace_mode":
            if list(texts) not in ([], [_MODE]):
                raise InvalidInput(f"trace_mode {_shown(texts)} is not to be had; there is only {_MODE!r}")
        elif name in _READERS:
            field, reader = _READERS[name]
            read_as[field] = reader(name, texts) if texts else None
        else:
            raise InvalidInput(f"unknown trace setting {name[:40]!r}; known are {', '.join((*_READERS, 'trace_mode'))}")
    return msgspec.structs.replace(before, **read_as)


def shown(settings: TraceSettings) -> dict[str, list[str]]:
    """All settings by their names on the wire."""
    return {
        "trace_file": [settings.file],
        "trace_level": list(settings.levels) or [_OFF],
        "trace_rate": [str(settings.rate)],
        "trace_count": [str(settings.count)],
        "log_frequency": [str(settings.frequency)],
        "trace_mode": [_MODE],
    }


def _file(name: str, texts: Sequence[str]) -> str:
    text = _single(name, texts)
    if not _FILE.fullmatch(text):
        raise InvalidInput(
            f"{name} {text[:60]!r} is not a plain file name; traces stay in the daemon's folder for them"
        )
    return text


def _levels(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    # MIN and MAX are what levels were called before there were tensors; clients still send them.
    words = [TIMESTAMPS if text in ("MIN", "MAX") else text for text in texts]
    unknown = [word for word in words if word not in (_OFF, TIMESTAMPS, TENSORS)]
    if unknown:
        raise InvalidInput(f"{name} {unknown[0][:40]!r} is not one of {_OFF}, {TIMESTAMPS}, {TENSORS}")
    return tuple(level for level in (TIMESTAMPS, TENSORS) if level in words)


def _number(least: int) -> Callable[[str, Sequence[str]], int]:
    def read_number(name: str, texts: Sequence[str]) -> int:
        text = _single(name, texts)
        if not re.fullmatch(r"-?[0-9]{1,10}", text) or not least <= int(text) <= _MOST:
            raise InvalidInput(f"{name} {text[:40]!r} is not a number from {least} to {_MOST}")
        return int(text)

    return read_number


def _single(name: str, texts: Sequence[str]) -> str:
    if len(texts) != 1:
        raise InvalidInput(f"{name} takes one value, not {len(texts)}")
    return texts[0]


def _shown(texts: Sequence[str]) -> str:
    return repr(", ".join(texts)[:40])


_READERS: dict[str, tuple[str, Callable[[str, Sequence[str]], str | int | tuple[str, ...]]]] = {
    "trace_file": ("file", _file),
    "trace_level": ("levels", _levels),
    "trace_rate": ("rate", _number(1)),
    "trace_count": ("count", _number(-1)),
    "log_frequency": ("frequency", _number(0)),
}

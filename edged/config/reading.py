"""The configuration in force: the command line before the environment before the file before the defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path as File
from typing import TypeAlias

import msgspec

from edged.config import environment as variables
from edged.config.checking import DEFAULT, Fault, Origin, Problem, Source, contradictions, faults
from edged.config.keys import Path, dotted, tables, without_index
from edged.config.schema import Config
from edged.decoding import ready
from edged.errors import ConfigError
from edged.files import read_regular

_TEXT = r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\''
_PART = re.compile(rf"[ \t]*(?:([A-Za-z0-9_-]+)|({_TEXT}))[ \t]*(\.|=|\]\]?)", re.DOTALL)
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)+")
_REST = re.compile(rf"(?P<text>{_TEXT})|#[^\n]*|(?P<open>[\[{{])|(?P<close>[\]}}])|(?P<end>\n)|.", re.DOTALL)


def key_lines(text: str) -> dict[Path, int]:
    """The line, from 1, of each table's first header and of each key. Tables of an array are called `name[0]`.

    Of a file that is no TOML it tells what it makes of it.
    """
    lines: dict[Path, int] = {}
    entries: dict[Path, int] = {}  # tables of each array so far
    table: Path = ()
    at = _past_blank(text, 0)
    line, counted = 1, 0
    while at < len(text):
        line, counted = line + text.count("\n", counted, at), at
        brackets = 2 if text.startswith("[[", at) else 1 if text[at] == "[" else 0
        parts, at = _parts(text, at + brackets)
        if not parts:
            break
        if brackets:
            if brackets == 2:
                array = (*_within(parts[:-1], entries), parts[-1])
                entries[array] = entries.get(array, -1) + 1
                lines.setdefault(array, line)
            table = _within(parts, entries)
            lines.setdefault(table, line)
        else:
            for length in range(1, len(parts) + 1):
                lines.setdefault((*table, *parts[:length]), line)
            at = _past_value(text, at)
        at = _past_blank(text, at)
    return lines


def _within(parts: Path, entries: dict[Path, int]) -> Path:
    """A header means the last table of each array that it leads through."""
    path: Path = ()
    for part in parts:
        path = (*path, part)
        if path in entries:
            path = (*path[:-1], f"{part}[{entries[path]}]")
    return path


def _parts(text: str, at: int) -> tuple[Path, int]:
    """The names of a key or header, and where what follows it begins; none where there is neither."""
    parts: list[str] = []
    while found := _PART.match(text, at):
        at = found.end()
        parts.append(found[1] or _plain(found[2]))
        if found[3] != ".":
            return tuple(parts), at
    return (), at


def _plain(quoted: str) -> str:
    if quoted.startswith("'"):
        return quoted.strip("'")
    try:
        return str(json.loads(quoted))
    except ValueError:  # TOML has an escape or two that JSON has not
        return quoted.strip('"')


def _past_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _past_value(text: str, at: int) -> int:
    """Where the line ends in which a value does."""
    depth = 0
    for token in _REST.finditer(text, at):
        if token.lastgroup == "open":
            depth += 1
        elif token.lastgroup == "close":
            depth -= 1
        elif token.lastgroup == "end" and depth <= 0:
            return token.end()
    return len(text)


Options: TypeAlias = Mapping[str, tuple[str, object]]  # by key of the first level: the option's name, and what it says

_NOTHING: Mapping[str, str] = {}
_NO_OPTIONS: Options = {}
_LINE = re.compile(r" \(at line (\d+), column \d+\)")


class Reading(msgspec.Struct, frozen=True):
    """What was read. Where there are problems `config` is what is right of it; the lowest of `sources` is first."""

    config: Config
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    sources: tuple[Source, ...]

    def origin(self, path: Path) -> Origin:
        """Where the value of a key comes from."""
        return next((source.origin(path) for source in reversed(self.sources) if source.has(path)), DEFAULT)

    def told(self) -> str:
        """In a line, for a log: the file, and the names of what goes before it."""
        file, *above = self.sources
        named = [
            f"{source.whole}: {', '.join(sorted(map(str, source.places.values())))}" for source in above if source.tree
        ]
        return "; ".join([str(file.whole) if file.whole != DEFAULT else "the defaults", *named])

    def required(self) -> Config:
        """The configuration. ConfigError, which tells the first problem and how many more there are."""
        if not self.problems:
            return self.config
        first, *more = self.problems
        file = first.origin.name if first.origin.kind == "file" else ""
        rest = f" (and {len(more)} more: edged config check {file}".rstrip() + ")" if more else ""
        raise ConfigError(f"configuration {first}{rest}")


def load(file: File | None, environment: Mapping[str, str] = _NOTHING) -> Config:
    """The configuration of a file and of variables. ConfigError, in one line, for anything wrong with them."""
    return read(file, environment).required()


def read(
    file: File | None,
    environment: Mapping[str, str] = _NOTHING,
    options: Options = _NO_OPTIONS,
) -> Reading:
    """Everything that is said, and everything that is wrong with it."""
    told, problems = read_file(file) if file is not None else (Source(), list[Problem]())
    exported, wrong, warnings = variables.read(environment)
    given = Source(
        {name: value for name, (_, value) in options.items()},
        {(name,): Origin("command line", option) for name, (option, _) in options.items()},
        Origin("command line"),
    )
    problems += wrong
    problems += _problems(given, faults(given.tree, tables()))
    sources = (told, exported, given)
    merged: dict[str, object] = {}
    for source in sources:
        merged = _over(merged, source.tree)
    if not problems:
        reading = Reading(Config(), (), (), sources)
        problems = [
            Problem(reading.origin(fault.path), dotted(fault.path), fault.message)
            for fault in contradictions(merged, tables())
        ]
    return Reading(_config(merged), tuple(problems), tuple(warnings), sources)


def _config(tree: Mapping[str, object]) -> Config:
    """What is right of a tree."""
    pruned = dict(tree)
    for fault in faults(tree, tables()):
        pruned = _without(pruned, fault.path)
    try:
        return msgspec.convert(pruned, ready(Config))
    except msgspec.ValidationError:  # keys that contradict each other
        return Config()


def _without(tree: Mapping[str, object], path: Path) -> dict[str, object]:
    """A tree without a key, or without the whole list that something is wrong in."""
    first = path[0] if path[0] in tree else without_index(path[0])
    inner = tree.get(first)
    rest = {name: value for name, value in tree.items() if name != first}
    return {**rest, first: _without(inner, path[1:])} if len(path) > 1 and isinstance(inner, dict) else rest


def read_file(file: File) -> tuple[Source, list[Problem]]:
    """What a file says, and what is wrong with that."""
    whole = Origin("file", str(file))
    try:
        text = read_regular(file).decode("utf-8-sig")  # editors of Windows begin files with a mark
        tree = msgspec.toml.decode(text)
    except OSError as error:
        return Source(whole=whole), [Problem(whole, "", f"cannot be read: {error.strerror or error}")]
    except RecursionError:
        return Source(whole=whole), [Problem(whole, "", "not valid TOML: its brackets are nested too deep")]
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        why = f"not valid TOML: byte 0x{error.object[error.start]:02x} is not UTF-8; save it as UTF-8"
        return Source(whole=whole), [Problem(Origin("file", str(file), line), "", why)]
    except (msgspec.DecodeError, ValueError) as error:
        return Source(whole=whole), [_not_toml(file, str(error))]
    places = {path: Origin("file", str(file), line) for path, line in key_lines(text).items()}
    source = Source(tree, places, whole)
    return source, _problems(source, faults(tree, tables()))


def _not_toml(file: File, message: str) -> Problem:
    """The parser tells the line within its message, unless the file ended too early."""
    found = _LINE.search(message)
    origin = Origin("file", str(file), int(found[1]) if found else 0)
    return Problem(origin, "", f"not valid TOML: {_LINE.sub('', message)}")


def _problems(source: Source, found: Iterable[Fault]) -> list[Problem]:
    return [Problem(source.origin(fault.path), dotted(fault.path), fault.message) for fault in found]


def _over(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """One tree laid over another: tables are laid over each other key by key, other values are replaced."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        merged[name] = _over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged

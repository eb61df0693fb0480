"""The configuration in force: the command line overrides the environment, which overrides the file."""

from __future__ import annotations

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

# A statement of several lines, which is an array or a text, can only end in a line with one of these.
_MAY_END = re.compile(r"[\]}]|\"{3}|'{3}")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of each table's first header and of each key of a valid TOML file.

    No parser reports lines, so statements are parsed one by one. Tables of an array are called `name[0]`. Keys of an
    inline table have no line of their own, and share their statement's if they are known at all.
    """
    lines: dict[Path, int] = {}
    entries: dict[Path, int] = {}  # tables of each array so far
    table: Path = ()
    statement, first = "", 1
    for number, line in enumerate(text.split("\n"), 1):
        is_begun = bool(statement)
        statement += f"{line}\n"
        first = first if is_begun else number
        if is_begun and not _MAY_END.search(line):
            continue
        try:
            tree = msgspec.toml.decode(statement)
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue  # it goes on in the next line
        header, statement = statement.lstrip(), ""
        names = _names(tree)
        if header.startswith("[["):
            array = (*_within(names[:-1], entries), names[-1])
            entries[array] = entries.get(array, -1) + 1
            lines.setdefault(array, first)
        if header.startswith("["):
            table = _within(names, entries)
            lines.setdefault(table, first)
        else:
            for length in range(1, len(names) + 1):
                lines.setdefault((*table, *names[:length]), first)
    return lines


def _names(tree: object) -> Path:
    """The names of the only key or header of a statement, from the top."""
    names: list[str] = []
    while isinstance(tree, dict) and len(tree) == 1:
        ((name, tree),) = tree.items()
        names.append(name)
    return tuple(names)


def _within(names: Path, entries: dict[Path, int]) -> Path:
    """The path of a header, which refers to the last table of each array that it passes."""
    path: Path = ()
    for name in names:
        path = (*path, name)
        if path in entries:
            path = (*path[:-1], f"{name}[{entries[path]}]")
    return path


Options: TypeAlias = Mapping[str, tuple[str, object]]  # by key of the first level: the option's name, and what it says

_NOTHING: Mapping[str, str] = {}
_NO_OPTIONS: Options = {}
_LINE = re.compile(r" \(at line (\d+), column \d+\)")


class Reading(msgspec.Struct, frozen=True):
    """What was read. If there are problems, `config` is the valid part. `sources`: lowest priority first."""

    config: Config
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    sources: tuple[Source, ...]

    def origin(self, path: Path) -> Origin:
        """Where the value of a key comes from."""
        return next((source.origin(path) for source in reversed(self.sources) if source.has(path)), DEFAULT)

    def summary(self) -> str:
        """Return a line for the log: the file, and the names of variables and options that override it."""
        file, *above = self.sources
        named = [
            f"{source.whole}: {', '.join(sorted(map(str, source.places.values())))}" for source in above if source.tree
        ]
        return "; ".join([str(file.whole) if file.whole != DEFAULT else "the defaults", *named])

    def required(self) -> Config:
        """Return the configuration. ConfigError, with the first problem and the number of others."""
        if not self.problems:
            return self.config
        first, *more = self.problems
        file = first.origin.name if first.origin.kind == "file" else ""
        rest = f" (and {len(more)} more: edged config check {file}".rstrip() + ")" if more else ""
        raise ConfigError(f"configuration {first}{rest}")


def load(file: File | None, environment: Mapping[str, str] = _NOTHING) -> Config:
    """Return the configuration of a file and of variables. ConfigError, in one line, for anything wrong with them."""
    return read(file, environment).required()


def read(
    file: File | None,
    environment: Mapping[str, str] = _NOTHING,
    options: Options = _NO_OPTIONS,
) -> Reading:
    """Read all sources, and collect everything that is wrong with them."""
    filed, problems = read_file(file) if file is not None else (Source(), list[Problem]())
    exported, wrong, warnings = variables.read(environment)
    given = Source(
        {name: value for name, (_, value) in options.items()},
        {(name,): Origin("command line", option) for name, (option, _) in options.items()},
        Origin("command line"),
    )
    problems += wrong
    problems += _problems(given, faults(given.tree, tables()))
    sources = (filed, exported, given)
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
    """Convert the valid part of a tree."""
    pruned = dict(tree)
    for fault in faults(tree, tables()):
        pruned = _without(pruned, fault.path)
    try:
        return msgspec.convert(pruned, ready(Config))
    except msgspec.ValidationError:  # keys that contradict each other
        return Config()


def _without(tree: Mapping[str, object], path: Path) -> dict[str, object]:
    """Return a tree without a key, or without the whole list that contains it."""
    first = path[0] if path[0] in tree else without_index(path[0])
    inner = tree.get(first)
    rest = {name: value for name, value in tree.items() if name != first}
    return {**rest, first: _without(inner, path[1:])} if len(path) > 1 and isinstance(inner, dict) else rest


def read_file(file: File) -> tuple[Source, list[Problem]]:
    """Read a file, and what is wrong with it."""
    whole = Origin("file", str(file))
    try:
        text = read_regular(file).decode("utf-8-sig")  # editors of Windows write a byte order mark
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
    """The parser's message has the line, unless the file ended too early."""
    found = _LINE.search(message)
    origin = Origin("file", str(file), int(found[1]) if found else 0)
    return Problem(origin, "", f"not valid TOML: {_LINE.sub('', message)}")


def _problems(source: Source, found: Iterable[Fault]) -> list[Problem]:
    return [Problem(source.origin(fault.path), dotted(fault.path), fault.message) for fault in found]


def _over(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Merge two trees: tables key by key; other values of `above` replace those of `below`."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        merged[name] = _over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged

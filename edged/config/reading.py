"""The configuration in force: the command line overrides the environment, which overrides the file.

A variable is `EDGED_` and a key's names in capitals: `EDGED_ENGINES_BUDGET_MB`. Texts need no quotes. Numbers, true and
false are written as in TOML, lists with commas or as in TOML, tables as inline tables:
EDGED_MODELS='{ door = "/srv/door.onnx" }'. An empty variable counts as unset; the empty string is `""`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as File
from typing import TypeAlias

import msgspec

from edged.config.checking import DEFAULT, Fault, Origin, Problem, Source, contradictions, faults, nearest
from edged.config.keys import NAME, Path, choices, core, dotted, item_of, tables, variable, without_index
from edged.config.schema import Config
from edged.decoding import ready
from edged.errors import ConfigError
from edged.files import read_regular

_PREFIX = "EDGED_"
# Variables that other parts of edged read, mostly clients. A test compares them with the sources.
OTHERS = frozenset(
    {
        "EDGED_CA",
        "EDGED_CERTIFICATE",
        "EDGED_CUDA_VISIBLE_DEVICES",
        "EDGED_KEY",
        "EDGED_MQTT_PASSWORD",
        "EDGED_MQTT_PASSWORD_FILE",
        "EDGED_SERVER_NAME",
        "EDGED_TARGET",
        "EDGED_TOKEN",
        "EDGED_TOKEN_FILE",
    }
)


def variables() -> dict[str, tuple[Path, object]]:
    """Return every variable with the path and type of the key or table that it sets."""
    names: dict[str, tuple[Path, object]] = {}
    for table in tables().walk():
        *outer, last = table.path or ("",)
        if NAME in outer:
            continue  # set with the whole table around it
        if last == NAME:
            names[variable(tuple(outer))] = tuple(outer), dict[str, table.kind]  # type: ignore[name-defined]
            continue
        if table.is_optional:
            names[variable(table.path)] = table.path, table.kind
        names.update({key.variable: (key.path, key.hint) for key in table.keys})
    return names


def read_variables(environment: Mapping[str, str]) -> tuple[Source, list[Problem], list[str]]:
    """Return the values in the environment, the mistakes in them, and warnings about unknown names.

    Other programs may also set variables that begin with `EDGED_`, so an unknown variable usually gives only a warning.
    An unknown variable is a mistake if its name is the variable of a table, or continues such a variable.
    """
    known = variables()
    tree: dict[str, object] = {}
    places: dict[Path, Origin] = {}
    problems: list[Problem] = []
    # Shorter names first, so that a table as a whole comes before its keys.
    for name in sorted(known, key=len):
        text = environment.get(name, "").strip()
        if _is_torn(text):
            problems.append(Problem(Origin("environment", name), "", "the value is not valid UTF-8"))
        elif text:
            path, hint = known[name]
            _put(tree, path, parsed(text, hint))
            places[path] = Origin("environment", name)
    source = Source(tree, places, Origin("environment"))
    problems += _problems(source, faults(tree, tables()))
    strangers = [name for name in environment if name.startswith(_PREFIX) and name not in known.keys() | OTHERS]
    warnings: list[str] = []
    for name in sorted(strangers):
        close = nearest(name, sorted(known))
        meant = f"; did you mean {close}?" if close else ""
        # A table's own name is also a mistake: EDGED_ACCESS would restrict nothing, although the user expects it to.
        if any(f"{name}_".startswith(f"{prefix}_") for prefix in _prefixes()):
            problems.append(Problem(Origin("environment", _whole(name)), "", f"unknown variable{meant}"))
        else:
            warnings.append(f"{_whole(name)} in the environment is unknown to edged{meant}")
    return source, problems, warnings


def _is_torn(text: str) -> bool:
    """Whether a text holds bytes that are not UTF-8, which Python represents as surrogates."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _whole(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def parsed(text: str, hint: object) -> object:
    """Parse the non-empty text of a variable for a key of type `hint`; return the text itself if it is not TOML."""
    if text[0] in "\"'":
        quoted = _toml(text)
        return quoted if isinstance(quoted, str) else text
    if core(hint) is str or choices(hint):
        return text
    if core(item_of(hint)) is str or choices(item_of(hint)):
        # A single bracket does not show a list, because an IPv6 address begins with one, too.
        listed = _toml(text) if text.startswith(('["', "['", "[]")) else None
        return listed if isinstance(listed, list) else [each.strip() for each in text.split(",") if each.strip()]
    value = _toml(text)
    return text if value is None else value


def _toml(text: str) -> object:
    """Parse one TOML value; return None if the text is not exactly one value."""
    try:
        tree = msgspec.toml.decode(f"value = {text}")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return tree["value"] if set(tree) == {"value"} else None


def _put(tree: dict[str, object], path: Path, value: object) -> None:
    *outer, last = path
    for name in outer:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):  # the value of the whole table is wrong; that was already reported
            return
        tree = inner
    tree[last] = value


def _prefixes() -> Iterator[str]:
    """Yield the prefix of each table's variables."""
    for table in tables().walk():
        if NAME in table.path:
            yield variable(table.path[: table.path.index(NAME)])
            continue
        if table.path:
            yield variable(table.path)
        yield from (key.variable for key in table.keys if key.is_table)


# A statement of several lines is an array, an inline table or a string; its last line contains one of these.
_MAY_END = re.compile(r"[\]}]|\"{3}|'{3}")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of each table's first header and of each key of a valid TOML file.

    TOML parsers do not report lines, so statements are parsed one by one. The tables of an array are called `name[0]`,
    `name[1]` and so on. If an inline table has exactly one key, this key has the line of the statement. The keys of
    other inline tables have no line.
    """
    lines: dict[Path, int] = {}
    entries: dict[Path, int] = {}  # index of the last table of each array so far
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
            continue  # the statement continues in the next line
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
    """Return the path of the only key or header in a parsed statement."""
    names: list[str] = []
    while isinstance(tree, dict) and len(tree) == 1:
        ((name, tree),) = tree.items()
        names.append(name)
    return tuple(names)


def _within(names: Path, entries: dict[Path, int]) -> Path:
    """Return the path of a header. If a name in the header is an array of tables, the path has the name of the array's
    last table instead, such as `name[1]`."""
    path: Path = ()
    for name in names:
        path = (*path, name)
        if path in entries:
            path = (*path[:-1], f"{name}[{entries[path]}]")
    return path


Options: TypeAlias = Mapping[str, tuple[str, object]]  # an option's name and value, by the top-level key that it sets

_NOTHING: Mapping[str, str] = {}
_NO_OPTIONS: Options = {}
_LINE = re.compile(r" \(at line (\d+), column \d+\)")


class Reading(msgspec.Struct, frozen=True):
    """The configuration as read. If there are problems, `config` has the valid values only, or the defaults if keys
    contradict each other. `sources` are in order of priority, the lowest first."""

    config: Config
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    sources: tuple[Source, ...]

    def origin(self, path: Path) -> Origin:
        """Return where the value of a key was set."""
        return next((source.origin(path) for source in reversed(self.sources) if source.has(path)), DEFAULT)

    def summary(self) -> str:
        """Return a line for the log: the file, and the names of variables and options that override it."""
        file, *above = self.sources
        named = [
            f"{source.whole}: {', '.join(sorted(map(str, source.places.values())))}" for source in above if source.tree
        ]
        return "; ".join([str(file.whole) if file.whole != DEFAULT else "the defaults", *named])

    def required(self) -> Config:
        """Return the configuration. Raises ConfigError, with the first problem and the number of other problems."""
        if not self.problems:
            return self.config
        first, *more = self.problems
        file = first.origin.name if first.origin.kind == "file" else ""
        rest = f" (and {len(more)} more; see: edged config check {file}".rstrip() + ")" if more else ""
        raise ConfigError(f"configuration {first}{rest}")


def load(file: File | None, environment: Mapping[str, str] = _NOTHING) -> Config:
    """Return the configuration of a file and of variables. Raises ConfigError, in one line, for any mistake in them."""
    return read(file, environment).required()


def read(
    file: File | None,
    environment: Mapping[str, str] = _NOTHING,
    options: Options = _NO_OPTIONS,
) -> Reading:
    """Read all sources, and collect all mistakes in them."""
    filed, problems = read_file(file) if file is not None else (Source(), list[Problem]())
    exported, wrong, warnings = read_variables(environment)
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
        problems = _problems(reading, contradictions(merged, tables()))
    return Reading(_config(merged), tuple(problems), tuple(warnings), sources)


def _config(tree: Mapping[str, object]) -> Config:
    """Return the configuration with a tree's valid values; the defaults if its keys contradict each other."""
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
    """Return the values of a file and the mistakes in it."""
    whole = Origin("file", str(file))
    try:
        text = read_regular(file).decode("utf-8-sig")  # editors of Windows write a byte order mark
        tree = msgspec.toml.decode(text)
    except OSError as error:
        return Source(whole=whole), [Problem(whole, "", f"cannot be read: {error.strerror or error}")]
    except RecursionError:
        return Source(whole=whole), [Problem(whole, "", "not valid TOML: brackets are nested too deep")]
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        why = f"not valid TOML: byte 0x{error.object[error.start]:02x} is not UTF-8; save the file as UTF-8"
        return Source(whole=whole), [Problem(Origin("file", str(file), line), "", why)]
    except (msgspec.DecodeError, ValueError) as error:
        return Source(whole=whole), [_not_toml(file, str(error))]
    places = {path: Origin("file", str(file), line) for path, line in key_lines(text).items()}
    source = Source(tree, places, whole)
    return source, _problems(source, faults(tree, tables()))


def _not_toml(file: File, message: str) -> Problem:
    """Return a parser's error as a problem. The parser's message names the line unless the file ended too early."""
    found = _LINE.search(message)
    origin = Origin("file", str(file), int(found[1]) if found else 0)
    return Problem(origin, "", f"not valid TOML: {_LINE.sub('', message)}")


def _problems(source: Source | Reading, found: Iterable[Fault]) -> list[Problem]:
    return [Problem(source.origin(fault.path), dotted(fault.path), fault.message) for fault in found]


def _over(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Merge two trees. Tables are merged key by key. Other values of `above` replace the values of `below`."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        merged[name] = _over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged

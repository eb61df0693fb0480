"""The configuration in the environment: `EDGED_` and a key's names in capitals, `EDGED_ENGINES_BUDGET_MB`.

A text is given as it is, a number and true or false as in TOML, a list with commas or as TOML, a table as a TOML inline
table: EDGED_MODELS='{ door = "/srv/door.onnx" }'. An empty variable counts as none; an empty text is `""`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from edged.config.checking import Origin, Problem, Source, faults, nearest
from edged.config.keys import Path, Table, choices, core, dotted, item_of, tables, variable

_PREFIX = "EDGED_"
# What other parts of edged, clients above all, read under these names. A test holds it against the sources.
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


def variables(root: Table | None = None) -> dict[str, Path]:
    """Return every variable with the key or optional table that it sets."""
    names: dict[str, Path] = {}
    for table in (root or tables()).walk():
        if table.is_optional:
            names[variable(table.path)] = table.path
        names.update({key.variable: key.path for key in table.keys})
    return names


def read(environment: Mapping[str, str], root: Table | None = None) -> tuple[Source, list[Problem], list[str]]:
    """Read the environment: its values, what is wrong with them, and warnings about unknown names.

    An unknown name is only a warning, since other programs share the environment, unless it is or begins as a table's.
    """
    root = root or tables()
    known, hints = variables(root), _hints(root)
    tree: dict[str, object] = {}
    places: dict[Path, Origin] = {}
    problems: list[Problem] = []
    # Shorter ones first: a table as a whole before its keys.
    for name in sorted(known, key=len):
        text = environment.get(name, "").strip()
        if _is_torn(text):
            problems.append(Problem(Origin("environment", name), "", "it is not UTF-8"))
        elif text:
            _put(tree, known[name], parsed(text, hints[name]))
            places[known[name]] = Origin("environment", name)
    source = Source(tree, places, Origin("environment"))
    problems += [Problem(source.origin(fault.path), dotted(fault.path), fault.message) for fault in faults(tree, root)]
    strangers = [name for name in environment if name.startswith(_PREFIX) and name not in known.keys() | OTHERS]
    warnings: list[str] = []
    for name in sorted(strangers):
        close = nearest(name, sorted(known))
        meant = f"; did you mean {close}?" if close else ""
        # A table's own name is among them: EDGED_ACCESS would restrict nothing, which its user has to know.
        if any(f"{name}_".startswith(f"{prefix}_") for prefix in _prefixes(root)):
            problems.append(Problem(Origin("environment", _whole(name)), "", f"unknown variable{meant}"))
        else:
            warnings.append(f"{_whole(name)} in the environment is unknown to edged{meant}")
    return source, problems, warnings


def _is_torn(text: str) -> bool:
    """Whether it holds bytes that are not UTF-8, which Python represents as surrogates."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _whole(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def parsed(text: str, hint: object) -> object:
    """Return the value of a variable's text for a key of a type; the text itself if the type does not take it."""
    if text[0] in "\"'":
        quoted = _toml(text)
        return quoted if isinstance(quoted, str) else text
    if core(hint) is str or choices(hint):
        return text
    if core(item_of(hint)) is str or choices(item_of(hint)):
        # An IPv6 address begins with a bracket as well.
        listed = _toml(text) if text.startswith(('["', "['", "[]")) else None
        return listed if isinstance(listed, list) else [each.strip() for each in text.split(",") if each.strip()]
    value = _toml(text)
    return text if value is None else value


def _toml(text: str) -> object:
    """Parse one TOML value; None if it is not exactly one."""
    try:
        tree = msgspec.toml.decode(f"value = {text}")
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return tree["value"] if set(tree) == {"value"} else None


def _put(tree: dict[str, object], path: Path, value: object) -> None:
    *outer, last = path
    for name in outer:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):  # the table as a whole is wrong, and reported
            return
        tree = inner
    tree[last] = value


def _hints(root: Table) -> dict[str, object]:
    hints: dict[str, object] = {}
    for table in root.walk():
        hints[variable(table.path)] = table.kind
        hints.update({key.variable: key.hint for key in table.keys})
    return hints


def _prefixes(root: Table) -> Iterator[str]:
    """Yield the prefixes of tables' variables."""
    for table in root.walk():
        if table.path:
            yield variable(table.path)
        yield from (key.variable for key in table.keys if key.is_table)

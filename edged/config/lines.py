"""In which line of a TOML file a key stands. Parsers do not tell; this reads just enough of a valid file to know.

Keys in inline tables and arrays are in no line of their own: their statement's is the nearest that is known.
"""

from __future__ import annotations

import json
import re

from edged.config.keys import Path

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

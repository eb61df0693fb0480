"""The commented file that a box begins with: every key, with what it means, takes, and is without being set."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from edged.config.hints import choices, core
from edged.config.keys import Key, Table, dotted, tables
from edged.config.words import key as toml_key
from edged.config.words import toml

_WIDTH = 100
_HEAD = (
    "The configuration of edged. Every key is here with its default, behind a #: take that away and change the value."
    " Then: edged config check, and sudo edged reload. Each key can also be set in the environment, by the name in"
    " brackets, which goes before this file. Unknown keys are refused."
)


def template(root: Table | None = None) -> str:
    """The whole file. As it is, it changes nothing."""
    return "\n\n".join(_blocks(root or tables())) + "\n"


def _blocks(root: Table) -> Iterator[str]:
    yield _comment(_HEAD)
    yield from _inside(root)


def _inside(table: Table) -> Iterator[str]:
    """Plain keys come first: behind the header of a table they would be that table's."""
    yield from (_block(key) for key in table.keys if not key.is_table)
    yield from (_named(key) for key in table.keys if key.is_table)
    for inner in table.tables:
        yield from _table(inner)


def _table(table: Table) -> Iterator[str]:
    header = f"[{dotted(table.path)}]"
    if table.is_optional:
        yield f"{_comment(f'{table.meaning} Take the # before {header} away as well.')}\n#{header}"
    else:
        yield f"{_comment(table.meaning)}\n{header}"
    yield from _inside(table)


def _block(key: Key) -> str:
    value = key.example if key.default is None else key.default
    return f"{_comment(told(key))}\n#{key.path[-1]} = {toml(value)}"


def _named(key: Key) -> str:
    """A table whose names the user chooses, with an example or more of what may be in it."""
    example = key.example if isinstance(key.example, dict) else {}
    entries = "\n".join(f"#{toml_key(name)} = {toml(value)}" for name, value in example.items())
    return f"{_comment(told(key))}\n[{key.name}]\n{entries}"


def told(key: Key) -> str:
    """What a key means and takes, and its name in the environment."""
    takes = f" {key.allowed[0].upper()}{key.allowed[1:]}." if _is_telling(key) else ""
    example = "" if key.example is None or key.is_table else f" Such as {toml(key.example)}."
    unset = " Not set unless it is here." if key.default is None else ""
    return f"{key.meaning}{takes}{example}{unset} [{key.variable}]"


def _is_telling(key: Key) -> bool:
    """Whether it is worth saying what a key takes, besides its meaning: a number's range, choices that are not told."""
    return core(key.hint) in (int, float) or any(toml(each) not in key.meaning for each in choices(key.hint))


def _comment(text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in lines)

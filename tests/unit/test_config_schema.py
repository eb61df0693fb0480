"""The schema says everything that is made from it: meanings, names in the environment, words for what is allowed."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from edged.config.keys import Key, Table, all_keys, allowed, tables, toml
from edged.config.reading import OTHERS, variables
from edged.config.schema import Config

KEYS = all_keys()
SOURCES = Path(__file__).parents[2] / "edged"


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_key_says_what_it_means(key: Key) -> None:
    assert key.meaning.endswith("."), 'say it in the field: msgspec.Meta(description="...")'


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_a_key_whose_default_shows_nothing_has_an_example_that_it_takes(key: Key) -> None:
    if key.default in (None, "", (), {}):
        assert key.example is not None, "give one in the field: msgspec.Meta(examples=[...])"
    if key.example is not None:
        msgspec.convert(key.example, key.hint)


@pytest.mark.parametrize("table", list(tables().walk()), ids=lambda table: ".".join(table.path) or "top")
def test_every_table_says_what_it_is_and_has_its_own_keys_first(table: Table) -> None:
    assert table.meaning.endswith(".")
    inner = {each.path[-1] for each in table.tables} | {key.path[-1] for key in table.keys if key.is_table}
    first = min((table.names.index(name) for name in inner), default=len(table.names))
    if not table.path:
        assert set(table.names[first:]) == inner, "a key behind a table's header would be that table's"


def test_the_keys_are_those_of_the_configuration() -> None:
    """Read off the types another way: every name that a configuration has."""

    def names(struct: msgspec.Struct, prefix: str = "") -> set[str]:
        found = set()
        for name in struct.__struct_fields__:
            value = getattr(struct, name)
            inside = isinstance(value, msgspec.Struct)
            found |= names(value, f"{prefix}{name}.") if inside else {prefix + name}
        return found

    config = msgspec.convert({"frigate": {}}, Config)
    assert {key.name for key in KEYS} == names(config)


def test_no_two_keys_share_a_name_in_the_environment_nor_with_what_else_is_there() -> None:
    named = [key.variable for key in KEYS] + ["EDGED_FRIGATE"]
    assert len(named) == len(set(named))
    assert set(named) == set(variables())
    assert not set(named) & OTHERS
    assert variables()["EDGED_ENGINES_BUDGET_MB"] == ("engines", "budget_mb")
    assert all(re.fullmatch("EDGED_[A-Z0-9_]+", name) for name in named)


def test_every_variable_that_the_sources_read_is_a_key_or_known_to_be_none() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        if path.parent.name != "proto" and path.name != "formats.py":  # whose are names of the journal's fields
            found |= set(re.findall(r'"(EDGED_[A-Z0-9_]+)"', path.read_text()))
    assert "EDGED_TARGET" in found
    assert found <= set(variables()) | OTHERS, "name it in edged/config/reading.py"


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (bool, "true or false"),
        (str, "a text in quotes"),
        (int, "a whole number"),
        (Annotated[int, Meta(ge=1, le=5)], "a whole number from 1 to 5"),
        (Annotated[int, Meta(gt=0, le=1 << 30)], "a whole number from 1 to 1073741824"),
        (Annotated[int, Meta(ge=2)], "a whole number, at least 2"),
        (Annotated[float, Meta(gt=0, le=1e6)], "a number above 0, 1000000 at most"),
        (Annotated[float, Meta(ge=0.5, le=1)], "a number from 0.5 to 1"),
        (Annotated[float, Meta(ge=0, le=1)] | None, "a number from 0 to 1"),
        (Literal["b", "a", "c"], '"b", "a" or "c"'),
        (tuple[str, ...], "a list, each a text in quotes"),
        (tuple[Literal["a"], ...], 'a list, each "a"'),
        (dict[str, int], "a table, each value a whole number"),
        (Annotated[typing.Optional[str], Meta(description="x")], "a text in quotes"),  # noqa: UP045
    ],
)
def test_what_is_allowed_in_words(hint: object, words: str) -> None:
    assert allowed(hint) == words


@pytest.mark.parametrize(
    "value",
    [True, 5, -2.5, 1e300, "", 'a"b\\\n\x7fé', ["x", 1], [], {"a b": {"c": [1.0]}, "d.e": "x"}, {}, "\U0001f600"],
)
def test_a_value_is_written_as_toml_reads_it(value: object) -> None:
    assert msgspec.toml.decode(f"v = {toml(value)}") == {"v": value}

"""Derived from the schema: the commented file, the reference page, names of variables, descriptions of types."""

from __future__ import annotations

import ast
import re
import typing
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

import edged
from edged.config import Frigate, load
from edged.config.keys import NAME, Key, all_keys, allowed, tables, toml
from edged.config.reading import OTHERS, variables
from edged.config.schema import Config
from edged.config.tables import Describe
from edged.config.template import reference, template
from edged.errors import ConfigError

KEYS = all_keys()
_ZONE = {"points": [[0, 0], [1, 0], [1, 1]]}
_LINE = {"points": [[0, 0.5], [1, 0.5]]}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_key_has_a_meaning_and_an_example_if_its_default_is_empty(key: Key) -> None:
    assert key.meaning.endswith("."), 'add msgspec.Meta(description="...") to the field'
    if key.default in (None, "", (), {}):
        assert key.example is not None, "add msgspec.Meta(examples=[...]) to the field"
    if key.example is not None:
        msgspec.convert(key.example, key.hint)


def test_each_key_is_read_somewhere() -> None:
    """The other tests pass for a key that nothing reads."""
    package = Path(edged.__file__).parent
    unread = {key.path[-1] for key in KEYS}
    for path in package.rglob("*.py"):
        if package / "proto" in path.parents or path == package / "config" / "schema.py":
            continue
        if unread & set(re.findall(r"\.([a-z]\w*)", text := path.read_text())):  # parsing all files takes seconds
            unread -= {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    assert not unread


def test_tables_have_a_meaning_and_their_keys_first() -> None:
    for table in tables().walk():
        assert table.meaning.endswith(".")
    top = tables()
    inner = {each.field for each in top.tables} | {key.path[-1] for key in top.keys if key.is_table}
    first = min(top.names.index(name) for name in inner)
    assert set(top.names[first:]) == inner, "a key after a table's header would belong to that table"


def test_keys_are_the_fields_of_the_configuration() -> None:
    def names(struct: msgspec.Struct, prefix: str = "") -> set[str]:
        found = set()
        for name in struct.__struct_fields__:
            value = getattr(struct, name)
            if isinstance(value, dict) and all(isinstance(each, msgspec.Struct) for each in value.values()) and value:
                found |= names(value["NAME"], f"{prefix}{name}.NAME.")
            else:
                found |= names(value, f"{prefix}{name}.") if isinstance(value, msgspec.Struct) else {prefix + name}
        return found

    camera = {"source": "s", "model": "m", "zones": {"NAME": _ZONE}, "lines": {"NAME": _LINE}}
    pipeline, frames = {"detect": "d", "then": "t"}, {"collect": {"NAME": {}}}
    whole = {"frigate": {}, "frames": frames, "pipelines": {"NAME": pipeline}, "cameras": {"NAME": camera}}
    whole["describe"] = {"NAME": {"camera": "c", "model": "m"}}
    assert {key.name for key in KEYS} == names(msgspec.convert(whole, Config))


def test_variables_are_unique_and_known_to_the_sources() -> None:
    named = [key.variable for key in KEYS if NAME not in key.path] + [
        "EDGED_FRIGATE",
        "EDGED_FRAMES_COLLECT",
        "EDGED_PIPELINES",
        "EDGED_DESCRIBE",
        "EDGED_CAMERAS",
    ]
    assert len(named) == len(set(named))
    assert set(named) == set(variables())
    assert not set(named) & OTHERS
    assert variables()["EDGED_ENGINES_BUDGET_MB"][0] == ("engines", "budget_mb")
    assert all(re.fullmatch("EDGED_[A-Z0-9_]+", name) for name in named)
    found = set()
    for path in Path(edged.__file__).parent.rglob("*.py"):
        if path.parent.name != "proto" and path.name != "formats.py":  # formats.py has fields of the journal
            found |= set(re.findall(r'"(EDGED_[A-Z0-9_]+)"', path.read_text()))
    assert "EDGED_TARGET" in found
    assert found <= set(variables()) | OTHERS, "add it to OTHERS in edged/config/reading.py"


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (bool, "true or false"),
        (str, "a string in quotes"),
        (int, "a whole number"),
        (Annotated[int, Meta(ge=1, le=5)], "a whole number from 1 to 5"),
        (Annotated[int, Meta(gt=0, le=1 << 30)], "a whole number from 1 to 1073741824"),
        (Annotated[int, Meta(ge=2)], "a whole number, at least 2"),
        (Annotated[float, Meta(gt=0, le=1e6)], "a number above 0, at most 1000000"),
        (Annotated[float, Meta(ge=0.5, le=1)], "a number from 0.5 to 1"),
        (Annotated[float, Meta(ge=0, le=1)] | None, "a number from 0 to 1"),
        (Literal["b", "a", "c"], '"b", "a" or "c"'),
        (tuple[Literal["a"], ...], 'a list, each item "a"'),
        (dict[str, int], "a table, each value a whole number"),
        (Annotated[typing.Optional[str], Meta(description="x")], "a string in quotes"),  # noqa: UP045
    ],
)
def test_allowed_describes_the_type_in_words(hint: object, words: str) -> None:
    assert allowed(hint) == words


@pytest.mark.parametrize(
    "value",
    [True, 5, -2.5, 1e300, "", 'a"b\\\n\x7fé', ["x", 1], [], {"a b": {"c": [1.0]}, "d.e": "x"}, {}, "\U0001f600"],
)
def test_toml_reads_what_it_writes(value: object) -> None:
    assert msgspec.toml.decode(f"v = {toml(value)}") == {"v": value}


# -- the commented file and the reference ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "config"),
    [("", "", Config()), ("#[frigate]", "[frigate]", Config(frigate=Frigate()))],
    ids=["unchanged", "frigate"],
)
def test_template_has_the_defaults(tmp_path: Path, old: str, new: str, config: Config) -> None:
    file = tmp_path / "edged.toml"
    file.write_text(template().replace(old, new) if old else template())
    assert load(file) == config


def test_template_key_after_a_commented_header_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "edged.toml"
    file.write_text(template().replace("#timeout_ms", "timeout_ms"))
    with pytest.raises(ConfigError, match=r"timeout_ms: unknown key; it is a key of \[frigate\]"):
        load(file)


def test_template_without_comment_signs_has_every_key_in_order() -> None:
    tree = msgspec.toml.decode(re.sub(r'(?m)^#(\[|[a-z_]+ = |")', r"\1", template()))
    for key in KEYS:
        value = tree
        for name in key.path:
            value = value[name]
        expected = key.example if key.is_table or key.default is None else key.default
        assert msgspec.convert(value, key.hint) == msgspec.convert(msgspec.to_builtins(expected), key.hint)
    plain = [key.path[-1] for key in KEYS if not key.is_table]
    tables_of_names = {name for key in KEYS if key.is_table for name in key.example}  # type: ignore[attr-defined]
    found = re.findall(r"(?m)^#([a-z_]+) = ", template())
    assert [name for name in found if name not in tables_of_names] == plain
    assert max(map(len, template().splitlines())) <= 100


def test_reference_equals_the_page() -> None:
    stored = (ROOT / "docs" / "configuration.md").read_text()
    assert stored.endswith("\n".join(reference())), "run make reference"


def test_describe_prompt_with_an_unknown_word_is_refused() -> None:
    assert Describe(camera="gate", model="m", prompt="{camera}: {detections}, as {} JSON")
    with pytest.raises(ValueError, match=r"prompt has \{cam\}"):
        Describe(camera="gate", model="m", prompt="{cam}: {detections}")

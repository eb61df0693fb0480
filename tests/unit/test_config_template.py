"""The commented file that a box begins with, the one that is installed, and the reference in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from edged.config import Config, Frigate, load
from edged.config.keys import Key, all_keys, toml
from edged.config.template import describe, template
from edged.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_as_it_is_it_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "edged.toml"
    file.write_text(template())
    assert load(file) == Config()


def test_every_key_stands_there_once_in_the_order_of_the_schema() -> None:
    lines = [line for line in template().splitlines() if re.match(r"#?\[|#[a-z_]+ = ", line)]
    table, found = "", []
    for line in lines:
        if "[" in line.partition("=")[0]:
            table = line.strip("#[]") + "."
        else:
            found.append(table + line[1:].partition(" = ")[0])
    named = {key.name for key in all_keys() if key.is_table}
    assert [name for name in found if name.rpartition(".")[0] not in named] == [
        key.name for key in all_keys() if not key.is_table
    ]
    for name in named:
        assert f"\n[{name}]\n#" in template()


def test_taking_all_signs_away_gives_a_file_of_the_defaults_and_examples(tmp_path: Path) -> None:
    tree = msgspec.toml.decode(re.sub(r'(?m)^#(\[|[a-z_]+ = |")', r"\1", template()))
    for key in all_keys():
        value = tree
        for name in key.path:
            value = value[name]
        wanted = key.example if key.is_table or key.default is None else key.default
        assert msgspec.convert(value, key.hint) == msgspec.convert(msgspec.to_builtins(wanted), key.hint)


def test_the_optional_table_is_opened_by_its_header_alone(tmp_path: Path) -> None:
    file = tmp_path / "edged.toml"
    file.write_text(template().replace("#[frigate]", "[frigate]"))
    assert load(file).frigate == Frigate()


def test_a_key_behind_the_wrong_header_is_told_where_it_belongs(tmp_path: Path) -> None:
    """As when somebody forgets to take the sign before [frigate] away."""
    file = tmp_path / "edged.toml"
    file.write_text(template().replace("#timeout_ms", "timeout_ms"))
    with pytest.raises(ConfigError, match=r"timeout_ms: unknown key; it is a key of \[frigate\]"):
        load(file)


def test_every_line_fits_a_terminal() -> None:
    assert max(map(len, template().splitlines())) <= 100


def test_the_installed_file_is_what_the_command_prints() -> None:
    assert (ROOT / "systemd" / "edged.toml").read_text() == template(), "edged config init > systemd/edged.toml"


@pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name)
def test_the_reference_has_a_row_for_every_key(key: Key) -> None:
    default = "" if key.default is None or key.is_table else f"`{toml(key.default)}`"
    meaning = describe(key).removesuffix(f" [{key.variable}]")
    row = f"| `{key.name}` | {default} | {meaning} |"
    assert row in (ROOT / "docs" / "configuration.md").read_text().splitlines()

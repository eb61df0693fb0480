"""The configuration file: its keys, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.config import Config, Frigate, load
from edged.config.checking import contradictions, faults
from edged.config.keys import dotted, tables
from edged.config.reading import key_lines
from edged.config.template import disclosed
from edged.errors import ConfigError


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "edged.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("", Config()),
        ("[zmq]", Config()),
        ("[frigate]", Config(frigate=Frigate())),  # an empty table opens the endpoint
        ("stop_seconds = 3", Config(stop_seconds=3.0)),
        (b"\xef\xbb\xbfstop_seconds = 3", Config(stop_seconds=3.0)),  # a byte order mark, as some editors write it
    ],
)
def test_load_valid_file_returns_its_values(tmp_path: Path, text: str | bytes, config: Config) -> None:
    assert load(written(tmp_path, text)) == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[hosts]\narena = 5", "did you mean `arena_mb`"),
        ("qqqqqqqq = 1", "known keys: listen, state"),
        ("listen = [5]", "listen"),
        ("stop_seconds = nan", "stop_seconds"),
        ("listen = [", "not valid TOML"),
        ("a = 1\na = 2", "not valid TOML"),
        (b'\nstate = "\xff"', "edged.toml:2: not valid TOML: byte 0xff is not UTF-8"),
        (f"listen = [{{{'.'.join('a' * 3000)} = 1}}]", "listen[0]"),
        (f"state = [{{{'.'.join('a' * 3000)} = 1}}]", "nested too deep"),
    ],
    ids=range(9),
)
def test_load_mistake_is_one_line_with_file_and_key(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(written(tmp_path, text))
    assert "edged.toml" in str(raised.value)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_load_missing_file_or_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(ConfigError, match="cannot be read"):
            load(path)


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """A table with secret keys."""

    password: Annotated[str, msgspec.Meta(min_length=9, extra={"secret": True})] = ""
    tokens: Annotated[dict[str, int], msgspec.Meta(extra={"secret": True})] = {}
    ports: tuple[Annotated[int, msgspec.Meta(le=9)], ...] = ()


def test_faults_and_disclosed_hide_secrets() -> None:
    root = tables(Login)
    found = {fault.path: fault.message for fault in faults({"password": "hunter2", "tokens": {"a": "xyz"}}, root)}
    assert set(found) == {("password",), ("tokens", "a")}
    assert "hunter2" not in found["password",]
    assert "xyz" not in found["tokens", "a"]
    password, _, ports = root.keys
    assert [disclosed(password, value) for value in ("hunter2", "")] == ["(hidden)", ""]
    assert disclosed(ports, (1,)) == (1,)


def test_faults_of_a_list_have_their_index() -> None:
    found = [(dotted(fault.path), fault.message) for fault in faults({"ports": [1, "x", 3, 10]}, tables(Login))]
    assert found == [
        ("ports[1]", 'expected a whole number, at most 9, got "x"'),
        ("ports[3]", "expected a whole number, at most 9, got 10"),
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*Config.__struct_fields__, "budget_mb", "unix", "x[0]", ""]), inner)
        ),
        max_leaves=20,
    )
)
def test_faults_of_any_tree_agree_with_msgspec(tree: object) -> None:
    """`msgspec.convert` refuses a tree if and only if `faults` or `contradictions` finds something in it."""
    if not isinstance(tree, dict):
        return
    wrong = [*faults(tree, tables()), *contradictions(tree, tables())]
    try:
        msgspec.convert(tree, Config)
    except msgspec.ValidationError:
        assert wrong
    else:
        assert not wrong


# -- lines ----------------------------------------------------------------------------------------------------------

FILE = '''# a comment = 1
listen = [   # [not.a.table]
  "a", # x = 1
  "b = 2"]

state = """
[hosts]
cache = 1 \\""" still
""""
  [ engines ] # [x]
budget_mb=5
"keep free" = '[a'
a . 'b'."c\\n" = {d = 1, e = [
  2]}

[[access.clients]]
name = \'\'\'
name = 2\'\'\'
[[access.clients]]
name = "n"
[access.clients.limits]
mb = 1
[other]\r
last = true'''


def test_key_lines_has_the_line_of_every_key() -> None:
    assert key_lines(FILE) == {
        ("listen",): 2,
        ("state",): 6,
        ("engines",): 10,
        ("engines", "budget_mb"): 11,
        ("engines", "keep free"): 12,
        ("engines", "a"): 13,
        ("engines", "a", "b"): 13,
        ("engines", "a", "b", "c\n"): 13,
        ("access", "clients"): 16,
        ("access", "clients[0]"): 16,
        ("access", "clients[0]", "name"): 17,
        ("access", "clients[1]"): 19,
        ("access", "clients[1]", "name"): 20,
        ("access", "clients[1]", "limits"): 21,
        ("access", "clients[1]", "limits", "mb"): 22,
        ("other",): 23,
        ("other", "last"): 24,
    }


@given(st.sampled_from(["", "# only", "[[", "a = ", 'a = "', "[a\nb = 1"]), st.text("ab=[]{}\"'#\n. \\,", max_size=60))
def test_key_lines_of_any_text_are_within_the_text(beginning: str, text: str) -> None:
    lines = (beginning + text).count("\n") + 1
    assert all(1 <= line <= lines for line in key_lines(beginning + text).values())

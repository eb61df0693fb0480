"""In which line a key stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.config.reading import key_lines

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


def test_every_key_has_the_line_where_it_stands() -> None:
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


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# only", "=", "[", "[[", "a", "a = ", 'a = "', "a = [", "[a\nb = 1", '"']
)
def test_what_is_no_toml_does_no_harm(text: str) -> None:
    key_lines(text)


@given(st.text(alphabet="ab=[]{}\"'#\n. \\,", max_size=60))
def test_whatever_is_in_a_file_it_comes_to_an_end(text: str) -> None:
    lines = text.count("\n") + 1
    assert all(1 <= line <= lines for line in key_lines(text).values())

"""Inventories: boxes and defaults, invalid files, selection."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edged.cli.app import app
from edged.cli.inventory import Box, load
from edged.client.credentials import Credentials
from edged.errors import ConfigError, InvalidInput

GOOD = """
[defaults]
ca = "ca.pem"
timeout_s = 5

[boxes.dock1]
target = "tls:dock1.example:8001"
groups = ["dock", "north"]

[boxes."dock 2"]
target = "grpcs://dock2.example"
groups = ["dock"]
ca = "/etc/other.pem"
certificate = "me.pem"
key = "me.key"
server_name = "box2"
timeout_s = 9.5

[boxes.here]
target = "unix:/run/edged/edged.sock"
"""


def written(folder: Path, text: str) -> Path:
    place = folder / "boxes.toml"
    place.write_text(text)
    return place


def test_load_boxes_have_their_values_or_the_defaults(tmp_path: Path) -> None:
    first, second, third = load(written(tmp_path, GOOD)).boxes
    assert (first.name, first.target, first.groups) == ("dock1", "tls:dock1.example:8001", ("dock", "north"))
    assert (first.settings.ca, first.settings.timeout_s) == (str(tmp_path / "ca.pem"), 5)
    assert (second.name, second.settings.ca, second.settings.timeout_s) == ("dock 2", "/etc/other.pem", 9.5)
    assert second.credentials({}) == Credentials(
        "/etc/other.pem", str(tmp_path / "me.pem"), str(tmp_path / "me.key"), "", "box2"
    )
    assert (third.groups, third.settings.certificate) == ((), "")


def test_credentials_missing_values_come_from_the_environment(tmp_path: Path) -> None:
    first, second, _ = load(written(tmp_path, GOOD)).boxes
    environment = {"EDGED_CA": "/env/ca", "EDGED_CERTIFICATE": "/env/c", "EDGED_KEY": "/env/k", "EDGED_TOKEN": "secret"}
    assert first.credentials(environment) == Credentials(str(tmp_path / "ca.pem"), "/env/c", "/env/k", "secret")
    assert second.credentials(environment).certificate == str(tmp_path / "me.pem")
    assert Box("x", "here").credentials(environment) == Credentials("/env/ca", "/env/c", "/env/k", "secret")
    (tmp_path / "token").write_text("of-the-file")
    (tmp_path / "token").chmod(0o600)
    (box,) = load(written(tmp_path, '[boxes.a]\ntarget = "tls:a"\ntoken_file = "token"\n')).boxes
    assert box.credentials(environment).token == "of-the-file"


def test_credentials_certificate_without_its_key_is_not_completed(tmp_path: Path) -> None:
    pair, own = 'certificate = "c.pem"\nkey = "k.pem"', 'target = "a"\ncertificate = "own.pem"'
    (box,) = load(written(tmp_path, f"[defaults]\n{pair}\n[boxes.a]\n{own}\n")).boxes
    with pytest.raises(InvalidInput, match="client certificate"):
        box.credentials({"EDGED_KEY": "/env/k"})


def test_select_groups_and_names_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = load(written(tmp_path, GOOD))
    assert [box.name for box in found.select()] == ["dock1", "dock 2", "here"]
    assert [box.name for box in found.select(groups=["dock"])] == ["dock1", "dock 2"]
    assert [box.name for box in found.select(groups=["north"], names=["here"])] == ["dock1", "here"]
    with pytest.raises(InvalidInput, match="no group 'dok'; did you mean 'dock'"):
        found.select(groups=["dok"])
    with pytest.raises(InvalidInput, match="no box 'dock3'; did you mean 'dock1'"):
        found.select(names=["dock3"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no box is defined"),
        ("boxes = 3", "the file: boxes: expected a table, got a whole number"),
        ('[boxes]\na = "x"', r"expected a table, got a string"),
        ("[boxes.a", "is not valid TOML"),
        ('[boxes.a]\ntarget = "tls:a"\ntagret = "x"', r"\[boxes.a\]: unknown name 'tagret'; did you mean 'target'"),
        ('[boxes.a]\ntarget = "tls:a"\ntoken = "secret"', "unknown name 'token'; did you mean 'token_file'"),
        ('[box.a]\ntarget = "tls:a"', "unknown name 'box'; did you mean 'boxes'"),
        ('[defaults]\ncertifcate = "x"\n[boxes.a]\ntarget = "a"', r"\[defaults\]: .*did you mean 'certificate'"),
        ("[boxes.a]\ngroups = []", r"\[boxes.a\] has no key 'target'; set it to tls:HOST:PORT"),
        ('[boxes.a]\ntarget = " "', "has no key 'target'"),
        ('[boxes.a]\ntarget = "http://a"', r"\[boxes.a\]: 'http://a' is a URL"),
        ('[boxes.a]\ntarget = "a"\ntimeout_s = 0', "timeout_s: expected a number > 0"),
        ('[boxes.a]\ntarget = "a"\ngroups = "dock"', "groups: expected a list, got a string"),
        ('[boxes.a]\ntarget = "a\\u0000"', r"value of 'target' has invisible characters, 'a\\x00'"),
        ('[boxes.a]\ntarget = "a"\ntoken_file = "a\\u0000"', "'token_file' has invisible characters"),
        ('[boxes.a]\ntarget = "a"\ntoken_file = "~nobody-of-here/t"', "'token_file', '~nobody-of-here/t', begins with"),
        ('[boxes."a\\u001b[31m"]\ntarget = "a"', "is not a valid name of a box"),
        ('[boxes.a]\ntarget = "a:8001"\n[boxes.b]\ntarget = "a"', "boxes a and b have the same target, a:8001"),
    ],
)
def test_load_invalid_file_raises(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        load(written(tmp_path, text))
    assert str(tmp_path / "boxes.toml") in str(raised.value)
    assert "secret" not in str(raised.value)


def test_load_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (box,) = load(written(tmp_path, '\ufeff[boxes.a]\ntarget = "tls:a"\n')).boxes
    assert box.name == "a"


def test_load_fifo_or_missing_file_raises(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "pipe is not a regular file"), ("none.toml", r"none\.toml")):
        with pytest.raises(ConfigError, match=words):
            load(tmp_path / name)


# --- edged inventory check ------------------------------------------------------------------------------------------


def check(*line: str) -> Result:
    return CliRunner().invoke(app, ["inventory", "check", *line])


def test_check_shows_how_each_box_would_be_called(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-token")
    (tmp_path / "token").chmod(0o600)
    text = (
        '[boxes.a]\ntarget = "tls:a"\ntoken_file = "token"\n[boxes.b]\ntarget = "unix:/run/b"\n'
        '[boxes.c]\ntarget = "c:1"\ntoken_file = "token"\n[boxes.d]\ntarget = "tls:d"\nca = "none.pem"\n'
    )
    result = check(str(written(tmp_path, text)), "--json")
    boxes = {box["box"]: box for box in json.loads(result.stdout)["boxes"]}
    assert result.exit_code == 1
    assert {name: box["how"] for name, box in boxes.items()} == {"a": "tls, token", "b": "plain", "c": "", "d": ""}
    assert "is not sent to" in boxes["c"]["problem"]
    assert "none.pem cannot be read" in boxes["d"]["problem"]
    assert "secret-token" not in result.stdout

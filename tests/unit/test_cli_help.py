"""The output of `--help`: whole sentences, a valid example, and an existing page of the documentation."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from edged.cli.app import app
from edged.cli.examples import EXAMPLES

Command: TypeAlias = TyperCommand | TyperGroup
DOCS = Path(__file__).parents[2] / "docs"
ROOT = typer.main.get_command(app)


def commands(group: TyperGroup, path: str = "") -> Iterator[tuple[str, Command]]:
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert isinstance(command, TyperCommand | TyperGroup)
        yield f"{path}{name}", command
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{path}{name} ")


assert isinstance(ROOT, TyperGroup)
COMMANDS = dict(commands(ROOT))


def test_every_command_has_an_example() -> None:
    assert set(COMMANDS) == set(EXAMPLES)


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_help_ends_with_an_example_that_parses_and_a_page_that_exists(path: str) -> None:
    example, page = EXAMPLES[path]
    shown = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "80"}).output
    assert shown.rstrip().endswith(f"Example:  {example}\n  More:     docs/{page}")
    assert (DOCS / page).is_file()
    words = shlex.split(example.removeprefix("sudo "))[1:]
    command: Command = ROOT
    context = typer.Context(ROOT, info_name="edged")
    while isinstance(command, TyperGroup) and words and (found := command.get_command(context, words[0])) is not None:
        command, words = found, words[1:]
    command.make_context("edged", words, parent=context).close()  # raises UsageError


@pytest.mark.parametrize("path", ["", *sorted(name for name in COMMANDS if isinstance(COMMANDS[name], TyperGroup))])
def test_listed_commands_are_described_in_whole_sentences(path: str) -> None:
    shown = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "80"}).output
    listed = shown.partition("Commands:")[2].partition("Example:")[0]
    assert listed.strip()
    assert "..." not in listed

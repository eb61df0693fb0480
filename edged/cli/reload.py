"""`edged reload`: the daemon reads its configuration again."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from edged.api_types import ReloadedKey
from edged.cli import answers, common
from edged.cli.answers import Question
from edged.cli.reach import UNSAID, Reach, reaching


def reload(reach: Reach = UNSAID, json: common.Json = False) -> None:
    """Have the daemon read its configuration file again.

    It applies only what changed, and prints one line for each change.

    A file that is wrong is refused, and the daemon goes on as it was. For scripts: the exit status is 0 when everything
    that changed is in force, 1 when something is not, 2 when the file is refused.
    """
    question = Question(
        ask=lambda client: client.reload(),
        tell=_lines,
        plain=lambda keys: {"keys": [key.json() for key in keys]},
        wrong=lambda keys: "; ".join(f"{key.key} is not in force: {key.problem}" for key in keys if key.problem),
        lasting="a reload that has begun goes on",
    )
    answers.put(question, reach, json)


def register_reload(app: typer.Typer) -> None:
    app.command("reload")(common.command(reaching(reload)))


def _lines(keys: Sequence[ReloadedKey]) -> list[str]:
    told = [f"{key.told}: {key.problem}" if key.problem else key.told for key in keys]
    return told or ["nothing changed"]

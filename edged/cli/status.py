"""`edged status`: the box on one screen."""

from __future__ import annotations

from collections.abc import Mapping

import typer
from rich.filesize import decimal
from rich.table import Table

from edged.api_types import AlarmInfo, StatusInfo
from edged.cli import answers, common, words
from edged.cli.answers import Question
from edged.cli.reach import UNSAID, Reach, reaching


def status(reach: Reach = UNSAID, json: common.Json = False) -> None:
    """Show the daemon at a glance: models, engines, builds, alarms.

    For scripts: the exit status is 0 when all is well, and 1 when an alarm is raised or no daemon answers.
    """
    question = Question(
        ask=lambda client: client.status(),
        tell=lambda found: [_sheet(found)],
        plain=StatusInfo.json,
        wrong=_trouble,
        table=_table,
    )
    answers.put(question, reach, json)


def register(app: typer.Typer) -> None:
    app.command("status")(common.command(reaching(status)))


def _trouble(found: StatusInfo) -> str:
    kinds = sorted({alarm.kind for alarm in found.alarms})
    return f"{_count(len(found.alarms), 'alarm')}: {', '.join(kinds)}" if kinds else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _table(boxes: Mapping[str, StatusInfo]) -> Table:
    """A line for each of several boxes, and below it what is being made and what is wrong there."""
    table = Table("BOX", "VERSION", "UP", "SERVING", "ENGINES", "MAKING", "ALARMS", box=None, pad_edge=False)
    for name, found in boxes.items():
        table.add_row(
            name,
            found.version,
            words.span(found.uptime_s),
            f"{found.serving} of {found.models}",
            f"{found.engines}, {decimal(found.engine_bytes)}",
            "\n".join(words.line(engine) for engine in found.building) or found.paused,
            "\n".join(_alarm(alarm) for alarm in found.alarms),
        )
    return table


def _sheet(found: StatusInfo) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("edged", f"{found.version}, up {words.span(found.uptime_s)}")
    table.add_row("models", f"{found.serving} of {found.models} serve")
    table.add_row("engines", _engines(found))
    if found.paused:
        table.add_row("paused", found.paused)
    _add(table, "making", [words.line(engine) for engine in found.building])
    _add(table, "alarms", [_alarm(alarm) for alarm in found.alarms])
    return table


def _add(table: Table, name: str, lines: list[str]) -> None:
    for line in lines or ["none"]:
        table.add_row(name, line)
        name = ""


def _engines(found: StatusInfo) -> str:
    budget = f" of {decimal(found.budget_bytes)}" if found.budget_bytes else ""
    return f"{found.engines}, {decimal(found.engine_bytes)}{budget}; {decimal(found.free_bytes)} free on the disk"


def _alarm(alarm: AlarmInfo) -> str:
    about = " ".join(filter(None, (alarm.model, alarm.engine[:12])))
    told = f"{about}: {alarm.message}" if about else alarm.message
    return f"{alarm.kind} since {words.moment(alarm.since_unix_s)}: {told}"

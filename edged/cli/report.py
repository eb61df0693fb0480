"""`edged report`: describes this box, its runtimes and their speed, for a bug report or the list of tested hardware."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from edged.cli import common
from edged.cli.doctor import check_options
from edged.errors import InvalidInput


def report(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the report to this file, once you agree.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write the report without asking.")] = False,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Your name, shown in the report as given.")] = "",
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The daemon's configuration, for its folders.")
    ] = None,
    target: common.Target = None,
) -> None:
    """Describe this box and what works on it, without secrets.

    The report has the facts of the device, the findings of edged doctor and edged self-check, and the speed of the
    embedded detector with each runtime. Paste it into a bug report, or have it added to the list of tested hardware.

    Host, user, addresses, serial numbers, tokens and paths below home folders are removed. Models, cameras and pictures
    are not in the report. Nothing is sent. The command shows the report, and with -o writes it once you agree. The
    command takes a minute or two, or longer on a box with TensorRT.

    \b
    edged report
    edged report -o edged-report.md --by "Ada L."
    """
    from edged.doctor import box_report

    if by and not re.fullmatch(box_report.NAME, by):
        raise InvalidInput(f"--by {by[:60]!r} is not a valid name; use at most 40 letters, digits, spaces and . _ -")
    if yes and out is None:
        raise InvalidInput("--yes needs a file to write; name the file with -o")
    if out is not None and not yes and not sys.stdin.isatty():
        raise InvalidInput(
            "cannot ask whether to write: standard input is not a terminal; give --yes to write without asking"
        )
    with common.working("examining this box") as change:
        made = asyncio.run(
            box_report.make(
                check_options(config, target=target), by, lambda step: change(f"{step.name.value} {step.subject}")
            )
        )
    text = box_report.render(made)
    sys.stdout.write(common.harmless(text))
    sys.stdout.flush()
    if out is not None:
        write(text, out, yes=yes)


def write(text: str, out: Path, *, yes: bool) -> None:
    """Write the report that was shown, after asking the user; with `yes`, without asking."""
    if not yes and not typer.confirm(f"Write this report to {out}?", err=True):
        common.say("the report was not written")
        return
    out.write_text(text)
    common.say(f"the report is written to {out}")

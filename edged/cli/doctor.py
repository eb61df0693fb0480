"""`edged doctor`: checks of the box and its models, with a remedy for each problem."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from edged import paths
from edged.cli import common
from edged.doctor.check import Check, Result
from edged.errors import InvalidInput

if TYPE_CHECKING:
    from edged.doctor.check import Report
    from edged.doctor.run import CheckOptions
    from edged.references import kept

STYLES = {Result.OK: "green", Result.WARNING: "yellow", Result.WRONG: "bold red", Result.UNKNOWN: "dim"}


def doctor(
    model: Annotated[str | None, typer.Argument(help="Check only this model, by name or file.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The daemon's configuration, for its folders.")
    ] = None,
    state: Annotated[Path | None, typer.Option("--state", help="Directory for models.")] = None,
    cache: Annotated[Path | None, typer.Option("--cache", help="Directory for engines.")] = None,
    root: Annotated[Path | None, typer.Option("--root", help="Check a recorded device below this directory.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Time limit for all checks.")] = 300.0,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings, too.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List all checks, not only problems.")] = False,
    target: common.Target = None,
    json: common.Json = False,
) -> None:
    """Check the box and the models; print a remedy for each problem.

    It checks common causes of failures: runtimes that do not load, drivers of the wrong version, folders, memory,
    clock, heat, refused models, and engines that are stale or whose answers drift.

    It changes nothing, and works with or without a daemon. Without -v it lists only problems. With MODEL it also
    compares every optimisation level with the unoptimised model.

    Exit status: 0 nothing is wrong, 1 something is wrong (with --strict also warnings), 2 bad arguments.

    \b
    edged doctor
    edged doctor doors -v
    """
    from edged.doctor.run import run_checks

    if root is not None and not root.is_dir():
        raise InvalidInput(f"directory {root} does not exist")
    if root is not None and model is not None:
        raise InvalidInput("MODEL cannot be used with --root; a recorded device has no models")
    options = check_options(config, state, cache, target)
    options = msgspec.structs.replace(options, model=model or "", root=root or Path("/"), seconds=seconds)
    with common.working("checking this box") as change:
        report = asyncio.run(run_checks(options, lambda step: change(f"{step.name.value} {step.subject}".strip())))
    is_ok = report.is_ok(strict=strict)
    if json:
        common.print_json(msgspec.json.encode({"ok": is_ok, "checks": report.checks, "left_out": report.left_out}))
    else:
        for part in render(report, verbose=verbose):
            common.show(part)
    if not is_ok:
        raise typer.Exit(common.FAILED)


def check_options(
    config: Path | None = None, state: Path | None = None, cache: Path | None = None, target: str | None = None
) -> CheckOptions:
    """Return the folders, the daemon and the models to check. They come from the options of a command and from the
    configuration. Raises ConfigError if the configuration is invalid."""
    from edged import config as configuration
    from edged.client import address
    from edged.doctor.run import CheckOptions

    settings = configuration.load(config, os.environ)
    is_named = bool(target or os.environ.get("EDGED_TARGET", "").strip())
    # If the user names folders but no --target, no daemon is asked, even if EDGED_TARGET is set.
    asks = bool(target) or not (state or cache)
    listened = next((each for each in settings.listen if each.startswith("unix:")), None)
    folder = state or _folder(settings.state, paths.default_state_dir())
    return CheckOptions(
        state=folder,
        cache=cache or _folder(settings.cache, paths.default_cache_dir()),
        target=address.resolve(target or (None if is_named else listened)) if asks else "",
        is_named=is_named,
        engines=settings.engines,
        arena_mb=settings.hosts.arena_mb,
        models={name: kept.place_of(path, folder)[0].absolute() for name, path in settings.models.items()},
        families=settings.families.allow,
    )


def _folder(named: str, default: Path) -> Path:
    return Path(named).expanduser().absolute() if named else default


def render(report: Report, *, verbose: bool) -> Iterator[RenderableType]:
    """Yield a table of the problems, the worst first, and a line with the number of checks for each result. With
    `verbose`, also yield a table of all checks."""
    order = (Result.WRONG, Result.WARNING, Result.UNKNOWN)
    problems = [
        check
        for result in order
        for check in report.checks
        if check.result is result and (check.remedy or result is not Result.UNKNOWN)
    ]
    if problems or report.left_out:
        yield _problems(problems, report.left_out)
    counts = report.counts()
    tally = ", ".join(f"{counts[result.value]} {result.value}" for result in Result)
    yield f"{tally}; edged doctor -v lists all" if not verbose else tally
    if verbose:
        yield ""
        yield _table(report.checks)


def _problems(problems: Sequence[Check], left_out: Sequence[str]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    for check in problems:
        about = f"{check.name.value} {check.subject}".strip()
        remedy = f"\n→ {check.remedy}" if check.remedy else ""
        table.add_row(Text(check.result.value, STYLES[check.result]), f"{about}: {check.message}{remedy}")
    for line in left_out:
        table.add_row(Text("left out", "dim"), line)
    return table


def _table(checks: tuple[Check, ...]) -> Table:
    table = common.table("result", "check", "about", "found")
    for check in checks:
        found = f"{check.message}\n→ {check.remedy}" if check.remedy else check.message
        style = STYLES[check.result]
        table.add_row(check.result.value, check.name.value, check.subject, found, style=style)
    return table

"""`edged self-check`: checks whether every installed runtime gives right answers on this box."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from edged.cli import common
from edged.cli.doctor import STYLES

if TYPE_CHECKING:
    from edged.doctor.check import Report


def self_check(
    quick: Annotated[
        bool, typer.Option("--quick", help="Finish in seconds: skip timing, and only load runtimes for GPUs.")
    ] = False,
    json: common.Json = False,
) -> None:
    """Try every runtime with the embedded detector.

    Use it after an installation or upgrade. It needs no daemon and no model, and leaves no files. Each installed
    runtime builds an engine in child processes that are confined as in a daemon. The engine's answers are compared
    with those of the reference: ONNX Runtime without optimisation, which must find the shapes in a drawn picture.

    Without --quick, the command also times engines and builds engines for GPUs. TensorRT builds take some minutes on a
    small box.

    Exit status: 0 every installed runtime works, 1 a runtime does not work or gives wrong answers.
    """
    from edged.device.fingerprint import probe
    from edged.doctor.self_check import run_self_check

    with common.working("checking runtimes") as change:
        outcome = asyncio.run(run_self_check(probe(), lambda step: change(f"checking {step.subject}"), is_quick=quick))
    report = outcome.report
    if json:
        found = {"ok": report.is_ok(), "checks": report.checks, "left_out": report.left_out, "engines": outcome.tried}
        common.print_json(msgspec.json.encode(found))
    else:
        common.show(render(report))
    if not report.is_ok():
        raise typer.Exit(common.FAILED)


def render(report: Report) -> Table:
    """Return a table with a line for each runtime. If a runtime needs a remedy, the remedy is in the next line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for check in report.checks:
        remedy = f"\n→ {check.remedy}" if check.remedy else ""
        table.add_row(Text(check.result.value, STYLES[check.result]), check.subject, f"{check.message}{remedy}")
    for line in report.left_out:
        table.add_row(Text("left out", "dim"), "", line)
    return table

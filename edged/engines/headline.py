"""The daemon in one line: what serves, what is being made, what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from edged.engines.commands import Standing
from edged.engines.report import StatusReport


def headline(report: StatusReport, problem: str = "") -> str:
    """For who looks at the service among others; `problem` is what is wrong beside models and engines."""
    return "; ".join(_parts(report, problem))


def _parts(report: StatusReport, problem: str) -> Iterator[str]:
    yield f"{report.serving} of {report.models} models answer" if report.models else "no models yet"
    if problem:
        yield problem
    if report.alarms:
        more = f" and {len(report.alarms) - 1} more" if len(report.alarms) > 1 else ""
        yield f"wrong: {report.alarms[-1].message}{more}"
    if report.building:
        more = f" and {len(report.building) - 1} more" if len(report.building) > 1 else ""
        yield f"making {_made(report.building[0])}{more}"


def _made(engine: Standing) -> str:
    share = f" {engine.fraction:.0%}" if engine.fraction is not None else ""
    return f"{engine.model} for {engine.backend}/{engine.precision}, {engine.phase or engine.state}{share}"

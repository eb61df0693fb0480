"""`edged engines`: which engines there are, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from edged.cli import common, local
from edged.client.operations import EngineInfo, Explanation


def list_(
    model: Annotated[str, typer.Argument(help="Only this model's.", show_default=False)] = "",
    target: common.Target = None,
    state: local.State = None,
    cache: local.Cache = None,
    json: common.Json = False,
) -> None:
    """Show every engine that a model should have here, and those in the store that none wants any more.

    State: absent, queued, building, verifying, ready, serving, stale, failed, rejected.
    """
    engines = _fetch(model, target, state, cache)
    if json:
        common.print_json(msgspec.json.encode({"engines": [engine.json() for engine in engines]}))
    else:
        common.out.print(_table(engines) if engines else "no engines: no model wants any")


def why(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    target: common.Target = None,
    state: local.State = None,
    cache: local.Cache = None,
    json: common.Json = False,
) -> None:
    """Say which part of its key makes each engine of a model a hit or a miss, against the nearest one stored."""
    if local.daemon_is_meant(target, state, cache):
        from edged.client.client import Client

        with Client(target) as client:
            explanations = list(client.explain(model))
    else:
        explanations = local.Box(state, cache).explain(model)
    if json:
        common.print_json(msgspec.json.encode({"explanations": [item.json() for item in explanations]}))
    else:
        common.out.print(_reasons(explanations))


def register(app: typer.Typer) -> None:
    engines = typer.Typer(no_args_is_help=True, help="Which engines there are, and why.")
    engines.command("list")(common.command(list_))
    engines.command("why")(common.command(why))
    app.add_typer(engines, name="engines")


def _fetch(model: str, target: str | None, state: Path | None, cache: Path | None) -> list[EngineInfo]:
    if not local.daemon_is_meant(target, state, cache):
        return local.Box(state, cache).engines(model)
    from edged.client.client import Client

    with Client(target) as client:
        return list(client.engines(model or None))


def _table(engines: list[EngineInfo]) -> Table:
    table = Table("model", "engine", "backend", "precision", "state", "latency", "size", "", box=None, pad_edge=False)
    for engine in engines:
        latency = _latency(engine)
        size = f"{engine.bytes / 1e6:.1f} MB" if engine.bytes else ""
        backend = f"{engine.backend} ({engine.parts['recipe.optimization']})"
        table.add_row(
            engine.model, engine.key[:12], backend, engine.precision, engine.state, latency, size, engine.reason
        )
    return table


def _latency(engine: EngineInfo) -> str:
    """Milliseconds, and how many times faster than the reference was in the same moments."""
    if engine.latency_ms is None:
        return ""
    if not engine.reference_ms or engine.parts["recipe.optimization"] == "none":
        return f"{engine.latency_ms:.2f} ms"
    return f"{engine.latency_ms:.2f} ms ({engine.reference_ms / engine.latency_ms:.1f}x)"


def _reasons(explanations: list[Explanation]) -> Table:
    table = Table("engine", "backend", "state", "because", box=None, pad_edge=False)
    for item in explanations:
        table.add_row(item.wanted[:12], item.backend, item.state, item.summary)
    return table

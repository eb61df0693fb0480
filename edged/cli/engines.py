"""`edged engines`: which engines there are, and why. The commands on them are in `engine_commands`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from edged.api_types import Composition, EngineInfo, Explanation
from edged.cli import answers, common, engine_build, engine_commands, folders, words
from edged.cli.answers import Question
from edged.cli.reach import UNSAID, Reach, reaching
from edged.errors import EdgedError, InvalidInput, NotFound

_SHORTEST = 6  # characters of a key that are taken for it


def list_(
    model: Annotated[str, typer.Argument(help="Only this model's.", show_default=False)] = "",
    reach: Reach = UNSAID,
    state: folders.State = None,
    cache: folders.Cache = None,
    json: common.Json = False,
) -> None:
    """List the engines of every model: state, speed, size.

    In brackets is the optimisation level: `none` is unoptimised ONNX Runtime, the reference that the others are
    compared with. SPEED is relative to it.

    State: absent, queued, building, verifying, ready, serving; failed (tried again later), rejected (wrong answers),
    unsuitable (the backend cannot do it), quarantined (no longer tried by itself), evicted (gave way to others), stale
    (nothing wants it on this device as it is now).
    """
    question = Question(
        ask=lambda client: list(client.engines(model or None)),
        tell=lambda engines: [_list([("", engine) for engine in engines])],
        plain=lambda engines: {"engines": [engine.json() for engine in engines]},
        table=lambda boxes: _list(answers.flat(boxes)),
    )
    if folders.daemon_is_meant(reach.named, state, cache):
        answers.put(question, reach, json)
    else:
        answers.show(question.tell, question.plain, folders.box(state, cache).engines(model), json)


def why(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    reach: Reach = UNSAID,
    state: folders.State = None,
    cache: folders.Cache = None,
    json: common.Json = False,
) -> None:
    """Explain why each engine of a model is used, rebuilt or missing.

    It compares the engine's key with the nearest one in the store and names the parts that differ."""
    question = Question(
        ask=lambda client: list(client.explain(model)),
        tell=lambda explanations: [_reasons(explanations)],
        plain=lambda explanations: {"explanations": [item.json() for item in explanations]},
    )
    if folders.daemon_is_meant(reach.named, state, cache):
        answers.put(question, reach, json)
    else:
        answers.show(question.tell, question.plain, folders.box(state, cache).explain(model), json)


def show(
    key: Annotated[str, typer.Argument(help="The engine's key, or its beginning: 6 characters at least.")],
    reach: Reach = UNSAID,
    state: folders.State = None,
    cache: folders.Cache = None,
    json: common.Json = False,
) -> None:
    """Show one engine: key, verification figures, build, timing."""
    if len(key) < _SHORTEST:
        raise InvalidInput(f"{key!r} is too short for the beginning of a key; give {_SHORTEST} characters at least")
    question = Question(
        ask=lambda client: _keyed(client.engines(), key), tell=lambda engines: [_sheet(engines)], plain=_plain
    )
    if folders.daemon_is_meant(reach.named, state, cache):
        answers.put(question, reach, json)
    else:
        answers.show(question.tell, question.plain, _keyed(folders.box(state, cache).engines(""), key), json)


def register(app: typer.Typer) -> None:
    engines = typer.Typer(no_args_is_help=True, help="List, explain, build, verify and evict engines.")
    engines.command("list")(common.command(reaching(list_)))
    engines.command("why")(common.command(reaching(why)))
    engines.command("show")(common.command(reaching(show)))
    engine_build.register_build(engines)
    engine_commands.register(engines)
    app.add_typer(engines, name="engines")


def _keyed(engines: list[EngineInfo], start: str) -> list[EngineInfo]:
    """The one engine whose key begins so, once for each model that has it: equal files have equal engines."""
    found = [engine for engine in engines if engine.key.startswith(start)]
    keys = sorted({engine.key for engine in found})
    if not keys:
        raise NotFound(f"no engine has a key that begins with {start!r}; see: edged engines list")
    if len(keys) > 1:
        raise EdgedError(f"{len(keys)} keys begin with {start!r}, such as {keys[0]} and {keys[1]}; give more of it")
    return found


def _plain(engines: list[EngineInfo]) -> dict[str, Any]:
    return engines[0].json() | {"models": [engine.model for engine in engines]}


def _sheet(engines: list[EngineInfo]) -> Table:
    engine, verdict = engines[0], engines[0].verdict
    rows = {
        "key": engine.key,
        "model": ", ".join(engine.model for engine in engines),
        "engine": f"{engine.backend} on {engine.device}, {engine.precision}",
        "state": f"{engine.state}: {engine.reason}" if engine.reason else engine.state,
        "size": f"{engine.bytes} bytes",
        "speed": _timed(engine),
        "built": _built(engine),
        "used": words.moment(engine.used_unix_s) if engine.used_unix_s else "not known",
        "pinned": "yes: it is never evicted" if engine.pinned else "no",
    }
    if engine.load is not None:
        rows["load"] = f"{engine.load:.0%} of the processors were used by others while it was timed"
    if engine.adopted_from:
        how = "built ahead" if engine.ahead else "built for another driver"
        rows["adopted"] = f"from {engine.adopted_from}, {how} and proven with this one"
    if engine.ahead:
        rows["built ahead"] = f"for {engine.ahead}, on another box"
    if engine.standard:
        rows["standard"] = engine.standard
    rows |= _composition(engine.composition)
    if verdict is not None:
        word = "accepted" if verdict.accepted else "rejected"
        rows["verdict"] = f"{word}: {verdict.reason}" if verdict.reason else word
        rows |= {f"verdict {name}": f"{value:g}" for name, value in verdict.figures.items()}
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (rows | {f"part {name}": value for name, value in engine.parts.items()}).items():
        table.add_row(name, value or "none")
    return table


def _composition(composition: Composition) -> dict[str, str]:
    """What the runtime made of the model, and where it runs; nothing where that is not known."""
    rows = {"layers": ", ".join(f"{count} in {precision}" for precision, count in composition.layers.items())}
    for provider, operators in composition.nodes.items():
        most_first = sorted(operators.items(), key=lambda item: (-item[1], item[0]))
        rows[f"on {provider}"] = ", ".join(f"{count} {operator}" for operator, count in most_first)
    rows["fallback"] = "; ".join(composition.fallback)
    rows["kept in fp32"] = "; ".join(composition.kept)
    rows["notes"] = "; ".join(composition.notes)
    return {name: text for name, text in rows.items() if text}


def _timed(engine: EngineInfo) -> str:
    if engine.speed is None:
        return "not measured"
    took = f"{engine.latency_ms:.3f} ms against {engine.reference_ms:.3f} ms, in turns, in a build's low priority"
    return f"{engine.speed:.2f} times the reference's ({took})"


def _built(engine: EngineInfo) -> str:
    if engine.build_s is None:
        return "not yet"
    effort = f" with {engine.effort} effort" if engine.effort not in ("", "full") else ""
    return f"{words.moment(engine.created_unix_s)} in {engine.build_s:.1f} s{effort}"


def _list(engines: Sequence[tuple[str, EngineInfo]]) -> RenderableType:
    return _table(engines) if engines else "no engines: no model wants any"


def _table(engines: Sequence[tuple[str, EngineInfo]]) -> Table:
    """Each with the name of its box, empty where there is only one."""
    titles = ("model", "engine", "backend", "precision", "state", "speed", "size", "")
    table = Table(*answers.boxed(engines), *titles, box=None, pad_edge=False)
    for box, engine in engines:
        size = f"{engine.bytes / 1e6:.1f} MB" if engine.bytes else ""
        backend = _how(engine)
        state = f"{engine.state}, pinned" if engine.pinned else engine.state
        about = (engine.model, engine.key[:12], backend, engine.precision, state, _speed(engine), size, engine.reason)
        table.add_row(*([box] if box else []), *about)
    return table


def _how(engine: EngineInfo) -> str:
    """The backend, its device unless it is the CPU, and what else of the recipe is short enough."""
    threads = engine.parts.get("recipe.threads", "0")  # another version's engines may have other parts
    level = engine.parts.get("recipe.optimization", "?")
    device = "" if engine.device == "cpu" else f" on {engine.device}"
    return f"{engine.backend}{device} ({level}{'' if threads == '0' else f', threads {threads}'})"


def _speed(engine: EngineInfo) -> str:
    """How many times as fast as the reference it was, timed in turns with it."""
    return "" if engine.speed is None or engine.parts.get("recipe.optimization") == "none" else f"{engine.speed:.1f}x"


def _reasons(explanations: list[Explanation]) -> Table:
    table = Table("engine", "backend", "state", "because", box=None, pad_edge=False)
    for item in explanations:
        table.add_row(item.wanted[:12], item.backend, item.state, item.summary)
    return table

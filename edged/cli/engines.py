"""`edged engines`: list, explain and show engines, and build engines for other boxes. The commands that change engines
are in `engine_commands`."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from edged import formatting, packages
from edged.api_types import Composition, EngineInfo, Explanation
from edged.backends.contract import INT8_ASYMMETRIC
from edged.cli import common, model_options, remote
from edged.cli.remote import RemoteCommand
from edged.cli.targets import (
    DEFAULT_TARGETS,
    CacheOption,
    StateOption,
    Targets,
    local_box,
)
from edged.decoding import explain, ready
from edged.errors import EdgedError, InvalidInput, NotFound
from edged.files import NOT_JSON

if TYPE_CHECKING:
    from edged.cli.local import LocalBox
    from edged.engines import offline
    from edged.ipc.job_messages import Progress

_SHORTEST = 6  # fewest characters of a key that a user must give


def list_(
    model: Annotated[str, typer.Argument(help="Only engines of this model.", show_default=False)] = "",
    targets: Targets = DEFAULT_TARGETS,
    state: StateOption = None,
    cache: CacheOption = None,
    json: common.Json = False,
) -> None:
    """List the engines of every model: state, speed, size.

    The optimisation level is in brackets. Level `none` is unoptimised ONNX Runtime: the reference with which other
    engines are compared. SPEED is relative to the reference.

    States: absent, queued, building, verifying, ready, serving; failed (tried again later), rejected (wrong answers),
    unsuitable (the backend cannot run it), quarantined (not tried again automatically), evicted (to free space), stale
    (not needed on this device now).
    """
    command = remote.list_command(
        lambda client: list(client.engines(model or None)),
        _COLUMNS,
        lambda engines: {"engines": [engine.json() for engine in engines]},
        empty="no engines; add a model: edged models add NAME FILE",
    )
    remote.run_or_read(command, targets, (state, cache), lambda: local_box(state, cache).engines(model), json)


def why(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    targets: Targets = DEFAULT_TARGETS,
    state: StateOption = None,
    cache: CacheOption = None,
    json: common.Json = False,
) -> None:
    """Explain why each engine of a model is used, rebuilt or missing.

    It compares each engine's key with the most similar key in the store and names the parts that differ.
    """
    command = RemoteCommand(
        call=lambda client: list(client.explain(model)),
        render=lambda explanations: [_reasons(explanations)],
        to_json=lambda explanations: {"explanations": [item.json() for item in explanations]},
    )
    remote.run_or_read(command, targets, (state, cache), lambda: local_box(state, cache).explain(model), json)


def show(
    key: Annotated[str, typer.Argument(help="The engine's key, or its first 6 or more characters.")],
    targets: Targets = DEFAULT_TARGETS,
    state: StateOption = None,
    cache: CacheOption = None,
    json: common.Json = False,
) -> None:
    """Show one engine: key, verification figures, build, timing."""
    if len(key) < _SHORTEST:
        raise InvalidInput(f"{key!r} is too short for the key of an engine; give at least {_SHORTEST} characters")
    command = RemoteCommand(
        call=lambda client: _keyed(client.engines(), key), render=lambda engines: [_details(engines)], to_json=_to_json
    )
    remote.run_or_read(command, targets, (state, cache), lambda: _keyed(local_box(state, cache).engines(""), key), json)


def report(
    key: Annotated[str, typer.Argument(help="The engine's key, or its first 6 or more characters.")],
    output: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the report to this file instead of engine-KEY.html."),
    ] = None,
    pictures: Annotated[bool, typer.Option(help="Include frames of cameras, which may show people.")] = True,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Write a report on an engine, with figures, charts and pictures.

    The report shows the frames on which the answers of the engine differ most from those of the reference. The
    command `edged samples collect` kept these frames, and the engine was not calibrated on them. Pictures of these
    frames leave the box only in this report. The page of the box (`edged page`) has a link to the same report.

    The report is one HTML file that needs no other file and no network.

    --json prints the figures instead, without pictures.
    """
    if targets.is_fleet:
        raise InvalidInput(
            "a report is about an engine of one box, but several are selected; name one box with --target"
        )
    with targets.client() as client:
        content = client.engine_report(key, pictures=pictures, json=json)
    if json:
        common.print_json(content)
        return
    place = output or Path(f"engine-{key[:12]}.html")
    try:
        _write_private(place, content)
    except OSError as error:
        raise InvalidInput(f"cannot write {place}: {error.strerror or error}; name another file with -o") from error
    common.show(f"{place}: {formatting.size(len(content))}")


def _write_private(place: Path, content: bytes) -> None:
    """Write a file that only its owner can read, because it may show what cameras saw."""
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # not /dev/stdout
            os.fchmod(descriptor, 0o600)  # the file may have existed with another mode
        file.write(content)


def _keyed(engines: list[EngineInfo], start: str) -> list[EngineInfo]:
    """Return the engine whose key begins with `start`, once for each model that has the engine: models with equal files
    share engines. Raises NotFound if no key begins with `start`, EdgedError if several keys begin with it."""
    found = [engine for engine in engines if engine.key.startswith(start)]
    keys = sorted({engine.key for engine in found})
    if not keys:
        raise NotFound(f"no engine has a key that begins with {start!r}; see: edged engines list")
    if len(keys) > 1:
        raise EdgedError(
            f"{len(keys)} engine keys begin with {start!r}, such as {keys[0]} and {keys[1]}; give more characters"
        )
    return found


def _to_json(engines: list[EngineInfo]) -> dict[str, Any]:
    return engines[0].json() | {"models": [engine.model for engine in engines]}


def _details(engines: list[EngineInfo]) -> Table:
    engine, verdict = engines[0], engines[0].verdict
    rows = {
        "key": engine.key,
        "model": ", ".join(engine.model for engine in engines),
        "engine": f"{engine.backend} on {engine.device}, {engine.precision}",
        "state": f"{engine.state}: {engine.reason}" if engine.reason else engine.state,
        "size": f"{engine.bytes} bytes",
        "speed": _timed(engine),
        **({"instances": _forms(engine)} if len(engine.speeds) > 1 else {}),
        "built": _built(engine),
        "used": formatting.moment(engine.used_unix_s) if engine.used_unix_s else "not known",
        "pinned": "yes, never evicted" if engine.pinned else "no",
    }
    if engine.load is not None:
        rows["load"] = f"other processes used {engine.load:.0%} of the processors while it was timed"
    if engine.adopted_from:
        how = "built ahead" if engine.ahead else "built for another driver"
        rows["adopted"] = f"from {engine.adopted_from}, {how} and verified on this box"
    if engine.shared_by:
        rows["shared"] = f"built by {engine.shared_by}, verified on this box"
    if engine.ahead:
        rows["built ahead"] = f"for {engine.ahead}, on another box"
    if engine.standard:
        rows["standard"] = engine.standard
    rows |= _composition(engine.composition)
    if verdict is not None:
        word = "accepted" if verdict.accepted else "rejected"
        rows["verdict"] = f"{word}: {verdict.reason}" if verdict.reason else word
        rows |= {f"verdict {name}": f"{value:g}" for name, value in verdict.figures.items()}
    if not engine.is_reference and engine.precision != "fp32":
        rows |= _judged(engine)
    rows |= {f"part {name}": value for name, value in engine.parts.items()}
    return common.fact_table({name: value or "none" for name, value in rows.items()})


def _judged(engine: EngineInfo) -> dict[str, str]:
    """Return rows with the engine's accuracy on frames of cameras, or with the reason why it is unknown."""
    found = engine.judgement
    if found is None or engine.unjudged:
        return {"on frames": f"not judged on frames of cameras: {engine.unjudged}"}
    skipped = f", {found.skipped} could not be read" if found.skipped else ""
    text = f"{found.objects} objects on {found.frames} frames of collection {found.collection}{skipped}"
    return {"on frames": text, **{f"frames {name}": f"{value:g}" for name, value in found.figures.items()}}


def _composition(composition: Composition) -> dict[str, str]:
    """Return rows with the number of layers of each precision, the operators of each ONNX Runtime execution provider,
    and the notes of a build. Rows without a value are left out."""
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
    if engine.is_reference:
        return f"{engine.latency_ms:.3f} ms"
    took = f"{engine.latency_ms:.3f} ms against {engine.reference_ms:.3f} ms, timed alternately"
    return f"{engine.speed:.2f} times the reference ({took})"


def _forms(engine: EngineInfo) -> str:
    """Return the speed for each number of instances, as a multiple of the reference's speed. Each number of instances
    has two values: one for single requests, and one for parallel requests."""
    return "; ".join(
        f"{speed.instances}{f' with {speed.threads} threads each' if speed.threads else ''}:"
        f" {speed.reference_ms / speed.latency_ms:.2f} times the reference's speed for single requests,"
        f" {speed.reference_ms / speed.interval_ms:.2f} times for parallel ones"
        for speed in engine.speeds
    )


def _built(engine: EngineInfo) -> str:
    if engine.build_s is None:
        return "not yet"
    effort = f" with {engine.effort} effort" if engine.effort not in ("", "full") else ""
    return f"{formatting.moment(engine.created_unix_s)} in {engine.build_s:.1f} s{effort}"


def _state(engine: EngineInfo) -> str:
    return f"{engine.state}, pinned" if engine.pinned else engine.state


def _how(engine: EngineInfo) -> str:
    """Return the backend, the device unless it is the CPU, the optimisation level, the threads and the instances."""
    threads = engine.parts.get("recipe.threads", "0")  # engines of another version may have other parts
    level = engine.parts.get("recipe.optimization", "?")
    device = "" if engine.device == "cpu" else f" on {engine.device}"
    many = f", {engine.instances} at a time" if engine.instances > 1 else ""
    recipe = ", asymmetric" if engine.parts.get("recipe.options") == INT8_ASYMMETRIC else ""
    return f"{engine.backend}{device} ({level}{'' if threads == '0' else f', threads {threads}'}{recipe}{many})"


def _speed(engine: EngineInfo) -> str:
    """Return the speed as a multiple of the reference's speed, such as 2.5x. Return an empty text for the reference, or
    if the speed is unknown. Engine and reference were timed alternately."""
    return "" if engine.speed is None or engine.is_reference else f"{engine.speed:.1f}x"


_COLUMNS: tuple[remote.Column[EngineInfo], ...] = (
    remote.Column("model", lambda engine: engine.model),
    remote.Column("engine", lambda engine: engine.key[:12]),
    remote.Column("backend", _how),
    remote.Column("precision", lambda engine: engine.precision),
    remote.Column("state", _state),
    remote.Column("speed", _speed),
    remote.Column("size", lambda engine: f"{engine.bytes / 1e6:.1f} MB" if engine.bytes else ""),
    remote.Column("", lambda engine: engine.reason),
)


def _reasons(explanations: list[Explanation]) -> Table:
    table = common.table("engine", "backend", "state", "because")
    for item in explanations:
        table.add_row(item.wanted[:12], item.backend, item.state, item.summary)
    return table


def build(
    model: Annotated[str, typer.Argument(help="A model of this box by name, an ONNX file, or a reference to one.")],
    target: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="DEVICE",
            help="A compute capability, such as sm_86, or a file with the output of `edged device --json` on that box.",
        ),
    ],
    precision: Annotated[list[str] | None, typer.Option("--precision", help="Only this precision; repeatable.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A model setting; repeatable.")
    ] = None,
    state: StateOption = None,
    cache: CacheOption = None,
    json: common.Json = False,
) -> None:
    """Build engines for another box's GPU, with TensorRT for RTX.

    The engines are not used on this box. Copy them to the same folder on the other box (CACHE/engines/KEY). That box
    compares them with the reference, times them, and serves them without building if their answers are right. With a
    file of the other box's facts, the keys are exactly the ones that the other box looks for. With a compute capability
    alone, unknown facts match any value.

    The exit status is 1 if any engine could not be built. With --json it prints one object per line for each engine.
    """
    from edged.engines import offline

    box = local_box(state, cache)
    if offline.BACKEND not in box.present():
        raise InvalidInput(
            f"TensorRT for RTX is not installed on this box; install it: {packages.install_extra('tensorrt-rtx')}"
        )
    on = _target(target, box)
    found = box.model(str(model_options.local_file(model, state).path), setting or [])
    wanted = offline.engines(found, on, tuple(precision or ()))
    failed = 0
    for engine in wanted:
        plain: dict[str, Any] = {"key": engine.key.digest, "precision": engine.recipe.precision, "error": ""}
        try:
            if engine.problem:
                raise InvalidInput(engine.problem)
            with common.working(f"building {engine.recipe.precision} for {on.name}"):
                record = asyncio.run(box.build_ahead(found, engine, on, _quietly))
        except EdgedError as error:
            failed += 1
            plain["error"] = outcome = str(error)
        else:
            plain |= {"bytes": record.size, "build_s": record.build.build_s, "for": record.ahead}
            outcome = f"{record.size / 1e6:.1f} MB in {record.build.build_s:.1f} s, for {record.ahead}"
        if json:
            common.print_json(msgspec.json.encode(plain))
        else:
            common.show(f"{engine.key.digest[:12]} {engine.recipe.precision}: {outcome}")
    if failed:
        raise EdgedError(
            f"{failed} of {len(wanted)} engines for {on.name} could not be built; the output names each reason"
        )


def _target(text: str, box: LocalBox) -> offline.Target:
    from edged.engines import offline

    file = Path(text)
    if not file.is_file():
        return offline.target(text, box.fingerprint)

    class Facts(msgspec.Struct):
        facts: dict[str, str]

    try:
        recorded = msgspec.json.decode(file.read_bytes(), type=ready(Facts))
    except (OSError, *NOT_JSON) as error:
        raise InvalidInput(f"{file} is not the output of `edged device --json`: {explain(error)}") from error
    return offline.recorded_target(recorded.facts, box.fingerprint, file.name)


def _quietly(progress: Progress) -> None:
    """Ignore progress, since a spinner is shown."""


COMMANDS: tuple[Callable[..., None], ...] = (list_, why, show, report, build)

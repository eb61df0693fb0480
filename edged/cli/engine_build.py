"""`edged engines build --for`: engines for a device that this box does not have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from edged import packages
from edged.cli import common, folders
from edged.decoding import explain, ready
from edged.errors import EdgedError, InvalidInput
from edged.files import NOT_JSON

if TYPE_CHECKING:
    from edged.cli.local import Box
    from edged.engines import offline
    from edged.ipc.job_messages import Progress
    from edged.store.record import EngineRecord


def build(
    model: Annotated[str, typer.Argument(help="A model of this box by name, or an ONNX file.")],
    target: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="DEVICE",
            help="A compute capability, such as sm_86; or a file that `edged device --json` wrote on the other box.",
        ),
    ],
    precision: Annotated[
        list[str] | None,
        typer.Option("--precision", help="Only this one; may be given several times.", show_default=False),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the model, as for a file.", show_default=False),
    ] = None,
    state: folders.State = None,
    cache: folders.Cache = None,
    json: common.Json = False,
) -> None:
    """Build engines for another box's GPU, with TensorRT for RTX.

    They are not used here. Copied to the same folder of the other box (CACHE/engines/KEY) they are tried there first:
    compared with the reference, timed, and served if their answers are right, without an hour of building. With a file
    of the other box's facts the keys are exactly those that it looks for; with a compute capability alone, facts that
    are not known match anything.

    The exit status is 1 if any engine could not be built. With --json one object a line for each engine.
    """
    from edged.engines import offline

    box = folders.box(state, cache)
    if offline.BACKEND not in box.present():
        raise InvalidInput(f"TensorRT for RTX is not installed here: {packages.install_extra('tensorrt-rtx')}")
    on = _target(target, box)
    found = box.model(model, setting or [])
    wanted = offline.engines(found, on, tuple(precision or ()))
    failed = 0
    for engine in wanted:
        try:
            if engine.problem:
                raise InvalidInput(engine.problem)
            with common.working(f"building {engine.recipe.precision} for {on.name}"):
                record = asyncio.run(box.build_ahead(found, engine, on, _quietly))
        except EdgedError as error:
            failed += 1
            _tell(json, {"key": engine.key.digest, "precision": engine.recipe.precision, "error": str(error)}, None)
        else:
            plain = {"key": engine.key.digest, "precision": engine.recipe.precision, "error": ""}
            _tell(json, plain, record)
    if failed:
        raise EdgedError(f"{failed} of {len(wanted)} engines for {on.name} could not be built")


def register_build(engines: typer.Typer) -> None:
    """Adds the command to the group."""
    engines.command("build")(common.command(build))


def _target(text: str, box: Box) -> offline.Target:
    from edged.engines import offline

    place = Path(text)
    if not place.is_file():
        return offline.target(text, box.fingerprint)

    class Facts(msgspec.Struct):
        facts: dict[str, str]

    try:
        recorded = msgspec.json.decode(place.read_bytes(), type=ready(Facts))
    except (OSError, *NOT_JSON) as error:
        raise InvalidInput(f"{place} has no facts that `edged device --json` wrote: {explain(error)}") from error
    return offline.recorded_target(recorded.facts, box.fingerprint, place.name)


def _quietly(progress: Progress) -> None:
    """A spinner turns meanwhile."""


def _tell(json: bool, plain: dict[str, Any], record: EngineRecord | None) -> None:
    if record is not None:
        plain |= {"bytes": record.size, "build_s": record.build.build_s, "for": record.ahead}
    if json:
        common.print_json(msgspec.json.encode(plain))
    elif record is None:
        common.show(f"{plain['key'][:12]} {plain['precision']}: {plain['error']}")
    else:
        size, seconds = record.size / 1e6, record.build.build_s
        common.show(f"{plain['key'][:12]} {plain['precision']}: {size:.1f} MB in {seconds:.1f} s, for {record.ahead}")
